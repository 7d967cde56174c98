//! What every command does with words that it does not have, and with an output that takes nothing.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn xrun(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
    command.args(words).current_dir(std::env::temp_dir());
    command
}

fn output(words: &[&str]) -> Output {
    xrun(words).output().expect("the binary starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn words_that_are_no_commands_are_answered_whatever_follows() {
    for words in [
        &["evaluate"][..],
        &["evaluate", "--help"],
        &["lora", "-h"],
        &["--json", "chat"],
        &["train", "a.toml"],
    ] {
        let found = output(words);
        let text = stderr(&found);
        assert_eq!(found.status.code(), Some(2), "{words:?}: {text}");
        assert!(
            text.contains("there is no command `xrun ") && text.contains("next: xrun "),
            "{words:?}: {text}"
        );
    }
}

#[test]
fn an_error_before_a_run_is_an_object() {
    for words in [
        &["evaluate", "--json"][..],
        &["quickstart", "--json", "training.stepz=4"],
        &["plan", "nosuch.toml", "--json"],
        &["runs", "--json", "--nosuch"],
        &["sweep", "nosuch.toml", "--json"],
    ] {
        let found = output(words);
        let text = String::from_utf8(found.stdout.clone()).expect("JSON is text");
        let last = text.lines().last().unwrap_or_default();
        let object: serde_json::Value =
            serde_json::from_str(last).unwrap_or_else(|e| panic!("{words:?}: {e}: {text}{}", stderr(&found)));
        assert!(object["event"] == "error" && object["message"].is_string(), "{words:?}: {text}");
        assert!(!found.status.success());
    }
}

#[test]
fn suggestions_name_what_is_meant() {
    for (words, says) in [
        (&["quickstart", "engine.device=gpu"][..], "did you mean \"cuda\"?"),
        (&["quickstart", "training.tokens=1000"], "training.steps is the length of a run"),
        (&["quickstart", "-o", "results2"], "--results DIR"),
        (&["quickstart", "optimizer.lr=.001"], "write 0.001"),
        (&["quickstart", "data.seed=007"], "write 7"),
        (&["quickstart", "data.seperator=x"], "did you mean data.document_separator?"),
        (&["quickstart", "training.local_bach_size=4"], "did you mean training.local_batch_size?"),
        (&["quickstart", "model.dim=\"64\""], "write 64 without the quotes"),
    ] {
        let text = stderr(&output(words));
        assert!(text.contains(says), "{words:?}: {text}");
    }
    let plain = stderr(&output(&["quickstart", "optimizer.lr=.001"]));
    assert!(!plain.contains("without the quotes"), "{plain}");
}

/// Every command that prints ends with an error if its output is lost, and without one if its reader has
/// gone.
#[test]
fn a_full_device_behind_stdout_is_an_error() {
    let tiny = ["quickstart", "training.steps=1", "model.dim=32", "model.n_layers=1", "checkpoint.keep=0"];
    let results = tempfile::tempdir().expect("a folder");
    let folder = results.path().to_str().expect("a path").to_owned();
    let run: Vec<&str> =
        [&tiny[..], &["data.train_tokens=10000", "-q", "lr_scheduler.warmup_steps=0", "--results", &folder]]
            .concat();
    let commands: [&[&str]; 8] = [
        &["ls"],
        &["schema"],
        &["--help"],
        &["--version"],
        &["plan", "quickstart", "--json"],
        &["plan", "quickstart", "--explain"],
        &["completions", "bash"],
        &run,
    ];
    for words in commands {
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let found = xrun(words).stdout(full).output().expect("the binary starts");
        let text = stderr(&found);
        assert!(!found.status.success() && text.contains("cannot write to stdout"), "{words:?}: {text}");
        let mut child = xrun(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let found = child.wait_with_output().expect("it ends");
        assert!(found.status.success(), "{words:?}: {}", stderr(&found));
    }
}

#[test]
fn limits_that_would_end_a_command_without_a_word_are_said() {
    let found = xrun(&["ls"]).env("RAYON_NUM_THREADS", "100000").output().expect("the binary starts");
    assert_eq!(found.status.code(), Some(2));
    assert!(stderr(&found).contains("RAYON_NUM_THREADS"), "{}", stderr(&found));
    let shell = format!("ulimit -s 64; exec {} ls", env!("CARGO_BIN_EXE_xrun"));
    let found = Command::new("sh").args(["-c", &shell]).output().expect("a shell starts");
    assert_eq!(found.status.code(), Some(1), "{}", stderr(&found));
    assert!(stderr(&found).contains("ulimit -s 8192"), "{}", stderr(&found));
}
