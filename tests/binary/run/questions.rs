//! Questions about generated stories: written for a seed, trained on, and asked.

use crate::place::Place;
use std::collections::BTreeSet;

const SMALL: [&str; 6] = ["data", "questions", "--stories", "60", "--unseen", "4"];

fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn questions_are_written_trained_on_and_asked() {
    let place = Place::new();
    let write = |out: &str, more: &[&str]| place.xrun(&[&SMALL[..], &["--out", out], more].concat());
    write("a", &[]).succeeds().says(&["60 conversations to train on", "about 4 other stories"]);
    write("a", &[]).ended(2).says(&["a exists; name a folder that does not"]);
    write("b", &[]).succeeds();
    write("c", &["--seed", "1"]).succeeds();
    let read = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
    for name in ["train.jsonl", "unseen.jsonl"] {
        assert_eq!(read(&format!("a/{name}")), read(&format!("b/{name}")));
        assert_ne!(read(&format!("a/{name}")), read(&format!("c/{name}")));
    }
    let (train, unseen) = (lines(&read("a/train.jsonl")), lines(&read("a/unseen.jsonl")));
    let trained = |conversation: &serde_json::Value| {
        let first = conversation["messages"][0]["content"].as_str().unwrap();
        first.rsplit_once('\n').unwrap().0.to_owned()
    };
    let trained: BTreeSet<String> = train.iter().map(trained).collect();
    let unseen_stories: BTreeSet<&str> = unseen.iter().map(|item| item["story"].as_str().unwrap()).collect();
    assert_eq!((train.len(), unseen_stories.len()), (60, 4));
    assert!(unseen_stories.iter().all(|story| !trained.contains(*story)));
    let chat = [
        "tiny.toml",
        "data.corpus=a/train.jsonl",
        "data.format=chat",
        "data.chat_template=a/chat_template.jinja",
        "data.tokenizer=stories",
        "data.packing=best_fit",
        "training.seq_len=256",
        "training.steps=2",
        "generation.samples=0",
    ];
    place.xrun(&chat).succeeds().says(&["60 conversations"]);
    let asked = ["eval", "latest", "--tasks", "story_questions", "--data", "a", "--out", "scores"];
    place.xrun(&asked).succeeds();
    let scored = lines(&read("scores/story_questions-0-shot.jsonl"));
    assert_eq!(scored.len(), unseen.len());
    // The recipe beside the files is one: it misses only the run that it begins with.
    place.xrun(&["plan", "a/recipe.toml"]).ended(2).says(&["no run `quickstart` in results"]);
}
