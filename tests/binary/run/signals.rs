//! SIGTERM, SIGINT and the signals that announce an end: the step ends, the state is saved, and the exit code
//! is 75; a second SIGTERM or SIGINT ends the process at once.

use crate::place::{Done, Place, Run, SAME_REQUEST};
use xrun::results::Status;

/// Long enough to be stopped in the middle.
const LONG: [&str; 4] =
    ["training.steps=150", "checkpoint.interval=50", "generation.interval=40", "metrics.plots=true"];

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

/// The terminal closes, a batch system warns, or the limit of processor time is near.
#[test]
fn every_notice_saves_and_resumes() {
    for signal in ["HUP", "USR1", "USR2", "XCPU", "HUP HUP USR1"] {
        is_stopped_and_resumable(signal, &[]);
    }
}

/// `nohup` ignores SIGHUP for the program that it starts.
#[test]
fn an_ignored_hangup_stays_ignored() {
    let place = Place::new();
    let mut running = place.start_ignoring("HUP", &["tiny.toml", "training.steps=100000"]);
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 0)));
    let rows = place.run().rows();
    running.signal("HUP");
    assert!(running.until(|| place.run().rows() > rows + 20), "it trains on");
    running.signal("USR1");
    running.ends().ended(75);
}

/// However many notices come, the run saves first.
#[test]
fn a_notice_is_no_demand() {
    let place = Place::new();
    let mut running = place.start(&["tiny.toml", "training.accumulation=100000", "data.train_tokens=200000"]);
    assert!(running.until(|| {
        place.runs().first().is_some_and(|run| run.path.join("log").metadata().is_ok_and(|log| log.len() > 0))
    }));
    assert!(running.signal_twice("USR1", ACKNOWLEDGED, "HUP"));
    for signal in ["XCPU", "USR2", "TERM"] {
        std::thread::sleep(SAME_REQUEST);
        assert!(!running.is_over(), "it ended before {signal}");
        running.signal(signal);
    }
    std::thread::sleep(SAME_REQUEST);
    assert!(!running.is_over(), "the first SIGTERM asks");
    running.signal("TERM");
    running.ends().ended(143).says(&["without saving"]);
}

/// `timeout` signals its child, and then the child's whole group.
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

/// What a run prints at the first signal.
const ACKNOWLEDGED: &str = "stopping after this step";

/// Sends two signals during one long step.
fn twice(first: &str, second: &str) -> (Done, Run, Place) {
    let place = Place::new();
    // A step of many seconds.
    let mut running = place.start(&["tiny.toml", "training.accumulation=100000", "data.train_tokens=200000"]);
    assert!(running.until(|| {
        place.runs().first().is_some_and(|run| run.path.join("log").metadata().is_ok_and(|log| log.len() > 0))
    }));
    assert!(running.signal_twice(first, ACKNOWLEDGED, second), "the first signal lets the step end");
    (running.ends(), place.run(), place)
}

/// The disk has what the last save left, and the run continues from it.
#[test]
fn after_a_second_signal_a_run_goes_on_from_its_last_save() {
    // Each attempt has longer steps than the one before, until a step outlasts both signals.
    let twice_in_a_step = |micro_steps: u32| {
        let place = Place::new();
        let slow = format!("training.accumulation={micro_steps}");
        let slow = ["tiny.toml", "training.steps=2", "checkpoint.interval=1", &slow];
        let mut running = place.start(&[&slow[..], &["data.train_tokens=200000"]].concat());
        let is_saved = || place.runs().first().is_some_and(|run| run.checkpoints().join("latest").exists());
        let is_in_step = running.until(is_saved) && running.signal_twice("INT", ACKNOWLEDGED, "INT");
        let done = running.ends();
        // A row of the second step means that the step ended before the second signal.
        (is_in_step && place.run().rows() == 1).then_some((place, done))
    };
    let found = (0..4).find_map(|power| twice_in_a_step(300 * 4_u32.pow(power)));
    let (place, done) = found.expect("a step of minutes outlasts two signals");
    done.ended(130);
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
