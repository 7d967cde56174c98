//! Blocks of curves: runs of several seeds, in arms.

use crate::place::Place;
use std::fs;

/// Makes a place with kept runs of three seeds, with and without QK norm, and a page with the block.
pub fn place(attributes: &str) -> Place {
    let place = Place::new();
    for qk_norm in ["true", "false"] {
        for seed in ["1", "2", "3"] {
            let changes = [format!("model.qk_norm={qk_norm}"), format!("training.seed={seed}")];
            let short = ["tiny.toml", "training.steps=12", "checkpoint.keep=0", "metrics.warmup=12"];
            let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
            place.xrun(&[&short[..], &changes].concat()).succeeds();
            place.xrun(&["keep", "latest"]).succeeds();
        }
    }
    let page = format!("# Page\n\n<!-- xrun:report {attributes} -->\n<!-- xrun:end -->\n");
    place.write("README.md", page.as_bytes());
    place
}

fn page(place: &Place) -> String {
    fs::read_to_string(place.path().join("README.md")).unwrap()
}

#[test]
fn arms_are_told_apart_by_what_differs_and_averaged_over_seeds() {
    let place = place("kind=\"curves\" select=\"tiny\" across=\"model.qk_norm\"");
    place.xrun(&["report"]).succeeds();
    place.xrun(&["report", "--check"]).succeeds().says(&["1 block in 1 page is current"]);
    let text = page(&place);
    let row = |arm: &str| {
        text.lines().find(|line| line.starts_with(&format!("| qk_norm={arm} "))).unwrap().to_owned()
    };
    // The mean over seeds of the last evaluation, computed by hand.
    let losses = |arm: &str| -> Vec<f64> {
        let runs = place.runs().into_iter();
        let arm_runs = runs.filter(|run| run.text("resolved.toml").contains(&format!("qk_norm = {arm}\n")));
        arm_runs.map(|run| f64::from(run.summary().val_loss.last.unwrap().loss)).collect()
    };
    for arm in ["true", "false"] {
        let losses = losses(arm);
        let mean = losses.iter().sum::<f64>() / 3.0;
        let deviation = (losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
        let row = row(arm);
        assert!(row.contains(&format!("| {mean:.4} | {deviation:.4} |")), "{row}: {losses:?}");
        assert!(["[1](", "[2](", "[3]("].iter().all(|seed| row.contains(seed)), "{row}");
    }
    assert!(text.contains("Rows differ in `model.qk_norm`"), "{text}");
    assert!(
        text.contains("alt=\"Mean val_loss over steps with a band of one standard deviation: "),
        "{text}"
    );
    for theme in ["light", "dark"] {
        let svg =
            place.path().join(format!("results/kept/comparisons/plots/tiny-curves-val_loss-{theme}.svg"));
        let svg = fs::read_to_string(svg).unwrap();
        assert_eq!(svg.matches("<polygon").count(), 2, "a band of each arm");
        assert!(svg.contains("qk_norm=false (3 runs)") && svg.contains("band: ± standard deviation"));
    }
    let lock = fs::read_to_string(place.path().join("report.lock")).unwrap();
    assert!(lock.contains("\nREADME.md curves/val_loss tiny "), "{lock}");

    // An edited number of an arm, and an edited plot.
    place.write("README.md", text.replace("[2](", "[7](").as_bytes());
    place.xrun(&["report", "--check"]).ended(3).says(&["edited by hand"]);
    place.xrun(&["report"]).succeeds();
    let picture = "results/kept/comparisons/plots/tiny-curves-val_loss-dark.svg";
    place.write(picture, b"<svg/>");
    place.xrun(&["report", "--check"]).ended(3).says(&["is not what its data draws"]);
    place.xrun(&["report"]).succeeds();
    // A plot whose block is gone is found by the check and by pruning.
    place.write("README.md", text.replace("kind=\"curves\"", "kind=\"curves\" column=\"loss\"").as_bytes());
    place.xrun(&["report", "--forget", "README.md curves/val_loss tiny"]).succeeds();
    place.xrun(&["report", "--check"]).ended(3).says(&["no block of any page shows it"]);
    let pruned = place.xrun(&["keep", "--prune", "--yes"]).succeeds().stdout;
    assert!(pruned.contains("tiny-curves-val_loss-light.svg") && !pruned.contains("curves-loss"), "{pruned}");
    place.xrun(&["report", "--check"]).succeeds();
}

#[test]
fn what_does_not_compare_or_is_not_there_is_refused() {
    let place = place("kind=\"curves\" select=\"tiny\"");
    place.xrun(&["report"]).ended(3).says(&["the rows differ in", "across=\"model.qk_norm\""]);
    let with = |attributes: &str, said: &str| {
        let page = format!("<!-- xrun:report kind=\"curves\" {attributes} -->\n<!-- xrun:end -->\n");
        place.write("README.md", page.as_bytes());
        let done = place.xrun(&["report"]);
        assert!(done.code != Some(0) && done.stderr.contains(said), "{}", done.stderr);
    };
    with("select=\"tiny\" across=\"model\" column=\"zebra\"", "has no value of `zebra` in metrics.csv");
    with("select=\"tiny\" columns=\"loss\"", "no attribute `columns`");
    with("select=\"other\"", "no run `other` is kept");
}
