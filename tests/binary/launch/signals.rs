//! Signals: all ranks stop after the same step, whichever process was told, and what they saved can be
//! resumed.

use super::launched::{LAUNCHERS, Launcher, same_bits, signal};
use crate::place::{Place, SAME_REQUEST, SOON, are_gone};
use xrun::results::Status;

const LONG: [&str; 5] = [
    "tiny.toml",
    "training.steps=150",
    "generation.interval=0",
    "validation.interval=50",
    "checkpoint.interval=50",
];

#[test]
fn a_signal_to_any_process_saves_one_step_and_goes_on() {
    let whole = Place::new();
    Launcher::Thread.trains(&whole, 2, &LONG);
    for launcher in LAUNCHERS {
        for last in [false, true] {
            let place = Place::new();
            let mut launched = launcher.start(&place, 2, &LONG, &[]);
            launched.trained(&place, 3);
            // With an external launcher, the last process is rank 1's; rank 0 hears of its signal when the
            // ranks meet at a step.
            let told = if last { launched.members.len() - 1 } else { 0 };
            signal(launched.members[told].id(), "TERM");
            let launched = launched.ends_within(SOON);
            let codes: Vec<Option<i32>> = launched.members.iter().map(|member| member.code).collect();
            assert!(
                codes.iter().all(|code| *code == Some(75)),
                "{launcher:?}: {codes:?}: {}",
                launched.said()
            );
            let run = place.run();
            let summary = run.summary();
            assert_eq!(summary.status, Status::Interrupted);
            assert_eq!((run.newest().meta().step, run.rows() as u64), (summary.steps, summary.steps));
            let name = run.name().to_owned();
            launcher.trains(&place, 2, &["resume", &name]);
            same_bits(&place.run(), &whole.run(), &format!("{launcher:?}"));
        }
    }
}

#[test]
fn a_second_signal_leaves_nobody_behind() {
    let place = Place::new();
    // A step of many seconds.
    let slow = ["tiny.toml", "training.accumulation=100000", "data.train_tokens=200000"];
    let mut launched = Launcher::Process.start(&place, 2, &slow, &[]);
    launched.trained(&place, 0);
    let all = launched.processes();
    signal(launched.members[0].id(), "TERM");
    assert!(launched.members[0].says("stopping after this step"));
    std::thread::sleep(SAME_REQUEST);
    assert!(!launched.members[0].is_over(), "the first signal lets the step end");
    signal(launched.members[0].id(), "TERM");
    let launched = launched.ends_within(SOON);
    assert_eq!(launched.members[0].code, Some(143), "{}", launched.said());
    are_gone(&all, SOON);
}
