//! Blocks of comparisons.

use super::place::{NEWER, Place, RUN, seal};
use serde_json::json;
use std::fs;
use xrun::results::experiment::{Experiment, Finding};
use xrun::results::measure::Measure;
use xrun::statistics::{Interval, Verdict};

const BLOCK: &str = "kind=\"comparison\" select=\"fused\"";

fn comparison() -> Experiment {
    let arm = |label: &str, tok_s: f64| {
        json!({
            "label": label,
            "command": format!("quickstart engine.{label}"),
            "settings": [],
            "recipe_hash": "7d757a20".repeat(8),
            "commit": "d31aa781af6c293df7d27c669e05aa86672cacd9",
            "binary": "0".repeat(64),
            "device": "cpu avx512",
            "measured": { "tok_s": tok_s, "step_ms": 2048e3 / tok_s, "train_loss": 1.0675 },
        })
    };
    let trial = |arm: usize, run: &str, around: f64| {
        let blocks: Vec<f64> = (0..20).map(|block| around + f64::from(block * 7 % 20) * 20.0).collect();
        json!({ "arm": arm, "run": run, "status": "ok", "blocks": blocks })
    };
    let mut speed = Finding::unjudged(Measure::SPEED, Some(0.01), 0.95);
    speed.interval = Some(Interval { estimate: 0.239, low: 0.221, high: 0.2567 });
    speed.verdict = Verdict::Better;
    let mut curves = Finding::unjudged(Measure::LossCurves, None, 1.0);
    (curves.verdict, curves.because) = (Verdict::SameBits, Some("the same bits".to_owned()));
    let experiment = json!({
        "name": "fused",
        "id": "20261122T000000Z-7d757a20",
        "hypothesis": "Fewer passes over memory | are faster",
        "prediction": { "text": "tok_s +10..+30%", "held": false },
        "intent": "unknown",
        "design": { "kind": "trials", "trials": 4 },
        "confidence": 0.95,
        "rule": "bootstrap over blocks",
        "arms": [arm("fused=false", 20_000.0), arm("fused=true", 24_779.7)],
        "average": "median",
        "train_loss": "last_batch",
        "changes": [],
        "history": [],
        "provenance": { "corpus_hashes": [] },
        "runs": [
            trial(0, RUN, 19_800.0),
            trial(1, NEWER, 24_500.0),
            trial(0, RUN, 19_900.0),
            trial(1, NEWER, 24_600.0),
        ],
        "findings": [speed, curves],
        "contended": [],
        "notes": [],
        "finished": true,
    });
    serde_json::from_value(experiment).unwrap()
}

/// Stores a comparison as the command would.
fn store(place: &Place, comparison: &Experiment) {
    let folder = place.kept("comparisons").join(&comparison.name).join(&comparison.id);
    // A newly kept comparison has no plots yet.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("experiment.json"), serde_json::to_vec_pretty(comparison).unwrap()).unwrap();
    seal(&folder, &comparison.name, &comparison.id);
}

fn place() -> Place {
    place_with(&[])
}

/// Makes a page with the comparison, after changing these texts in the files of its second run.
pub fn place_with(changes: &[(&str, &str, &str)]) -> Place {
    let place = Place::new();
    place.keep_as(NEWER, changes);
    store(&place, &comparison());
    place.page(&[BLOCK]);
    place.xrun(&["report"]).ended(0);
    place.xrun(&["report", "--check"]).ended(0);
    place
}

#[test]
fn a_comparison_shows_both_sides_the_verdict_and_what_it_rests_on() {
    let page = place().text("README.md");
    for text in [
        "**fused: faster**\n",
        "> Fewer passes over memory \\| are faster",
        "| tokens/s | 20,000 | 24,780 | 1.239 (1.221 to 1.257) |",
        "| ms/step | 102.40 | 82.65 | 0.807 |",
        // It was stored before losses were smoothed.
        "| loss of the last batch (nats/token) | 1.0675 | 1.0675 | 1.000 |",
        "Verdict: **faster**; differences below 1.0 % do not count.",
        "Loss gate holds: the same bits (the same bits asked for).",
        // The record says what the rule of then gave.
        "Prediction `tok_s +10..+30%`: held (by the estimate alone: **falsified**).",
        "/plots/blocks-dark.svg",
        "· [runs and commands](results/kept/comparisons/fused/20261122T000000Z-7d757a20)</sub>",
    ] {
        assert!(page.contains(text), "no `{text}` in:\n{page}");
    }
}

#[test]
fn means_are_called_means_and_stored_medians_medians() {
    let place = place();
    assert!(place.text("README.md").contains("| median over trials | before | after | after ÷ before |"));
    let (mut with_means, smoothed) = (comparison(), json!({"average": "mean", "train_loss": "smoothed"}));
    with_means.average = serde_json::from_value(smoothed["average"].clone()).unwrap();
    with_means.train_loss = serde_json::from_value(smoothed["train_loss"].clone()).unwrap();
    with_means.incomparable = vec!["step_ms".to_owned()];
    store(&place, &with_means);
    place.xrun(&["report"]).ended(0);
    let page = place.text("README.md");
    for text in [
        "| mean over trials | before | after | after ÷ before |",
        "| training loss (nats/token) | 1.0675 | 1.0675 | 1.000 |",
        "| ms/step | 102.40 | 82.65 | — |",
    ] {
        assert!(page.contains(text), "no `{text}` in:\n{page}");
    }
}

#[test]
fn everything_that_a_comparison_rests_on_is_verified() {
    let folder = "results/kept/comparisons/fused/20261122T000000Z-7d757a20";
    let touched = place();
    touched.edit(&format!("{folder}/experiment.json"), "0.239", "0.339");
    touched
        .is_red(&["block `comparison` of `fused`", "experiment.json was changed since it was kept"], false);
    seal(&touched.path(folder), "fused", "20261122T000000Z-7d757a20");
    touched.is_red(&["is not what the block was made from"], true);

    let drawn = place();
    drawn.edit(&format!("{folder}/plots/blocks-light.svg"), "<svg ", "<svg  ");
    drawn.is_red(&["blocks-light.svg is not what its data draws", "fix: xrun report README.md"], true);
    fs::remove_file(drawn.path(folder).join("plots/blocks-dark.svg")).unwrap();
    drawn.is_red(&["blocks-dark.svg is missing"], true);

    let run = place();
    run.edit(&format!("results/kept/{NEWER}/timing.csv"), "warmup", "warm-up");
    run.is_red(&["timing.csv was changed since it was kept"], false);
    fs::remove_dir_all(run.kept(NEWER)).unwrap();
    run.is_red(&["its run quickstart/20261221T093646Z-7d757a20 is not kept", "fix: xrun keep"], false);
}

#[test]
fn a_newer_comparison_and_unlike_sides_are_red() {
    let newer = place();
    let later = Experiment { id: "20261123T000000Z-7d757a20".to_owned(), ..comparison() };
    store(&newer, &later);
    newer.is_red(&["a newer kept comparison matches: comparisons/fused/20261123"], true);

    let mut unlike = comparison();
    unlike.arms[1].device = Some("NVIDIA H200".to_owned());
    let place = place();
    store(&place, &unlike);
    place.is_red(
        &["block `comparison` of `fused`: the rows differ in", "device (cpu avx512, NVIDIA H200)"],
        false,
    );
    place.edit("README.md", BLOCK, &format!("{BLOCK} across=\"device\""));
    place.xrun(&["report"]).ended(0);
    assert!(place.text("README.md").contains("Rows differ in device (cpu avx512, NVIDIA H200)"));

    // A comparison of devices says so on its own.
    unlike.changes = vec!["engine.device: auto → cuda".to_owned()];
    store(&place, &unlike);
    place.page(&[BLOCK]);
    place.xrun(&["report"]).ended(0);
}

#[test]
fn a_changed_training_key_says_so_by_itself() {
    let place = Place::new();
    let after = place.keep_as(NEWER, &[("resolved.toml", "dtype = \"fp32\"", "dtype = \"bf16\"")]);
    let mut unnamed = comparison();
    unnamed.runs.iter_mut().filter(|run| run.arm == 1).for_each(|run| run.run = Some(after.clone()));
    store(&place, &unnamed);
    place.page(&[BLOCK]);
    place.is_red(&["the rows differ in", "training.dtype (fp32, bf16)"], false);
    let named = Experiment { changes: vec!["training.dtype: fp32 → bf16".to_owned()], ..unnamed };
    store(&place, &named);
    place.xrun(&["report"]).ended(0);
    assert!(place.text("README.md").contains("Changed keys: `training.dtype: fp32 → bf16`."));
}

/// Makes a place with comparisons of widths 128 and 256; the wider one is kept first and kept again.
fn widths() -> Place {
    let place = place();
    let changes = [("resolved.toml", "dim = 128", "dim = 256")];
    let wider_run = place.keep_as("quickstart/20261220T093646Z-7d757a20", &changes);
    for (id, after) in [("20261120T000000Z-7d757a20", 11_000.0), ("20261121T000000Z-7d757a20", 12_000.0)] {
        let mut wider = Experiment { id: id.to_owned(), ..comparison() };
        wider.runs.iter_mut().for_each(|run| run.run = Some(wider_run.clone()));
        wider.arms[1].measured.insert("tok_s".to_owned(), after);
        store(&place, &wider);
    }
    place.page(&["kind=\"series\" select=\"fused\" over=\"model.dim\""]);
    place
}

#[test]
fn a_series_has_the_newest_comparison_at_each_value() {
    let place = widths();
    place.xrun(&["report"]).ended(0);
    place.xrun(&["report", "--check"]).ended(0);
    let page = place.text("README.md");
    let row = |id: &str, rest: &str| format!("| [fused](results/kept/comparisons/fused/{id}) | {rest}");
    let rows = [
        row("20261122T000000Z-7d757a20", "128 | 20,000 | 24,780 | 1.239 (1.221 to 1.257) | faster | holds |"),
        row("20261121T000000Z-7d757a20", "256 | 20,000 | 12,000 | 1.239 (1.221 to 1.257) | faster | holds |"),
    ];
    let places: Vec<usize> =
        rows.iter().map(|row| page.find(row).unwrap_or_else(|| panic!("{row}\n{page}"))).collect();
    assert!(places[0] < places[1], "in the order of the key");
    assert!(!page.contains("20261120T000000Z"), "an older one at the same value");
    assert!(page.contains("`tok_s +10..+30%`: held (by the estimate alone: **falsified**)"));
    let figure = place.text("results/kept/comparisons/plots/fused-over-model.dim-light.svg");
    assert!(figure.contains("by model.dim") && page.contains("plots/fused-over-model.dim-dark.svg"));
}

#[test]
fn a_series_is_red_when_it_grows_or_is_touched_or_has_no_numbers() {
    let grown = widths();
    grown.xrun(&["report"]).ended(0);
    store(&grown, &Experiment { id: "20261124T000000Z-7d757a20".to_owned(), ..comparison() });
    grown.is_red(&["block `series` of `fused`", "a newer kept comparison matches"], true);

    let touched = widths();
    touched.xrun(&["report"]).ended(0);
    touched.edit(
        "results/kept/comparisons/fused/20261121T000000Z-7d757a20/experiment.json",
        "12000",
        "13000",
    );
    touched.is_red(&["experiment.json was changed since it was kept"], false);

    let stray = widths();
    stray.xrun(&["report"]).ended(0);
    fs::write(stray.path("results/kept/comparisons/plots/more.svg"), "1").unwrap();
    let said = ["comparisons/plots/more.svg:1: no block of any page shows it", "fix: rm "];
    stray.xrun(&["report", "--check"]).ended(3).says(&said);

    let words = widths();
    words.page(&["kind=\"series\" select=\"fused\" over=\"training.dtype\""]);
    words.is_red(&["training.dtype has to be a number", "`fp32`"], false);
    words.page(&["kind=\"series\" select=\"fusd\" over=\"model.dim\""]);
    words.is_red(&["no comparison `fusd`", "did you mean `fused`?"], false);
}
