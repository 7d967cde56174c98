//! The planned effect at the planned pairs.

use super::{CONFIDENCE, LEAST_FOUND, PLANS, Source, TRIALS, count, fixed, some};
use xrun::statistics::{Deviation, POWER, Verdict, pairs_to_see, pairs_to_show_equivalence};

const SOURCES: [Source; 3] = [Source::Normal, Source::Centered("qk_norm"), Source::Centered("lr")];

fn shifted(differences: Vec<f64>, by: f64) -> Vec<f64> {
    differences.into_iter().map(|difference| difference + by).collect()
}

#[test]
fn the_planned_effect_is_found_at_the_planned_pairs() {
    println!("the planned effect, found of 400 at the planned pairs");
    for &source in some(&SOURCES) {
        for &(effect, pairs) in some(&PLANS) {
            assert_eq!(pairs_to_see(effect, CONFIDENCE, POWER), Some(pairs));
            let mut draw = source.open(2 * pairs as u64);
            let found = count(|| fixed(&shifted(draw(pairs), effect), effect) == Verdict::Better);
            println!("  {source:?}, {effect} deviations, {pairs} pairs: {found}");
            assert!(found >= LEAST_FOUND, "{source:?} {pairs}: {found}");
            assert!(found < TRIALS - 4, "the pairs are not too many: {found}");
        }
    }
}

#[test]
fn a_deviation_from_eight_pilot_pairs_is_enough() {
    println!(
        "the planned effect, found of 400 where the deviation is the upper 80 % bound from 8 pilot pairs"
    );
    for &source in some(&SOURCES) {
        for &(effect, _) in some(&PLANS) {
            let mut draw = source.open(77);
            let mut planned = Vec::new();
            let found = count(|| {
                let bound = Deviation::from_differences(&draw(8)).unwrap().upper_bound();
                let pairs = pairs_to_see(effect / bound, CONFIDENCE, POWER).unwrap();
                planned.push(pairs as f64);
                fixed(&shifted(draw(pairs), effect), effect) == Verdict::Better
            });
            let mean = xrun::statistics::mean(&planned);
            println!("  {source:?}, {effect} deviations: {found}, {mean:.1} pairs on average");
            assert!(found >= LEAST_FOUND, "{source:?} {effect}: {found}");
        }
    }
}

#[test]
fn no_difference_is_shown_at_the_planned_pairs() {
    println!(
        "no difference that matters, shown of 400 at the planned pairs | where the difference is at the limit"
    );
    for &source in some(&SOURCES) {
        for &(effect, _) in some(&PLANS) {
            let pairs = pairs_to_show_equivalence(effect, CONFIDENCE, POWER).unwrap();
            let mut draw = source.open(3 * pairs as u64);
            let shown = count(|| fixed(&draw(pairs), effect) == Verdict::NoDifference);
            // At the limit, each of two one-sided tests errs with half of 0.05.
            let wrong = count(|| fixed(&shifted(draw(pairs), effect), effect) == Verdict::NoDifference);
            println!("  {source:?}, ± {effect} deviations, {pairs} pairs: {shown} | {wrong}");
            assert!(shown >= LEAST_FOUND, "{source:?} {pairs}: {shown}");
            assert!(wrong <= 20, "{source:?} {pairs}: {wrong}");
        }
    }
}
