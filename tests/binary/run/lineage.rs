//! What a resume repairs and drops, and how far a run got: pointers, damaged rows, descriptors, figures over
//! a fork's whole lineage.

use crate::place::{Place, Run, STEPS};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// A killed process may have published its last checkpoint without pointing to it.
#[test]
fn a_resume_repairs_pointers_and_removes_surplus_checkpoints() {
    let best = ["tiny.toml", "checkpoint.keep_best=true", "validation.interval=5"];
    let whole = Place::new();
    whole.xrun(&[&best[..], &["checkpoint.keep=1"]].concat()).succeeds();
    let whole = whole.run();
    let kept = |run: &Run| {
        let names = fs::read_dir(run.checkpoints()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let pointers = ["latest", "best"].map(|name| run.text(&format!("checkpoint/{name}")));
        (names, pointers)
    };
    let expected = kept(&whole);
    for status in ["running", "ok"] {
        let place = Place::new();
        place.xrun(&[&best[..], &["checkpoint.keep=4"]].concat()).succeeds();
        let run = place.run();
        for pointer in ["latest", "best"] {
            fs::write(run.checkpoints().join(pointer), "step-000015\n").unwrap();
        }
        let summary = run.text("summary.json");
        let state = summary.replace("\"status\": \"ok\"", &format!("\"status\": \"{status}\""));
        fs::write(run.path.join("summary.json"), state).unwrap();
        place.xrun(&["resume", run.name(), "checkpoint.keep=1"]).succeeds();
        assert_eq!(kept(&run).1, expected.1, "{status}");
        if status == "running" {
            assert_eq!(kept(&run), expected);
        }
    }
}

/// Rows behind the checkpoint are dropped, so it does not matter what became of them.
#[test]
fn damaged_rows_behind_the_checkpoint_are_dropped_and_said() {
    for file in ["metrics.csv", "timing.csv"] {
        for stretch in [0..40, 200..300] {
            let place = Place::killed_after(10);
            let run = place.run();
            let mut bytes = run.file(file);
            let row = bytes.windows(4).position(|window| window == b"\n14,").unwrap();
            let (from, to) = (row + stretch.start, (row + stretch.end).min(bytes.len() - 30));
            bytes[from..to].fill(0);
            fs::write(run.path.join(file), &bytes).unwrap();
            let said = format!("{file}:");
            place.xrun(&["resume", "--quiet"]).succeeds().says(&[&said, "behind the checkpoint", "dropped"]);
            run.ended_as_uninterrupted();
        }
    }
}

/// On NFS and sshfs, a folder with an open file cannot be removed.
#[test]
fn a_resumed_run_holds_no_file_of_its_checkpoint_open() {
    let place = Place::new();
    let long = ["training.steps=100000", "checkpoint.interval=5", "validation.interval=0"];
    let mut running = place.start(&[&["tiny.toml"], &long[..]].concat());
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 12)));
    running.signal("TERM");
    running.ends().ended(75);
    let run = place.run();
    let rows = run.rows();
    let mut running = place.start(&["resume", "checkpoint.background=never"]);
    assert!(running.until(|| run.rows() > rows + 2));
    // The removal of a checkpoint opens its folder for a moment, so what counts is what every look sees.
    let mut held: Option<BTreeSet<PathBuf>> = None;
    for _ in 0..20 {
        let open = fs::read_dir(format!("/proc/{}/fd", running.id())).unwrap();
        // A descriptor may be closed between the list and the look.
        let open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let now = open.filter(|path| path.to_string_lossy().contains(&format!("step-{rows:06}"))).collect();
        held = Some(held.map_or_else(|| BTreeSet::clone(&now), |before| &before & &now));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(held, Some(BTreeSet::new()));
    running.signal("TERM");
    running.ends().ended(75);
}

#[test]
fn lists_say_how_far_a_killed_run_got() {
    let place = Place::new();
    let mut running = place.start(&["tiny.toml", "training.steps=100000", "validation.interval=0"]);
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 20)));
    assert!(running.kill());
    let run = place.run();
    let steps = run.rows() as u64;
    let written = run.json("summary.json")["steps"].as_u64().unwrap();
    assert!(written < steps, "the summary is older than the rows");
    assert_eq!((run.summary().steps, run.summary().tokens_seen), (steps, steps * 4 * 32));
    let listed = place.xrun(&["runs", "steps>10"]).succeeds().stdout;
    assert!(listed.contains(&format!("{steps} of")), "{listed}");
    let hash = run.path.file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().to_owned();
    let watched = place.xrun(&["watch", "--once"]).succeeds().stdout;
    assert!(watched.contains(&steps.to_string()), "{hash}: {watched}");
}

/// A fork without changes has the bits of its parent, and so its figures, wherever it began.
#[test]
fn a_fork_with_the_bits_of_its_parent_has_its_training_loss() {
    let place = Place::new();
    let saved = "checkpoint.steps=[10,26,27,28,29]";
    place.xrun(&["tiny.toml", saved]).succeeds();
    let parent = place.run();
    for step in ["10", "26", "28", "29"] {
        place.xrun(&["resume", parent.name(), "--fork", "--at", step]).succeeds();
    }
    let forks: Vec<Run> = place.runs().into_iter().filter(|run| run.path != parent.path).collect();
    assert_eq!(forks.len(), 4);
    for fork in &forks {
        let (mine, whole) = (fork.summary(), parent.summary());
        assert_eq!((mine.steps, mine.val_loss.last), (STEPS, whole.val_loss.last));
        assert_eq!(mine.train_loss.smoothed, whole.train_loss.smoothed, "{:?}", mine.forked_from);
        assert_eq!(mine.train_loss.smoothed.unwrap().steps, 3);
        place.xrun(&["keep", fork.name()]).succeeds();
    }
    // A fork of a fork, with one step of its own, one of the fork, and one of the first run.
    let at = |run: &&Run| run.summary().forked_from.unwrap().step == 28;
    let middle = forks.iter().find(at).unwrap();
    place.xrun(&["resume", middle.name(), "--fork", "--at", "29"]).succeeds();
    let newest = place
        .runs()
        .into_iter()
        .find(|run| run.summary().forked_from.is_some_and(|fork| middle.name().ends_with(&fork.run)));
    assert_eq!(newest.unwrap().summary().train_loss.smoothed, parent.summary().train_loss.smoothed);
}

/// Rows are verified against the checkpoint, and so are the texts that a summary keeps.
#[test]
fn changed_samples_are_left_out_and_said() {
    let place = Place::killed_after(20);
    let run = place.run();
    let text = run.summary().samples[0].text.clone();
    let shown = serde_json::to_string(&text).unwrap();
    let changed = serde_json::to_string(&format!("{text}x")).unwrap();
    let summary = run.text("summary.json");
    assert!(summary.contains(&shown), "{summary}");
    fs::write(run.path.join("summary.json"), summary.replacen(&shown, &changed, 1)).unwrap();
    place.xrun(&["resume", "--quiet"]).succeeds().says(&["the samples in summary.json were changed"]);
    let steps: Vec<u64> = run.summary().samples.iter().map(|sample| sample.step).collect();
    assert_eq!(steps, [30], "those of the steps that were trained again");
}

/// Nothing that a resume reads back from the summary is taken for true if it was changed.
#[test]
fn a_summary_that_contradicts_the_origin_is_refused() {
    for (field, from, to) in [
        ("run", "\"run\": \"2", "\"run\": \"3"),
        ("recipe", "\"recipe\": \"tiny", "\"recipe\": \"tinz"),
        ("corpus_hash", "\"corpus_hash\": \"", "\"corpus_hash\": \"0"),
        (
            "forked_from",
            "\"forked_from\": null",
            "\"forked_from\": {\"run\": \"x\", \"step\": 1, \"tokens_seen\": 2}",
        ),
    ] {
        let place = Place::killed_after(20);
        let run = place.run();
        let summary = run.text("summary.json");
        assert!(summary.contains(from), "{from}");
        fs::write(run.path.join("summary.json"), summary.replacen(from, to, 1)).unwrap();
        let before = run.files();
        for arguments in [&["resume", run.name()][..], &["resume", run.name(), "--fork", "training.steps=40"]]
        {
            place.xrun(arguments).ended(1).says(&["contradict each other about", field]);
        }
        assert!(run.files() == before, "{field}");
    }
}
