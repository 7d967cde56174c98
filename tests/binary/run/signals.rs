//! SIGTERM and SIGINT: the step ends, the state is saved, exit 75; a second signal ends the process at once.

use crate::place::{Done, Place, Run};
use xrun::results::Status;

/// Long enough to be stopped in the middle.
const LONG: [&str; 3] = ["training.steps=150", "checkpoint.interval=50", "generation.interval=40"];

/// Starts a run and stops it by a signal after its first row.
fn stopped(signal: &str, more: &[&str]) -> (Place, Done) {
    for _ in 0..10 {
        let place = Place::new();
        let mut running = place.start(&[&["tiny.toml"], &LONG[..], more].concat());
        if running.until(|| place.runs().first().is_some_and(|run| run.rows() > 0)) {
            signal.split(' ').for_each(|signal| running.signal(signal));
            let done = running.ends();
            if done.code != Some(0) {
                return (place, done);
            }
        }
    }
    panic!("ten runs ended before they were stopped");
}

fn is_stopped_and_resumable(signal: &str, more: &[&str]) {
    let (place, done) = stopped(signal, more);
    let done = done.ended(75).says(&["stopping after this step", "stopped by a signal", "xrun resume"]);
    for once in ["stopping after this step", "stopped by a signal"] {
        assert_eq!(done.stderr.matches(once).count(), 1, "{}", done.stderr);
    }
    let run = place.run();
    let summary = run.summary();
    assert_eq!(summary.status, Status::Interrupted);
    let step = summary.steps;
    assert!((1..150).contains(&step), "{}", done.stderr);
    assert_eq!((run.newest().meta().step, run.rows() as u64), (step, step));
    assert_eq!(std::fs::read_dir(run.path.join("plots")).unwrap().count(), 12);

    place.xrun(&["resume"]).succeeds().says(&[&format!("resuming from step {step} ")]);
    let whole = Place::new();
    whole.xrun(&[&["tiny.toml"], &LONG[..], more].concat()).succeeds();
    run.ended_as(&whole.run());
}

#[test]
fn terminate_saves_and_resumes() {
    is_stopped_and_resumable("TERM", &[]);
}

#[test]
fn interrupt_saves_and_resumes() {
    is_stopped_and_resumable("INT", &[]);
}

/// As `timeout` does, which signals its child and then the group that it is in.
#[test]
fn signals_at_once_are_one_wish() {
    is_stopped_and_resumable("TERM TERM INT", &[]);
}

#[test]
fn two_ranks_stop_at_the_same_step() {
    is_stopped_and_resumable(
        "TERM",
        &["parallelism.world_size=2", "training.local_batch_size=2", "engine.threads=2"],
    );
}

/// Sends two signals into one long step.
fn twice(first: &str, second: &str) -> (Done, Run, Place) {
    let place = Place::new();
    // A step of many seconds.
    let mut running = place.start(&["tiny.toml", "training.accumulation=100000", "data.train_tokens=200000"]);
    assert!(running.until(|| {
        place.runs().first().is_some_and(|run| run.path.join("log").metadata().is_ok_and(|log| log.len() > 0))
    }));
    running.signal(first);
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert!(!running.is_over(), "the first signal lets the step end");
    running.signal(second);
    (running.ends(), place.run(), place)
}

/// What is on the disk is what the last save left, and the run goes on from it.
#[test]
fn after_a_second_signal_a_run_goes_on_from_its_last_save() {
    let place = Place::new();
    // Steps of seconds.
    let slow = ["training.steps=2", "checkpoint.interval=1", "training.accumulation=300"];
    let slow = [&["tiny.toml"], &slow[..], &["data.train_tokens=200000"]].concat();
    let mut running = place.start(&slow);
    let is_saved = || place.runs().first().is_some_and(|run| run.checkpoints().join("latest").exists());
    assert!(running.until(is_saved));
    running.signal("INT");
    std::thread::sleep(std::time::Duration::from_millis(600));
    running.signal("INT");
    running.ends().ended(130);
    let run = place.run();
    assert_eq!((run.newest().meta().step, run.rows(), run.summary().status), (1, 1, Status::Running));
    place.xrun(&["resume"]).succeeds().says(&["resuming from step 1 "]);
    assert_eq!((run.summary().status, run.rows()), (Status::Ok, 2));
}

#[test]
fn a_second_signal_ends_at_once() {
    for (first, second, code) in [("TERM", "TERM", 143), ("INT", "INT", 130), ("TERM", "INT", 130)] {
        let (ended, run, _place) = twice(first, second);
        let said = ["stopping after this step; a second signal (Ctrl-C) stops at once", "without saving"];
        ended.ended(code).says(&said);
        assert_eq!(run.rows(), 0);
        assert_eq!(run.summary().status, Status::Running);
    }
}
