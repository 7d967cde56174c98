//! The content of documents.

use super::*;
use crate::place::{Place, STEPS};
use serde_json::json;
use std::collections::BTreeSet;
use xrun::compare::judge::after_pairs;
use xrun::results::experiment::Experiment;

#[test]
fn runs_curves_and_logs_say_what_the_files_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = run(dir.path(), "small", "2026-11-24T10:11:12Z", 1000, "text");
    run(dir.path(), "small", "2026-11-23T10:11:12Z", 3, "text");
    let viewed = Viewed::start(dir.path());
    let table = viewed.document("/api/runs");
    let row = &table["runs"][0];
    assert_eq!(table["runs"].as_array().unwrap().len(), 2);
    assert_eq!((&row["id"], &row["status"], &row["live"]), (&json!(id(&path)), &json!("ok"), &json!(false)));
    assert_eq!((&row["figures"]["val_loss"], &row["keys"]["training.seed"]), (&json!(2.25), &json!("1000")));
    assert_eq!(table["keys"], json!(["training.seed"]));
    let columns = table["columns"].as_array().unwrap();
    let usual = columns.iter().filter(|column| column["usual"] == true);
    let usual: BTreeSet<&str> = usual.map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(usual, BTreeSet::from(["train_loss", "val_loss", "tok_s"]));

    let document = viewed.document(&format!("/api/run/{}", id(&path)));
    assert_eq!(document["samples"][0]["text"], "text");
    assert_eq!(document["has"], json!({"memory": true, "profile": false}));
    assert_eq!(document["settings"][0], json!(["model.dim", "32"]));
    let names: Vec<&str> =
        document["metrics"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["loss", "val_loss", "lr", "grad_norm", "step_ms", "tok_s"]);

    let curves = viewed
        .document(&format!("/api/curves/{}?metrics=loss,val_loss,tok_s&points=40&smooth=10", id(&path)));
    assert_eq!((&curves["from"], &curves["to"]), (&json!(1), &json!(1000)));
    let loss = &curves["metrics"]["loss"];
    assert_eq!(
        (&loss["rows"], &loss["exact"], &loss["unit"]),
        (&json!(1000), &json!(false), &json!("nats/token"))
    );
    let at = |curve: &Value, step: u64| {
        let place = curve["step"].as_array().unwrap().iter().position(|known| *known == step)?;
        Some((curve["tokens"][place].clone(), curve["seconds"][place].clone(), curve["value"][place].clone()))
    };
    // The spike and the NaN are among the forty points of a thousand rows.
    assert!(loss["value"].as_array().unwrap().len() < 50);
    assert_eq!(at(loss, 500), Some((json!(32000), json!(50.0), json!(99.5))));
    assert_eq!(at(loss, 600), Some((json!(38400), json!(60.0), json!("NaN"))));
    // There are twenty intervals; the end of the last one has no whole window around it.
    assert_eq!(loss["smooth"]["value"].as_array().unwrap().len(), 19);
    assert_eq!(curves["metrics"]["val_loss"]["step"].as_array().unwrap().len(), 10, "blanks are no values");
    assert_eq!(curves["metrics"]["tok_s"]["value"][0], 640.0);
    let part = viewed.document(&format!("/api/curves/{}?metrics=loss&from=10&to=12&scale=log", id(&path)));
    let loss = &part["metrics"]["loss"];
    assert_eq!(
        (&loss["step"], &loss["exact"], &loss["smooth"]),
        (&json!([10, 11, 12]), &json!(true), &Value::Null)
    );
    assert_eq!(loss["value"][0], 1.4);

    let log = viewed.document(&format!("/api/log/{}?lines=1", id(&path)));
    assert!(log["lines"][0].as_str().unwrap().ends_with("a line ␛[31m of the log"), "{log}");
    let ids: String = table["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| format!("id={}&", run["id"].as_str().unwrap()))
        .collect();
    let sides = viewed.document(&format!("/api/differences?{ids}"));
    let seed = sides["keys"].as_array().unwrap().iter().find(|key| key["key"] == "training.seed").unwrap();
    assert_eq!((&seed["values"], &seed["differs"]), (&json!(["1000", "3"]), &json!(true)));
    for empty in ["comparisons", "sweeps", "coordinates"] {
        assert_eq!(viewed.document(&format!("/api/{empty}"))[empty], json!([]));
    }
}

#[test]
fn medians_are_the_same_whatever_part_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = run(dir.path(), "small", "2026-11-24T10:11:12Z", 1000, "text");
    let viewed = Viewed::start(dir.path());
    let loss = |range: &str| {
        let target = format!("/api/curves/{}?metrics=loss&points=2000&smooth=20{range}", id(&path));
        viewed.document(&target)["metrics"]["loss"].clone()
    };
    let (whole, part) = (loss(""), loss("&from=300&to=400"));
    assert_eq!((&part["rows"], &part["exact"]), (&json!(1000), &json!(true)));
    let medians = |curve: &Value| curve["smooth"]["value"].as_array().unwrap().clone();
    assert_eq!(whole["smooth"]["step"][0], 11, "half a window inside the run");
    assert_eq!(medians(&part), medians(&whole)[289..390].to_vec());
    assert!(loss("&from=400&to=300").is_null(), "no rows");
}

#[test]
fn the_page_filters_and_sorts_as_xrun_runs_does() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "small", "2026-11-24T10:11:12Z", 300, "text");
    run(dir.path(), "small", "2026-11-23T10:11:12Z", 3, "text");
    run(dir.path(), "other", "2026-11-22T10:11:12Z", 20, "text");
    let viewed = Viewed::start(dir.path());
    let escaped = |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
    let matches = |filter: &str, sort: &str| {
        viewed.document(&format!("/api/matches?filter={}&sort={}", escaped(filter), escaped(sort)))
    };
    let ids = |found: &Value| -> Vec<String> {
        let ids = found["runs"].as_array().unwrap().iter();
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    let listed = |filter: &str, sort: &str| -> Vec<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
        command.args(["runs", "--json", "--results"]).arg(dir.path()).args(["--sort", sort, filter]);
        let stdout = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let folder = |line: &str| {
            let run: Value = serde_json::from_str(line).unwrap();
            id(Path::new(run["path"].as_str().unwrap()))
        };
        stdout.lines().map(folder).collect()
    };
    for filter in [
        "val_loss<2.5",
        "val_loss>2.5",
        "training.seed>=20",
        "training.seed!=3",
        "model.dim=32",
        "recipe=small",
        "status=ok",
        "status!=ok",
        "started>=2026-11-23",
        "run=20261122",
    ] {
        let found = matches(filter, "training.seed");
        assert_eq!(ids(&found), listed(filter, "training.seed"), "{filter}");
        assert_eq!(found["problems"], json!([]), "{filter}");
    }
    assert_eq!(ids(&matches("SMALL training.seed<100", "")).len(), 1, "words are searched for in any case");
    let all = ids(&matches("", "training.seed"));
    assert_eq!(ids(&matches("", "-training.seed")), all.iter().rev().cloned().collect::<Vec<_>>());
    let odd = matches("status=okay val_loss<low small", "zebra");
    let problems: Vec<&str> =
        odd["problems"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    assert!(problems.len() == 3 && problems[0].contains("did you mean ok?"), "{problems:?}");
    assert_eq!(ids(&odd).len(), 2, "what is not understood filters nothing");
    assert_eq!(viewed.get(&format!("/api/matches?filter={}", "a".repeat(1001))).status, 400);
}

/// Makes a sequential comparison with `pairs` pairs, of the held-out loss and of the steps until a loss is
/// reached.
pub(super) fn sequential(pairs: usize) -> Experiment {
    let run = |arm: usize, seed: usize, loss: f64, steps: usize| {
        let values = json!({"val_loss": {"value": loss}, "steps_until:val_loss=2": {"value": steps}});
        json!({"arm": arm, "seed": seed, "status": "ok", "values": values})
    };
    let pair = |seed: usize| {
        [run(0, seed, 2.0, 100), run(1, seed, [2.05, 1.97, 2.02, 1.96, 2.01][seed % 5], 90 + seed)]
    };
    let arm = |label: &str| {
        json!({
            "label": label, "command": label, "recipe": "r.toml", "settings": [], "seedless_hash": label,
            "measured": {},
        })
    };
    let finding = |name: &str, min_effect: Option<f64>| {
        json!({
            "measure": name, "unit": "u", "direction": "lower_is_better", "scale": "difference",
            "min_effect": min_effect, "confidence": 0.95, "pairs": 0, "basis": "nothing", "verdict": "inconclusive",
        })
    };
    let record = json!({
        "name": "c", "id": "20261124T101112Z-0123abcd", "intent": "exploratory", "arms": [arm("a"), arm("b")],
        "average": "mean", "train_loss": "smoothed", "changes": [],
        "design": {"kind": "sequential", "max_pairs": 8, "looks": []}, "confidence": 0.95, "history": [],
        "provenance": {"version": "0.1.0", "corpus_hashes": [], "began": "2026-11-24T10:11:12Z"},
        "runs": (0..pairs).flat_map(pair).collect::<Vec<Value>>(),
        "findings": [finding("val_loss", Some(0.01)), finding("steps_until:val_loss=2", None)],
        "contended": [], "finished": false, "notes": [], "rule": "the rule",
    });
    serde_json::from_value(record).unwrap()
}

#[test]
fn intervals_close_by_the_rule_of_the_comparison() {
    let dir = tempfile::tempdir().unwrap();
    let comparison = sequential(6);
    let folder = dir.path().join("comparisons").join(comparison.full_name());
    std::fs::create_dir_all(&folder).unwrap();
    comparison.write(&folder).unwrap();
    let viewed = Viewed::start(dir.path());
    let line = &viewed.document("/api/comparisons")["comparisons"][0];
    assert_eq!((&line["pairs"], &line["trials"]), (&json!(6), &Value::Null));
    let document = viewed.document(&format!("/api/comparison/{}", comparison.full_name()));
    let history = |measure: usize| document["measures"][measure]["history"].as_array().unwrap();
    let pairs: Vec<u64> = history(0).iter().map(|after| after["pairs"].as_u64().unwrap()).collect();
    assert_eq!(pairs, [4, 5, 6], "looks begin at four pairs");
    for after in history(0) {
        let pairs = usize::try_from(after["pairs"].as_u64().unwrap()).unwrap();
        let expected = after_pairs(&comparison, pairs).findings[0].interval.unwrap();
        for (end, expected) in [("low", expected.low), ("high", expected.high)] {
            assert!((after[end].as_f64().unwrap() - expected).abs() < 1e-9, "{after}: {expected}");
        }
    }
    assert!(history(1).is_empty(), "ranks have no interval");
}

/// The file of a killed run may end at any byte.
#[test]
fn truncated_rows_are_the_rows_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = run(dir.path(), "small", "2026-11-24T10:11:12Z", 3, "text");
    let whole = std::fs::read(path.join(METRICS)).unwrap();
    let viewed = Viewed::start(dir.path());
    let header = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for cut in [whole.len(), whole.len() - 1, whole.len() - 9, header + 5, header, header - 3, 0] {
        std::fs::write(path.join(METRICS), &whole[..cut]).unwrap();
        let rows = whole[..cut].iter().filter(|byte| **byte == b'\n').count().saturating_sub(1);
        let curves = viewed.document(&format!("/api/curves/{}?metrics=loss", id(&path)));
        let found = curves["metrics"]["loss"]["step"].as_array().map_or(0, Vec::len);
        assert_eq!(found, rows, "{cut}");
    }
    std::fs::write(path.join(METRICS), "step,other\n1,2\n").unwrap();
    let answer = viewed.get(&format!("/api/curves/{}", id(&path)));
    assert!(answer.status == 500 && answer.body.contains("the header is"), "{answer:?}");
}

#[test]
fn the_memory_of_a_run_is_planned_from_its_recipe_without_its_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let path = run(dir.path(), "small", "2026-11-24T10:11:12Z", 3, "text");
    let text = std::fs::read_to_string(path.join("summary.json")).unwrap();
    let summary = text.replace("\"uniform_loss\": null", &format!("\"uniform_loss\": {}", 256f64.ln()));
    std::fs::write(path.join("summary.json"), summary).unwrap();
    let viewed = Viewed::start(dir.path());
    let memory = viewed.document(&format!("/api/memory/{}", id(&path)));
    assert_eq!(memory["placement"], "arena");
    let section = &memory["sections"][0];
    let blocks = section["blocks"].as_array().unwrap();
    let end = |block: &Value| block["offset"].as_u64().unwrap() + block["bytes"].as_u64().unwrap();
    assert_eq!(blocks.iter().map(end).max(), section["arena_bytes"].as_u64());
    let model = viewed.document(&format!("/api/model/{}", id(&path)));
    let lines = model["lines"].as_array().unwrap();
    assert_eq!(
        (&lines[0]["part"], &lines[0]["line"], &model["id"]),
        (&json!("embed"), &json!(2), &json!(id(&path)))
    );
    assert!(lines[0]["statement"].as_str().unwrap().starts_with("x = "), "the built-in text");
    let sum = |name: &str| -> f64 {
        lines.iter().chain([&model["rest"]]).map(|costs| costs[name].as_f64().unwrap()).sum()
    };
    for name in ["parameters", "product_flops", "kept_bytes", "bytes"] {
        assert!(sum(name) > 0.0 && sum(name) == model["total"][name].as_f64().unwrap(), "{name} in {model}");
    }
    assert_eq!((&model["on"], &model["no_time"]), (&json!([]), &json!(["the speed of the CPU is unknown"])));
    let answer = viewed.get(&format!("/api/profile/{}", id(&path)));
    assert!(answer.status == 404 && answer.body.contains("--keep"), "{answer:?}");
}

#[test]
fn a_trained_run_has_the_memory_that_it_was_planned_with_and_the_profile_that_was_kept() {
    let place = Place::killed_after(STEPS);
    place
        .xrun(&["profile", "latest", "engine.threads=1", "--keep"])
        .ended(2)
        .says(&["keeps only results of its own recipe"]);
    place.xrun(&["profile", "tiny.toml", "--keep"]).ended(2).says(&["is not the recipe of a run"]);
    place.xrun(&["profile", "latest", "--keep", "--warmup=0", "--steps=1"]).succeeds();
    let viewed = Viewed::start(&place.path().join("results"));
    let id = id(&place.run().path);
    let memory = viewed.document(&format!("/api/memory/{id}"));
    assert_eq!(memory["note"], Value::Null, "the bytes are those that the run was planned with");
    let model = viewed.document(&format!("/api/model/{id}"));
    assert_eq!(
        model["total"]["parameters"],
        viewed.document(&format!("/api/run/{id}"))["summary"]["parameters"]
    );
    let profile = viewed.document(&format!("/api/profile/{id}"));
    let spans = profile["spans"].as_array().unwrap();
    assert!(spans.iter().any(|span| span["phase"] == "backward" && span["us"].as_f64().unwrap() > 0.0));
    assert_eq!((&profile["tokens"], &profile["id"]), (&json!(128), &json!(id)));
    assert_eq!(viewed.document(&format!("/api/run/{id}"))["has"]["profile"], true);
}
