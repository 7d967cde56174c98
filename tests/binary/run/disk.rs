//! Disks that take no checkpoint or no row: what was not saved is reported, and nothing is lost that a later
//! save can keep.

use crate::place::{Place, STEPS};
use std::process::Command;
use xrun::results::Status;
use xrun::results::rows::{MetricsRow, read};

/// A model of more than [`LIMIT`] KiB; every other file of a run is smaller.
const LARGE: [&str; 3] = ["model.dim=128", "model.ffn_dim=256", "validation.interval=0"];
const LIMIT: usize = 400;

fn large<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["tiny.toml"], &LARGE[..], more].concat()
}

#[test]
fn a_run_whose_weights_are_not_saved_is_not_ok() {
    let place = Place::new();
    let done = place.start_limited(LIMIT, &large(&[])).ends().ended(74);
    let run = place.run();
    let resume = format!("xrun resume {}", run.path.strip_prefix(place.path()).unwrap().display());
    done.says(&["all steps are trained, but checkpoint of step 30 not saved", &resume, "starts at step 0"]);
    let summary = run.summary();
    assert_eq!((summary.status, summary.steps), (Status::Unsaved, STEPS));
    assert!(summary.reason.unwrap().contains("checkpoint of step 30 not saved"));
    assert!(run.text("log").contains("unsaved: all steps are trained, but"), "{}", run.text("log"));
    assert_eq!(run.rows() as u64, STEPS);

    // The disk is as small as before: a resume loses no row, wherever it ends.
    let rows = run.text("metrics.csv");
    let mut again = place.start_limited(LIMIT, &["resume"]);
    again.until(|| run.rows() > 3 && run.summary().status == Status::Running);
    again.signal("TERM");
    assert_eq!(again.ends().code, Some(74));
    let copy = run.text("unsaved-metrics.csv");
    assert_eq!(copy, rows);

    place.xrun(&["resume"]).succeeds().says(&["starts at step 0; the ", "of steps 1 to", "are dropped"]);
    let whole = Place::new();
    whole.xrun(&large(&[])).succeeds();
    run.ended_as(&whole.run());
    assert!(!run.path.join("unsaved-metrics.csv").exists() && !run.path.join("unsaved-timing.csv").exists());
}

#[test]
fn a_signal_is_not_said_to_have_saved_what_it_did_not() {
    let place = Place::new();
    let mut running = place.start_limited(LIMIT, &large(&["training.steps=3000", "checkpoint.interval=0"]));
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 0)));
    running.signal("TERM");
    let done = running.ends().ended(74);
    assert!(!done.stderr.contains("saved;"), "{}", done.stderr);
    done.says(&["stopped by a signal, but checkpoint of step", "not saved"]);
    assert_eq!(place.run().summary().status, Status::Unsaved);
}

#[test]
fn a_cell_that_was_not_saved_is_not_done() {
    let place = Place::new();
    let sweep = [&["sweep"], &large(&["training.seed=1,2", "checkpoint.keep=2"])[..]].concat();
    place.start_limited(LIMIT, &sweep).ends().ended(1).says(&["0 of 2 cells done: 2 unsaved"]);
    place.xrun(&sweep).succeeds().says(&["2 of 2 cells done: 2 ok"]);
}

/// One row cannot be written: the state is saved after the next step, and the run stops.
#[test]
fn a_failed_row_is_followed_by_a_last_save() {
    for world in ["1", "2"] {
        let place = Place::new();
        let recipe = ["tiny.toml", "checkpoint.interval=0", "engine.threads=2", "parallelism.world_size"];
        let world = format!("{}={world}", recipe[3]);
        let recipe = [&recipe[..3], &[world.as_str()]].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_xrun"))
            .args(&recipe)
            .current_dir(place.path())
            .env_clear()
            .env("XRUN_FAULT", "disk 0 12")
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(75), "{stderr}");
        let said = "cannot write the rows of step 12: disk full, injected by XRUN_FAULT after step 13, saved; continue";
        assert!(stderr.contains(said), "{stderr}");
        let run = place.run();
        let summary = run.summary();
        assert_eq!((summary.status, summary.steps), (Status::Interrupted, 13));
        assert_eq!(run.newest().meta().step, 13);
        assert!(run.text("log").contains("interrupted: cannot write the rows of step 12"));
        place.xrun(&["resume"]).succeeds().says(&["resuming from step 13"]);
        let whole = Place::new();
        whole.xrun(&recipe).succeeds();
        run.ended_as(&whole.run());
    }
}

/// The row file is the one that grows too large, and the checkpoint is even larger.
#[test]
fn a_disk_that_takes_neither_rows_nor_a_save_leaves_no_running_run() {
    let place = Place::new();
    let recipe =
        ["tiny.toml", "data.tokenizer=byte", "training.steps=1000", "checkpoint.interval=0", "model.dim=48"];
    let done = place.start_limited(48, &recipe).ends().ended(74);
    done.says(&["timing.csv", "the run stops after one last save", "but checkpoint of step"]);
    let run = place.run();
    let summary = run.summary();
    assert_eq!(summary.status, Status::Unsaved);
    assert!((10..1000).contains(&summary.steps), "{}", summary.steps);
    let rows = read::<MetricsRow>(&run.path.join("metrics.csv")).unwrap();
    assert_eq!(rows.len() as u64, summary.steps);
    assert!(run.text("log").contains("unsaved: cannot write"), "{}", run.text("log"));
}
