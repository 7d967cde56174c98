//! `xrun eval`: a run, a checkpoint and an exported folder are scored on a task of a few items.

use crate::place::{Place, UNINTERRUPTED};
use serde_json::Value;
use std::fs;
use std::path::Path;

const TASK: &str = r#"
name = "colors"
title = "which word continues a story"
citation = "made for this test"
follows = "lm-evaluation-harness 0.4.13, none"

[source]
repository = "colors"
split = "test"
fields = ["story", "words", "right"]

[prompt]
kind = "choices"
context = "{{ story }}"
each = "words"
choice = "{{ choice }}"
gold = "{{ right }}"

[examples]
split = "test"
take = "sample"

[scoring]
metric = "acc"
"#;

pub const ITEMS: [&str; 4] = [
    r#"{"story": "Once upon a", "words": ["time", "stone"], "right": 0}"#,
    r#"{"story": "The sky is", "words": ["green", "blue", "wet"], "right": 1}"#,
    r#"{"story": "Ein schöner Tag für ein ganz kleines Mädchen,", "words": ["groß", "né"], "right": 0}"#,
    r#"{"story": "and then", "words": ["a dog came", "the end"], "right": 1}"#,
];

/// Writes a task of a few items into a place.
pub fn add_task(place: &Place) {
    place.write("colors.toml", TASK.as_bytes());
    place.write("data/colors/test.jsonl", ITEMS.join("\n").as_bytes());
}

fn place() -> Place {
    let place = Place::new();
    add_task(&place);
    place
}

fn eval<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["eval", model, "--tasks", "colors.toml", "--data", "data"], more].concat()
}

fn rows(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("colors-0-shot.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_item_is_kept_and_a_finished_task_is_not_scored_again() {
    let place = place();
    let run = UNINTERRUPTED.run();
    let done = place.xrun(&eval(run.name(), &[])).succeeds();
    let line = done.stdout.lines().nth(1).unwrap();
    assert!(line.starts_with("colors") && line.contains("within chance") && line.contains("acc"), "{line}");
    // The two longest stories have more bytes than the model reads.
    assert!(line.contains("prompt cut") || line.contains("prompts cut"), "{line}");
    done.says(&["of the batches was padding"]);
    let evaluations = place.path().join("results/evaluations");
    let folder = fs::read_dir(&evaluations).unwrap().next().unwrap().unwrap().path();
    let found = rows(&folder);
    assert_eq!(found.len(), ITEMS.len());
    for (row, choices) in found.iter().zip([2, 3, 2, 2]) {
        let log_probs = row["log_probs"].as_array().unwrap();
        assert!(log_probs.iter().all(|log_prob| log_prob.as_f64().unwrap() < 0.0), "{row}");
        assert_eq!((log_probs.len(), row["greedy"].as_array().unwrap().len()), (choices, choices), "{row}");
        let chosen = row["chosen"].as_u64().unwrap() as usize;
        let best = log_probs.iter().map(|log_prob| log_prob.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert_eq!(log_probs[chosen].as_f64(), Some(best), "{row}");
        assert!(row["contaminated"].is_null());
    }
    let written = fs::read(folder.join("colors-0-shot.jsonl")).unwrap();
    let summary: Value = serde_json::from_slice(&fs::read(folder.join("evaluation.json")).unwrap()).unwrap();
    assert_eq!(summary["tasks"][0]["rows_blake3"], blake3::hash(&written).to_hex().as_str());
    assert_eq!(summary["model"]["hash"], run.newest().state_hash());
    assert_eq!(summary["model"]["step"], 30);

    // As after a kill: what is whole is used, what is damaged is scored again.
    place.xrun(&eval(run.name(), &[])).succeeds().says(&["taken from", "colors"]);
    fs::write(folder.join("colors-0-shot.jsonl"), &written[..100]).unwrap();
    let again = place.xrun(&eval(run.name(), &["--json"])).succeeds();
    assert!(!again.stderr.contains("taken from"), "{}", again.stderr);
    let printed: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(printed, summary);
    assert_eq!(fs::read(folder.join("colors-0-shot.jsonl")).unwrap(), written);

    // A checkpoint's folder is a model too, and another model does not mix with the first.
    let checkpoint = run.checkpoints().join("step-000010");
    let earlier = checkpoint.to_str().unwrap();
    place.xrun(&eval(earlier, &["--out", "earlier"])).succeeds();
    assert_ne!(rows(&place.path().join("earlier")), found);
    let refused = place.xrun(&eval(run.name(), &["--out", "earlier"])).ended(2);
    refused.says(&["earlier holds the evaluation of", "--out"]);
    assert_eq!(place.xrun(&["runs"]).succeeds().stderr.matches("warning").count(), 0);

    // Two checkpoints of one run: about these two, and no noise of seeds.
    let stored = folder.file_name().unwrap().to_str().unwrap();
    let compared = place.xrun(&["compare", "--evaluations", "earlier", stored]).succeeds();
    for said in ["colors: inconclusive", "these two checkpoints only", "could have seen"] {
        assert!(compared.stdout.contains(said), "{said}: {}", compared.stdout);
    }
    let json = place
        .xrun(&["compare", "--evaluations", "earlier", "earlier", "--json", "--on", "colors"])
        .succeeds();
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&json["units"], &json["tasks"][0]["difference"]), (&"checkpoints".into(), &0.0.into()));
    let refused = place.xrun(&["compare", "--evaluations", "earlier", &format!("{stored},earlier")]).ended(2);
    refused.says(&["their step is 30 and 10", "a side is one recipe with different seeds"]);
    place.xrun(&["compare", "--evaluations", "earlier", stored, "--seeds", "8"]).ended(2);
    let ranked = place.xrun(&["eval", "--noise", "earlier", "results"]).succeeds();
    let line = ranked.stdout.lines().nth(1).unwrap();
    assert!(
        line.starts_with("colors (0 shots") && ranked.stdout.contains("note: 2 evaluations"),
        "{}",
        ranked.stdout
    );
    place.xrun(&["eval", "--noise", "data"]).ended(2).says(&["there is no evaluation in data"]);
    place.xrun(&["eval", run.name(), "--tasks", "colors.toml"]).ended(2).says(&["--data"]);
}

/// A training text with the third item in some of its documents.
fn contaminated_corpus() -> String {
    let document = |number: usize| {
        let item = if number.is_multiple_of(10) {
            "Ein schöner Tag für ein ganz kleines Mädchen, groß"
        } else {
            "Other words"
        };
        let words: Vec<String> = (0..30).map(|word| format!("word{}", 100 * number + word)).collect();
        serde_json::json!({ "text": format!("{} {item} {}", words[..15].join(" "), words[15..].join(" ")) })
    };
    (0..60).map(|number| document(number).to_string() + "\n").collect()
}

#[test]
fn items_in_training_text_are_marked_and_left_out_of_a_second_figure() {
    let place = place();
    place.write("train.jsonl", contaminated_corpus().as_bytes());
    let check = ["data", "check", "quickstart", "data.corpus=train.jsonl"];
    let tasks = ["--tasks", "colors.toml", "--data", "data", "--items", "found.json"];
    let checked = place.xrun(&[&check[..], &tasks].concat()).succeeds();
    assert!(checked.stdout.lines().any(|line| line.starts_with("task colors")), "{}", checked.stdout);
    let run = UNINTERRUPTED.run();
    let scored = place.xrun(&eval(run.name(), &["--out", "scored"])).succeeds();
    assert!(!scored.stdout.contains("in training text"), "{}", scored.stdout);
    let unmarked = rows(&place.path().join("scored"));
    // Stored scores are marked without scoring again.
    let marked =
        place.xrun(&eval(run.name(), &["--out", "scored", "--contaminated", "found.json"])).succeeds();
    assert!(marked.stderr.contains("taken from"), "{}", marked.stderr);
    assert!(marked.stdout.contains("1 item in training text; "), "{}", marked.stdout);
    let found = rows(&place.path().join("scored"));
    let marks: Vec<&Value> = found.iter().map(|row| &row["contaminated"]).collect();
    assert_eq!(marks, [false, false, true, false]);
    assert!(found.iter().zip(&unmarked).all(|(one, other)| one["log_probs"] == other["log_probs"]));
    // Of other files, nothing is known.
    place.write("data/colors/test.jsonl", ITEMS[..3].join("\n").as_bytes());
    let refused = place.xrun(&eval(run.name(), &["--out", "other", "--contaminated", "found.json"])).ended(2);
    refused.says(&[
        "its definition or its files are not those that were looked for",
        "run xrun data check again",
    ]);
}

#[test]
fn an_exported_folder_has_the_scores_of_its_run() {
    let place = place();
    let run = UNINTERRUPTED.run();
    place.xrun(&["export", run.name(), "--to", "hf"]).succeeds();
    place.xrun(&eval("hf", &["--out", "of-folder"])).succeeds();
    place.xrun(&eval(run.name(), &["--out", "of-run"])).succeeds();
    let [folder, own] = ["of-folder", "of-run"].map(|out| rows(&place.path().join(out)));
    assert_eq!(folder, own);
    place.xrun(&eval("hf", &["--checkpoint", "3"])).ended(2).says(&["leave --checkpoint and --weights out"]);
    place.xrun(&eval("hf", &["model.dim=64"])).ended(2);
    place.xrun(&eval("hf", &["--max-len", "33"])).ended(2).says(&["the model reads 1 to 32 tokens at once"]);
}

#[test]
fn a_wrong_item_ends_the_evaluation_before_anything_is_written() {
    let place = place();
    let run = UNINTERRUPTED.run();
    let wrong = [ITEMS[0], r#"{"story": "No words", "right": 0}"#].join("\n");
    place.write("data/colors/test.jsonl", wrong.as_bytes());
    let ended = place.xrun(&eval(run.name(), &["--out", "out"])).ended(2);
    ended.says(&["data/colors/test.jsonl:2", "words"]);
    assert!(!place.path().join("out").exists());
    place.xrun(&["eval", run.name(), "--tasks", "hellaswog", "--data", "data"]).ended(2).says(&["hellaswag"]);
    place
        .xrun(&eval(run.name(), &["--limit", "1", "engine.memory_limit_gib=0.0001"]))
        .says(&["does not fit"]);
}

const QUESTIONS: &str = r#"
name = "questions"
title = "what a model answers in a few words"
citation = "made for this test"
follows = "lm-evaluation-harness 0.4.13, none"

[source]
repository = "questions"
split = "test"
fields = ["ask", "accepted"]

[prompt]
kind = "generation"
context = "{{ ask }}"
each = "accepted"
answer = "{{ entry }}"

[generation]
max_tokens = 12
until = ["."]
strip = true
ignore_case = true

[examples]
split = "test"
take = "sample"

[scoring]
metric = "exact_match"
chance = 0.0
"#;

/// Writes a task of a few items that are answered by texts.
pub fn add_questions(place: &Place, accepted: &str) {
    place.write("questions.toml", QUESTIONS.as_bytes());
    let row = |ask: &str| format!("{}\n", serde_json::json!({"ask": ask, "accepted": ["no", accepted]}));
    let rows: String = ["Once upon a", "The sky is", "and then a dog came to the", "He"].map(row).concat();
    place.write("data/questions/test.jsonl", rows.as_bytes());
}

#[test]
fn generated_texts_are_kept_and_judged() {
    let place = Place::new();
    let run = UNINTERRUPTED.run();
    add_questions(&place, "-");
    let eval = |out: &str, limit: &str| {
        let asked =
            ["eval", run.name(), "--tasks", "questions.toml", "--data", "data", "--limit", limit, "--out"];
        place.xrun(&[&asked[..], &[out]].concat()).succeeds();
        let name = format!("questions-0-shot-limit-{limit}.jsonl");
        let text = fs::read_to_string(place.path().join(out).join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let all = eval("all", "4");
    assert_eq!(all.len(), 4);
    for row in &all {
        let (text, answer) = (row["text"].as_str().unwrap(), row["answer"].as_str().unwrap());
        assert!(!text.contains('.') && text.trim() == answer, "{row}");
        assert_eq!(
            (&row["adds"], row["log_probs"].as_array().unwrap().len()),
            (&serde_json::json!([0.0, 1.0]), 0)
        );
    }
    assert!(all.iter().any(|row| !row["answer"].as_str().unwrap().is_empty()), "{all:?}");
    assert_eq!(eval("some", "2"), all[..2]);

    // What the model says to the first is right now.
    let said = all[0]["answer"].as_str().unwrap().to_uppercase();
    add_questions(&place, &said);
    assert_eq!(eval("again", "4")[0]["adds"], serde_json::json!([1.0, 1.0]));
    let shown = ["tasks", "show", "questions.toml", "--data", "data", "--tokenizer", "byte"];
    let shown = place.xrun(&shown).succeeds().stdout;
    for part in ["4 items, 4 requests", "Once upon a▶", "Right: \"no\""] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}
