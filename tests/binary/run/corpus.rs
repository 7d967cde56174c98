//! A corpus that changes while a run reads it, and one that is too large for the machine.

use crate::place::Place;
use std::fs;
use std::process::Command;
use xrun::results::Status;

/// Makes nanoGPT's u16 tokens, cycling through the ids from `from` to `from + 249`.
fn tokens(count: u16, from: u16) -> Vec<u8> {
    (0..count).flat_map(|i| (from + i % 250).to_le_bytes()).collect()
}

const RECIPE: [&str; 6] = [
    "tiny.toml",
    "data.corpus=shards",
    "data.tokenizer=byte",
    "training.steps=100000",
    "checkpoint.interval=20",
    "metrics.interval=1",
];

/// Runs over token files that change after the first checkpoint; the error must name the changed file.
fn changed(name: &str, change: impl FnOnce(&Place), more: &[&str]) -> Place {
    let place = Place::new();
    place.write("shards/train.bin", &tokens(20_000, 0));
    place.write("shards/val.bin", &tokens(600, 0));
    let mut running = place.start(&[&RECIPE[..], more].concat());
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 25)), "it runs");
    change(&place);
    running.ends().ended(1).says(&[&format!("shards/{name} changed while it was in use")]);
    place
}

#[test]
fn token_files_that_change_end_the_run_with_a_message() {
    let overwritten = |place: &Place| _ = place.write("shards/train.bin", &tokens(20_000, 3));
    let beyond = |place: &Place| _ = place.write("shards/train.bin", &tokens(20_000, 300));
    let truncated = |place: &Place| {
        fs::File::options()
            .write(true)
            .open(place.path().join("shards/train.bin"))
            .unwrap()
            .set_len(64)
            .unwrap()
    };
    let changes: [&dyn Fn(&Place); 3] = [&overwritten, &beyond, &truncated];
    for change in changes {
        let place = changed("train.bin", change, &[]);
        let run = place.run();
        let summary = run.summary();
        assert_eq!(summary.status, Status::Failed);
        assert!(summary.reason.unwrap().contains("shards/train.bin changed"));

        // With the file as it was, the run continues.
        place.write("shards/train.bin", &tokens(20_000, 0));
        let steps = format!("training.steps={}", run.newest().meta().step + 5);
        place.xrun(&["resume", run.name(), "--fork", &steps]).succeeds();
    }
}

/// A file that no step is reading is checked at evaluations and saves.
#[test]
fn a_file_that_no_step_reads_is_noticed_at_a_save() {
    let change = |place: &Place| _ = place.write("shards/val.bin", &tokens(600, 1));
    changed("val.bin", change, &["validation.interval=0"]);
}

/// A replaced file is still read as it was, and its name reveals the change.
#[test]
fn a_replaced_file_is_noticed() {
    let change = |place: &Place| {
        let other = place.write("other.bin", &tokens(20_000, 1));
        fs::rename(other, place.path().join("shards/train.bin")).unwrap();
    };
    changed("train.bin", change, &[]);
}

#[test]
fn a_corpus_that_no_memory_holds_is_refused() {
    let place = Place::new();
    let run = "ulimit -v 8000000; exec \"$0\" \"$@\"";
    for more in ["data.train_tokens=4294967296", "data.validation_tokens=4294967296"] {
        let output = Command::new("/bin/sh")
            .args(["-c", run, env!("CARGO_BIN_EXE_xrun"), "tiny.toml", "data.corpus=random", more])
            .current_dir(place.path())
            .env_clear()
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        assert!(stderr.contains("corpus random: 4294967") && stderr.contains("xrun data"), "{stderr}");
    }
    assert!(place.runs().is_empty());
    place.xrun(&["plan", "tiny.toml", "data.corpus=random", "data.train_tokens=4294967296"]).succeeds();
}

/// New shards would be next to the wrong tokenizer, and every run on them would be mislabeled.
#[test]
fn shards_of_another_tokenizer_are_not_written_anew() {
    let place = Place::new();
    place.write("notes.txt", "Once there was a small cat that sat on a mat. ".repeat(200).as_bytes());
    let data = |corpus: &str, out: &str, more: &[&str]| {
        place.xrun(&[&["data", "--corpus", corpus, "--out", out], more].concat())
    };
    data("notes.txt", "shards", &["--tokenizer", "byte"]).succeeds();
    let said = [
        "shards/tokenizer.json is not the tokenizer in use, which is gpt2",
        "pass --tokenizer shards/tokenizer.json",
    ];
    data("shards", "re", &[]).ended(2).says(&said);
    data("notes.txt", "re", &["--validation", "shards"]).ended(2).says(&said);
    assert!(!place.path().join("re").exists());
    data("shards", "by-file", &["--tokenizer", "shards/tokenizer.json"]).succeeds();
    data("shards", "by-name", &["--tokenizer", "byte"]).succeeds();
}
