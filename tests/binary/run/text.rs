//! Runs on a user's text: one document or many, with and without separators.

use crate::place::{Place, Run};

fn story(i: usize) -> String {
    format!("The {} cat saw {i} birds by the lake, and the dog ran home. ", ["red", "old", "small"][i % 3])
}

fn trained(place: &Place, steps: usize, arguments: &[&str]) -> (Run, String) {
    let steps = format!("training.steps={steps}");
    let done = place.xrun(&[&["tiny.toml", &steps, "checkpoint.interval=0"], arguments].concat()).succeeds();
    (place.runs().pop().unwrap(), done.stderr)
}

#[test]
fn gpt2_tokens_train_and_read_back() {
    let place = Place::new();
    let text: String = (0..200).map(story).collect();
    place.write("book.txt", text.as_bytes());
    let (run, said) = trained(&place, 4, &["data.corpus=book.txt", "data.tokenizer=gpt2"]);
    assert!(said.contains("1 document in 1 file"), "{said}");
    let summary = run.summary();
    assert_eq!((summary.steps, summary.floor), (4, None));
    assert!(summary.train_loss.last.unwrap().loss < 10.9, "it learns from ln 50257");
    assert!(!summary.samples[0].text.is_empty());
    let sampled = place.xrun(&["sample", run.name(), "--prompt", "The red cat", "--tokens", "4"]).succeeds();
    assert!(sampled.stdout.starts_with("The red cat"), "{}", sampled.stdout);
    assert!(sampled.stdout.len() > "The red cat\n\n".len());
}

#[test]
fn one_document_is_split_by_its_tail() {
    let place = Place::new();
    let (head, tail) = ("a".repeat(9500), "b".repeat(500));
    place.write("one.txt", [head, tail].concat().as_bytes());
    // A model that has only read `a` cannot know `b`: so the tail, and nothing else, was held out.
    let (run, _) = trained(&place, 40, &["data.corpus=one.txt", "data.tokenizer=byte", "validation.steps=0"]);
    let summary = run.summary();
    let (train, held) = (summary.train_loss.last.unwrap().loss, summary.val_loss.last.unwrap().loss);
    assert!(train < 1.0 && held > 4.0, "training {train}, validation {held}");
}

#[test]
fn literal_end_tokens_are_noticed() {
    let place = Place::new();
    let text: String = (0..200).map(|i| story(i) + "\n<|endoftext|>\n").collect();
    place.write("stories.txt", text.as_bytes());
    let told = "holds the text";
    let suggestion = "set data.document_separator = \"<|endoftext|>\"";
    let corpus = ["data.corpus=stories.txt", "data.tokenizer=byte"];
    let (_, said) = trained(&place, 4, &[&corpus[..], &["--quiet"]].concat());
    assert!(said.contains(told) && said.contains(suggestion) && said.contains("200 times"), "{said}");
    let (_, said) =
        trained(&place, 4, &[&corpus[..], &["data.document_separator=\"<|endoftext|>\""]].concat());
    assert!(!said.contains(told) && said.contains("200 documents"), "{said}");
}

/// Before it begins, a plan says what the run says.
#[test]
fn a_plan_warns_of_what_its_run_warns_of() {
    let place = Place::new();
    let text: String = (0..200).map(|i| story(i) + "\n<|endoftext|>\n").collect();
    place.write("stories.txt", text.as_bytes());
    let corpus = ["tiny.toml", "data.corpus=stories.txt", "training.steps=2"];
    let warnings = |said: &str| -> Vec<String> {
        let own = |line: &&str| line.starts_with("warning: ") && !line.contains("has no effect");
        said.lines().filter(own).map(str::to_owned).collect()
    };
    let run = warnings(&place.xrun(&[&corpus[..], &["-q"]].concat()).succeeds().stderr);
    assert_eq!(run.len(), 2, "{run:?}");
    assert_eq!(warnings(&place.xrun(&[&["plan"], &corpus[..]].concat()).succeeds().stderr), run);
    let right = ["data.tokenizer=byte", "data.document_separator=\"<|endoftext|>\""];
    let done = place.xrun(&[&["plan"], &corpus[..], &right].concat()).succeeds();
    assert_eq!(warnings(&done.stderr), [""; 0]);
}

#[test]
fn words_of_the_stories_for_other_text_are_noticed() {
    let place = Place::new();
    let text: String = (0..200).map(story).collect();
    place.write("book.txt", text.as_bytes());
    let warning = "set data.tokenizer to gpt2 or byte";
    for (tokenizer, is_told) in [("stories", true), ("byte", false)] {
        let (_, said) =
            trained(&place, 2, &["data.corpus=book.txt", &format!("data.tokenizer={tokenizer}"), "--quiet"]);
        assert_eq!(said.contains(warning), is_told, "{tokenizer}: {said}");
    }
}

#[test]
fn json_lines_and_folders_train() {
    let place = Place::new();
    let lines: String =
        (0..200).map(|i| serde_json::json!({ "text": story(i) }).to_string() + "\n").collect();
    place.write("lines.jsonl", lines.as_bytes());
    let (_, said) = trained(&place, 4, &["data.corpus=lines.jsonl", "data.tokenizer=byte"]);
    assert!(said.contains("200 documents in 1 file"), "{said}");
    for i in 0..40 {
        place.write(&format!("folder/{i}.txt"), story(i).repeat(3).as_bytes());
    }
    let (_, said) = trained(&place, 4, &["data.corpus=folder", "data.tokenizer=byte"]);
    assert!(said.contains("40 documents in 40 files"), "{said}");
}

/// A check finds the held-out text in the training text, and a run with its list trains on the rest.
#[test]
fn held_out_text_is_found_and_left_out() {
    let place = Place::new();
    let words =
        |from: usize| (from..from + 60).map(|at| format!("w{} ", at * 7919 % 100_003)).collect::<String>();
    let lines = |texts: Vec<String>| -> String {
        texts.iter().map(|text| serde_json::json!({"text": text}).to_string() + "\n").collect()
    };
    let mut training: Vec<String> = (10..40).map(|n| words(100 * n)).collect();
    training[7] = words(0).to_uppercase();
    place.write("train.jsonl", lines(training).as_bytes());
    place.write("held.jsonl", lines(vec![words(0), words(9000)]).as_bytes());
    let data = ["tiny.toml", "data.corpus=train.jsonl", "data.validation=held.jsonl", "data.tokenizer=byte"];
    let check = |more: &[&str]| place.xrun(&[&["data", "check"], &data[..], more].concat()).succeeds();
    let done = check(&["--drop", "drop.txt", "--spans", "spans.jsonl"]);
    done.says(&["wrote the hashes of 1 text to drop.txt; data.drop=drop.txt"]);
    let report = check(&["--json"]).stdout;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["training"]["with_leaks"], &report["held_out"][0]["copied"]), (&1.into(), &1.into()));
    let row: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path().join("spans.jsonl")).unwrap()).unwrap();
    assert_eq!((&row["kind"], &row["line"], &row["held_out_line"]), (&"copy".into(), &8.into(), &1.into()));
    let done = check(&["data.drop=drop.txt"]);
    assert!(done.stdout.contains("training text: 29 documents"), "{}", done.stdout);
    assert!(done.stdout.contains("; 0 with held-out text"), "{}", done.stdout);
    let (run, said) = trained(&place, 2, &[&data[1..], &["data.drop=drop.txt"]].concat());
    assert!(said.contains("1 document of data.drop left out"), "{said}");
    assert!(run.text("resolved.toml").contains("drop.txt\""));
    place.xrun(&["data", "check", "tiny.toml"]).ended(2).says(&["is generated"]);
}
