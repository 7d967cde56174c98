//! What a person reads.

use crate::{TINY, device, forecast, plan, programs};
use xrun::forecast::listing::listing;

#[test]
fn the_report_of_a_tiny_plan() {
    let found = forecast(&plan("quickstart", &TINY, 511), &[device("rtx3090")]);
    insta::assert_snapshot!(found.to_string(), @"");
}

#[test]
fn the_listing_of_a_tiny_program() {
    let programs = programs(&plan("quickstart", &TINY, 511));
    insta::assert_snapshot!(listing(&programs, Some("evaluate")).expect("a section"), @"");
}
