//! Standard tasks: what is listed and shown, and the tokens of requests.

use crate::place::Place;
use serde_json::{Value, json};

/// A definition by its path asks the same as the one that xrun brings, whose file it is.
#[test]
fn a_task_is_shown_with_its_first_prompt_and_its_tokens() {
    let place = Place::new();
    let row = "{\"question\": \"is it\", \"passage\": \"It \u{1b}is.\", \"label\": 1}\n"
        .replace('\u{1b}', "\\u001b");
    place.write("data/boolq.jsonl", b"");
    place.write("data/super_glue/boolq/validation.jsonl", row.repeat(2).as_bytes());
    let listed = place.xrun(&["tasks", "list"]).succeeds().stdout;
    assert!(listed.contains("boolq") && listed.contains("\nsmall: hellaswag, "), "{listed}");
    place.xrun(&["tasks", "show", "small"]).ended(2).says(&["small is a set of tasks; name one task"]);
    place.xrun(&["tasks", "show", "bolq"]).ended(2).says(&["did you mean boolq?"]);
    let shown =
        place.xrun(&["tasks", "show", "boolq", "--data", "data", "--tokenizer", "byte"]).succeeds().stdout;
    assert!(shown.contains("2 items, 4 requests, 142 tokens"), "{shown}");
    assert!(shown.contains("--- 2 (right)\nIt ␛is.\nQuestion: is it?\nAnswer:▶ yes\n"), "{shown}");

    place.write("own.toml", include_bytes!("../../../data/tasks/boolq.toml"));
    let show = ["--data", "data", "--tokenizer", "byte", "--limit", "1", "--max-len", "7", "--requests"];
    let requests = |task: &str| {
        let lines = place.xrun(&[&["tasks", "show", task], &show[..]].concat()).succeeds().stdout;
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let made = requests("own.toml");
    assert_eq!(made, requests("boolq"));
    assert_eq!(made.len(), 2);
    let bytes = |text: &str| json!(text.bytes().collect::<Vec<u8>>());
    let second = &made[1];
    // Seven tokens are read, and the last one is only predicted.
    assert_eq!((&second["context"], &second["continuation"]), (&bytes("wer:"), &bytes(" yes")));
    assert_eq!((&second["dropped"], &second["gold"], &second["line"]), (&json!(28), &json!(1), &json!(1)));

    place.write(
        "data/super_glue/boolq/validation.jsonl",
        row.replace("\"label\": 1", "\"label\": 2").as_bytes(),
    );
    place
        .xrun(&[&["tasks", "show", "boolq"], &show[..]].concat())
        .ended(2)
        .says(&["validation.jsonl:1: the right choice is \"2\", and the item has the choices 0 to 1"]);
}
