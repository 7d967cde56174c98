//! Blocks of quality comparisons, and such comparisons kept and replayed.

use super::curves;
use crate::place::{Place, Run};
use serde_json::{Value, json};
use std::fs;
use xrun::results::measure::{Measure, MeasuredRun};
use xrun::statistics::{Direction, paired_difference, verdict};

const BLOCK: &str = "kind=\"quality\" select=\"norms\"";

/// Makes a quality comparison of the runs here and returns its folder. `arms` are the values of
/// `model.qk_norm` in baseline and candidate.
fn compared(place: &Place, name: &str, arms: [&str; 2]) -> String {
    let measure: Measure = "val_loss".parse().unwrap();
    let value = |run: &Run| MeasuredRun::open(&run.path).unwrap().measure(&measure);
    let id = |run: &Run| format!("tiny/{}", run.path.file_name().unwrap().to_str().unwrap());
    let record = |at: usize, run: &Run, seed: usize| {
        json!({
            "arm": at, "seed": seed, "run": id(run), "status": "ok",
            "metrics_hash": blake3::hash(&run.file("metrics.csv")).to_hex().to_string(),
            "values": { "val_loss": value(run) },
        })
    };
    let runs = place.runs();
    let seed = |run: &Run| {
        run.text("resolved.toml").split("\nseed = ").nth(1).unwrap()[..1].parse::<usize>().unwrap()
    };
    let arm = |qk_norm: &str| -> Vec<&Run> {
        let mut arm: Vec<&Run> = runs
            .iter()
            .filter(|run| run.text("resolved.toml").contains(&format!("qk_norm = {qk_norm}\n")))
            .collect();
        arm.sort_by_key(|run| seed(run));
        arm
    };
    let [baseline, candidate] = arms;
    let pairs: Vec<(&Run, &Run)> = arm(baseline).into_iter().zip(arm(candidate)).collect();
    let number = |run: &Run| value(run).value().unwrap();
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| number(b) - number(a)).collect();
    let found = paired_difference(&differences, 0.95).unwrap();
    let mean = |arm: &[&Run]| arm.iter().map(|run| number(run)).sum::<f64>() / 3.0;
    let arm_record = |label: &str| {
        json!({ "label": label, "command": "tiny.toml", "recipe": "tiny.toml", "settings": [],
            "seedless_hash": label, "measured": {} })
    };
    let runs: Vec<Value> = pairs
        .iter()
        .enumerate()
        .flat_map(|(at, (a, b))| [record(0, a, at + 1), record(1, b, at + 1)])
        .collect();
    let record = json!({
        "name": name, "id": "20261124T000000Z-0123abcd", "hypothesis": "the norm <helps>",
        "prediction": { "text": "worse", "held": null }, "intent": "exploratory",
        "arms": [arm_record(baseline), arm_record(candidate)], "average": "mean", "train_loss": "smoothed",
        "changes": [format!("model.qk_norm: {baseline} → {candidate}")],
        "shared_randomness": "initial values, order of the data, masks",
        "design": { "kind": "pairs", "pairs": 3 }, "confidence": 0.95, "history": [],
        "provenance": { "version": "0.1.0", "device": "cpu", "corpus_hashes": [], "began": "2026-11-24T00:00:00Z" },
        "runs": runs,
        "findings": [{
            "measure": "val_loss", "unit": "nats per token", "direction": Direction::LowerIsBetter,
            "scale": "difference", "min_effect": 0.01, "confidence": 0.95, "pairs": 3,
            "baseline": mean(&arm(baseline)), "candidate": mean(&arm(candidate)), "interval": found.interval,
            "deviation": found.deviation, "p": found.p, "basis": "differences",
            "verdict": verdict(&found.interval, 0.01, Direction::LowerIsBetter), "because": null,
        }],
        "contended": [], "finished": true, "notes": ["a note"], "rule": "the rule",
    });
    let folder = format!("results/comparisons/{name}/20261124T000000Z-0123abcd");
    place.write(
        &format!("{folder}/experiment.json"),
        serde_json::to_string_pretty(&record).unwrap().as_bytes(),
    );
    folder
}

#[test]
fn verdicts_and_pairs_are_shown_checked_kept_and_run_again() {
    let place = curves::place(BLOCK);
    let folder = compared(&place, "norms", ["true", "false"]);
    place.xrun(&["keep", "comparisons/norms"]).succeeds();
    place.xrun(&["report"]).succeeds();
    place.xrun(&["report", "--check"]).succeeds().says(&["1 block in 1 page is current"]);
    let page = fs::read_to_string(place.path().join("README.md")).unwrap();
    let record: Value =
        serde_json::from_slice(&fs::read(place.path().join(&folder).join("experiment.json")).unwrap())
            .unwrap();
    let judged = &record["findings"][0];
    let number = |value: &Value| format!("{:.4}", value.as_f64().unwrap());
    let (interval, verdict) = (&judged["interval"], judged["verdict"].as_str().unwrap());
    let interval = ["estimate", "low", "high"].map(|end| number(&interval[end]));
    for text in [
        "**norms: ",
        "> the norm &lt;helps>",
        &format!("| {} ({} to {}) |", interval[0], interval[1], interval[2]),
        &format!("| `val_loss` (nats per token) | {} |", number(&judged["baseline"])),
        "- 3 of 3 pairs by seed, judged once.",
        "- Changed keys: `model.qk_norm: true → false`.",
        "- Prediction `worse`: open.",
        "- Note: a note.",
        "the candidate is lower in ",
    ] {
        assert!(page.contains(text), "no `{text}` ({verdict}) in\n{page}");
    }
    for theme in ["light", "dark"] {
        let svg = place
            .path()
            .join("results/kept")
            .join(&folder[8..])
            .join(format!("plots/pairs-val_loss-{theme}.svg"));
        let svg = fs::read_to_string(svg).unwrap();
        // Both values of three pairs, their differences, and both arms in the legend; the smallest effect is
        // an area.
        assert_eq!(svg.matches("<circle").count(), 6 + 3 + 2, "{theme}");
        assert!(svg.matches("<polygon").count() == 1 && svg.contains("± 0.01 does not matter"));
    }
    let pruned = place.xrun(&["keep", "--prune"]).succeeds();
    assert!(
        pruned.stderr.contains("pages name everything that is kept"),
        "{}\n{}",
        pruned.stdout,
        pruned.stderr
    );

    // Replaying it gives the same bits, and so the same verdict.
    let done = place.xrun(&["replay", "README.md"]).succeeds().says(&["6 runs of 3 pairs, recorded in "]);
    for text in [
        "norms/20261124T000000Z-0123abcd: the same bits\n",
        "the same bits in 6 of 6 runs",
        ": within the recorded",
    ] {
        assert!(done.stdout.contains(text), "no `{text}` in\n{}", done.stdout);
    }

    // Another verdict in the kept file and in the page.
    place.write("README.md", page.replace(&interval[0], "0.0001").as_bytes());
    place.xrun(&["report", "--check"]).ended(3).says(&["edited by hand"]);
    place.xrun(&["report"]).succeeds();
    let kept = place.path().join("results/kept").join(&folder[8..]).join("experiment.json");
    let text = fs::read_to_string(&kept).unwrap();
    fs::write(&kept, text.replace(&format!("\"verdict\": \"{verdict}\""), "\"verdict\": \"same_bits\""))
        .unwrap();
    place.xrun(&["report", "--check"]).ended(3).says(&["its hash does not match the manifest"]);
}

#[test]
fn a_comparison_that_is_not_kept_is_named() {
    let place = Place::new();
    let page = format!("<!-- xrun:report {BLOCK} -->\n<!-- xrun:end -->\n");
    place.write("README.md", page.as_bytes());
    place.xrun(&["report"]).ended(3).says(&["no comparison `norms` is kept", "xrun keep comparisons/norms"]);
    let template = place.xrun(&["report", "--new", "quality", "--select", "norms"]).succeeds().stdout;
    assert_eq!(template, format!("<!-- xrun:report {BLOCK} -->\n<!-- xrun:end -->\n"));
}

#[test]
fn comparisons_that_follow_each_other_are_a_table_and_a_picture() {
    let place = curves::place("kind=\"chain\" select=\"norms,back\"");
    for (name, arms) in [("norms", ["true", "false"]), ("back", ["false", "true"])] {
        compared(&place, name, arms);
        place.xrun(&["keep", &format!("comparisons/{name}")]).succeeds();
    }
    place.xrun(&["report"]).succeeds();
    place.xrun(&["report", "--check"]).succeeds().says(&["1 block in 1 page is current"]);
    let page = fs::read_to_string(place.path().join("README.md")).unwrap();
    for text in
        ["| 0 | `true` |", "| 1 | `model.qk_norm: true → false` |", "| 2 | `model.qk_norm: false → true` |"]
    {
        assert!(page.contains(text), "no `{text}` in\n{page}");
    }
    // What one step of the chain gains, the step back loses.
    let differences: Vec<f64> = page
        .lines()
        .filter(|line| line.starts_with("| 1 |") || line.starts_with("| 2 |"))
        .map(|line| line.split('|').nth(4).unwrap().split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert!(differences[0] == -differences[1] && differences[0] != 0.0, "{differences:?}");
    let plots = place.path().join("results/kept/comparisons/plots");
    for theme in ["light", "dark"] {
        let svg = fs::read_to_string(plots.join(format!("norms+back-chain-{theme}.svg"))).unwrap();
        // The means of three recipes, with a legend.
        assert!(svg.matches("<circle").count() >= 3, "{theme}");
    }

    // A chain whose comparisons do not join.
    place.write("README.md", page.replace("\"norms,back\"", "\"norms,norms\"").as_bytes());
    place.xrun(&["report"]).ended(3).says(&["is not the candidate of", "into the order of the chain"]);
}
