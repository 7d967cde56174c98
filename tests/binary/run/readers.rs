//! Readers of stdout and stderr that do not read: neither training nor the end of a run waits for them.

use crate::place::{Place, SOON};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use xrun::results::Status;

/// Steps whose lines fill a pipe of 64 KiB at least twice.
const STEPS: usize = 2500;

/// Settings of a run with thousands of steps in a second, each with a line.
const FAST: [&str; 14] = [
    "model.dim=16",
    "model.ffn_dim=32",
    "model.n_heads=1",
    "training.seq_len=16",
    "training.local_batch_size=2",
    "data.tokenizer=byte",
    "metrics.interval=1",
    "metrics.plots=false",
    "checkpoint.interval=1000000",
    "validation.interval=1000000",
    "generation.samples=0",
    "generation.interval=1000000",
    "parallelism.timeout_s=5",
    "model.dropout=0",
];

/// Starts a run whose stdout, or stderr, is a pipe that nobody reads yet.
fn start(place: &Place, is_json: bool, settings: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
    command.arg("tiny.toml").args(FAST).args(settings).current_dir(place.path()).env_clear();
    let pipes = if is_json { (Stdio::piped(), Stdio::null()) } else { (Stdio::null(), Stdio::piped()) };
    command.args(is_json.then_some("--json")).stdin(Stdio::null()).stdout(pipes.0).stderr(pipes.1);
    command.spawn().unwrap()
}

/// Waits until the process ends, and returns its exit code; `None` if it does not.
fn code(child: &mut Child, patience: Duration) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if began.elapsed() > patience {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_reader_that_does_not_read_stops_no_training() {
    let steps = format!("training.steps={STEPS}");
    let processes = ["parallelism.world_size=2", "parallelism.launcher=process"];
    for (is_json, more) in [(false, &[][..]), (true, &[]), (true, &processes)] {
        let place = Place::new();
        let mut child = start(&place, is_json, &[&[steps.as_str()], more].concat());
        assert_eq!(code(&mut child, SOON), Some(0), "{is_json} {more:?}");
        assert_eq!(place.run().summary().status, Status::Ok);
        assert_eq!(place.run().rows(), STEPS);
    }
}

#[test]
fn one_signal_ends_a_run_that_nobody_reads() {
    for is_json in [false, true] {
        let place = Place::new();
        let mut child = start(&place, is_json, &["training.steps=1000000"]);
        let began = Instant::now();
        while place.runs().first().is_none_or(|run| run.rows() < STEPS) {
            assert!(began.elapsed() < SOON && child.try_wait().unwrap().is_none(), "{is_json}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        assert_eq!(code(&mut child, SOON), Some(75), "{is_json}");
        assert_eq!(place.run().summary().status, Status::Interrupted);
    }
}

/// A reader that comes late gets every line.
#[test]
fn lines_wait_for_a_reader_that_is_late() {
    let place = Place::new();
    let mut child = start(&place, true, &[&format!("training.steps={STEPS}")]);
    let began = Instant::now();
    while place.runs().first().is_none_or(|run| run.summary().status != Status::Ok) {
        assert!(began.elapsed() < SOON && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(code(&mut child, SOON), Some(0));
    let events =
        |name: &str| text.lines().filter(|line| line.starts_with(&format!("{{\"event\":\"{name}\""))).count();
    assert_eq!((events("stream"), events("step"), events("left_out")), (1, STEPS, 0));
    assert!(text.lines().last().unwrap().starts_with("{\"event\":\"finish\""));
}
