//! Figures in sentences.

use super::compared;
use super::place::{NEWER, Place, RUN};
use std::fs;

fn value(attributes: &str) -> String {
    format!("<!-- xrun:value {attributes} --><!-- xrun:end -->")
}

/// Makes a page with a sentence, and fills it in.
fn with_sentence(place: &Place, sentence: &str) -> String {
    let _ = fs::remove_file(place.path("report.lock"));
    fs::write(place.path("README.md"), format!("{sentence}\n")).unwrap();
    place.xrun(&["report"]).ended(0);
    place.xrun(&["report", "--check"]).ended(0);
    shown(&place.text("README.md"))
}

/// Returns a text without comments, as a reader of the page sees it.
fn shown(page: &str) -> String {
    let mut parts = page.split("<!--");
    let first = parts.next().unwrap().to_owned();
    first + &parts.map(|part| part.split_once("-->").unwrap().1).collect::<String>()
}

#[test]
fn a_value_is_filled_with_its_digits_and_held() {
    let place = Place::new();
    let of = |more: &str| value(&format!("select=\"quickstart\" {more}"));
    let sentence = format!(
        "- It reached {} after *{}* steps at {} tokens/s ({}; lr {}), {} ×.",
        of("column=\"val_loss\""),
        of("column=\"steps\""),
        of("column=\"tok_s\" form=\"short\""),
        of("column=\"tok_s\" digits=\"1\""),
        of("column=\"optimizer.lr\""),
        of("column=\"val_loss_over_floor\" digits=\"2\"\n  where=\"model.dim=128\"")
    );
    assert_eq!(
        with_sentence(&place, &sentence),
        "- It reached 1.1169 after *700* steps at 24.8k tokens/s (24,779.7; lr 0.003), 1.10 ×.\n"
    );
    let lock = place.text("report.lock");
    assert_eq!(lock.lines().filter(|line| line.starts_with("README.md value/")).count(), 6, "{lock}");
    assert!(lock.contains("README.md value/tok_s quickstart#2 "), "{lock}");

    place.edit("README.md", ">1.1169<", ">1.0169<");
    place.is_red(
        &[
            "README.md:1: value `val_loss` of `quickstart`: it was edited by hand",
            "1.0169",
            "1.1169",
            "fix: xrun report",
        ],
        true,
    );
    place.edit("README.md", ">700<", "><");
    place.is_red(&["value `steps` of `quickstart`: it was edited by hand"], true);
    place.keep_as(NEWER, &[]);
    place.is_red(&["value `steps` of `quickstart`"], true);
    let page = place.text("README.md");
    fs::write(place.path("README.md"), shown(&page)).unwrap();
    place.is_red(&["`README.md value/steps quickstart` has no block any more"], false);
}

#[test]
fn a_value_of_a_changed_run_is_red() {
    let place = Place::new();
    with_sentence(
        &place,
        &format!("A loss of {}.", value(&format!("select=\"{RUN}\" column=\"train_loss\""))),
    );
    place.edit(&format!("results/kept/{RUN}/metrics.csv"), "6.406057", "6.406058");
    place.is_red(&["value `train_loss` of `quickstart/", "metrics.csv was changed since it was kept"], false);
}

#[test]
fn wrong_values_are_named() {
    let place = Place::new();
    for (attributes, said) in [
        ("select=\"quickstart\" column=\"val_los\"", "no column `val_los`; there are"),
        ("select=\"quickstart\" column=\"model.din\"", "did you mean `model.dim`?"),
        ("select=\"quickstart\" column=\"mfu_pct\"", "measured no `mfu_pct`"),
        ("select=\"quickstart\" column=\"status\" digits=\"2\"", "`digits` and `form` apply only to figures"),
        ("select=\"quickstat\" column=\"loss\"", "no run `quickstat` is kept"),
        ("select=\"quickstart\"", "no `column`"),
        ("select=\"quickstart\" column=\"loss\" digits=\"x\"", "`digits` is a number"),
    ] {
        fs::write(place.path("README.md"), format!("It is {}.\n", value(attributes))).unwrap();
        place.xrun(&["report", "--check"]).ended(3).says(&["README.md:1: ", said]);
    }
    for (text, said) in [
        (value("select=\"quickstart\" column=\"loss\""), "begins its line"),
        ("It is <!-- xrun:value select=\"quickstart\" column=\"loss\" -->1.\n".to_owned(), "a value without"),
    ] {
        fs::write(place.path("README.md"), text).unwrap();
        place.xrun(&["report", "--check"]).ended(3).says(&["README.md:1: ", said]);
    }
}

#[test]
fn a_comparison_has_values_too() {
    let place = compared::place_with(&[]);
    let of = |column: &str| value(&format!("comparison=\"fused\" column=\"{column}\""));
    let sentence = format!(
        "It is {}: {} times ({} to {}), {} tokens/s.",
        of("verdict"),
        of("ratio"),
        of("ratio_low\" digits=\"2"),
        of("ratio_high"),
        of("after.tok_s")
    );
    assert_eq!(
        with_sentence(&place, &sentence),
        "It is faster: 1.239 times (1.22 to 1.257), 24,780 tokens/s.\n"
    );
    assert!(place.text("report.lock").contains("README.md value/ratio comparisons/fused "));
    fs::write(place.path("README.md"), format!("It is {}.\n", of("after.tok"))).unwrap();
    place
        .xrun(&["report", "--check"])
        .ended(3)
        .says(&["the comparison measured no `after.tok`; it has ratio"]);
}
