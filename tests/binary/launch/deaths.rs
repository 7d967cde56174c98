//! A rank dies, hangs, or runs out of memory: the run ends soon, says which rank and where, and leaves no
//! process behind.

use super::launched::{LAUNCHERS, LaunchedRanks, Launcher, Member, signal, signal_if_there};
use crate::place::{Place, SOON, are_gone};
use std::time::Duration;
use xrun::results::Status;
use xrun::results::rows::{self, Phase, TimingRow};

/// Long enough that the fault comes in the middle.
const LONG: [&str; 4] =
    ["tiny.toml", "training.steps=100000", "generation.interval=0", "validation.interval=0"];

fn long(launcher: Launcher, place: &Place, more: &[&str], variables: &[(&str, &str)]) -> LaunchedRanks {
    launcher.start(place, 3, &[&LONG[..], more].concat(), variables)
}

/// Checks what the run says about its end, on stderr and in its summary.
#[track_caller]
fn says(place: &Place, launched: &LaunchedRanks, status: Status, texts: &[&str]) {
    let summary = place.run().summary();
    assert_eq!(summary.status, status, "{}", launched.said());
    let reason = summary.reason.unwrap_or_default();
    for text in texts {
        assert!(launched.said().contains(text), "no `{text}` in\n{}", launched.said());
        assert!(reason.contains(text), "no `{text}` in {reason}");
    }
}

#[test]
fn a_panic_ends_all_and_is_named() {
    // Rank 0 has the run's files open.
    for (launcher, rank) in LAUNCHERS.into_iter().flat_map(|launcher| [(launcher, 0), (launcher, 1)]) {
        let place = Place::new();
        let fault = format!("panic {rank} 6");
        let launched = long(launcher, &place, &[], &[("XRUN_FAULT", &fault)]).ends();
        assert!(
            launched.members.iter().all(|member| member.code == Some(1)),
            "{launcher:?}: {}",
            launched.said()
        );
        let cause = format!("rank {rank} at step 6: panicked: injected by XRUN_FAULT");
        says(&place, &launched, Status::Failed, &[&cause]);
        assert_eq!(place.run().summary().reason, Some(cause), "{launcher:?}");
        assert_eq!(place.run().rows(), 5, "what was trained is written");
    }
}

#[test]
fn a_rank_without_memory_is_a_status() {
    for launcher in LAUNCHERS {
        let place = Place::new();
        let launched = long(launcher, &place, &[], &[("XRUN_FAULT", "oom 2 4")]).ends();
        assert_eq!(launched.members[0].code, Some(4), "{launcher:?}: {}", launched.said());
        says(&place, &launched, Status::Oom, &["rank 2 at step 4: out of memory"]);
    }
}

/// A fault that never happens would look like one that was survived.
#[test]
fn a_fault_that_cannot_strike_is_refused() {
    for fault in ["panic 3 6", "panic 1 0", "panic 1 100001"] {
        let place = Place::new();
        let launched = long(Launcher::Thread, &place, &[], &[("XRUN_FAULT", fault)]).ends();
        assert_eq!(launched.members[0].code, Some(2), "{}", launched.said());
        assert!(launched.said().contains("ranks 0 to 2 and steps 1 to 100000"), "{}", launched.said());
        assert!(place.runs().is_empty());
    }
}

#[test]
fn a_killed_rank_ends_the_others() {
    for launcher in [Launcher::Process, Launcher::Env] {
        let place = Place::new();
        let mut launched = long(launcher, &place, &[], &[]);
        launched.trained(&place, 3);
        let all = launched.processes();
        signal(launched.process_of(1), "KILL");
        let launched = launched.ends_within(SOON);
        are_gone(&all, SOON);
        assert_eq!(launched.members[0].code, Some(1), "{launcher:?}: {}", launched.said());
        says(&place, &launched, Status::Failed, &["rank 1 at step "]);
    }
}

#[test]
fn a_killed_rank_0_ends_the_others() {
    for launcher in [Launcher::Process, Launcher::Env] {
        let place = Place::new();
        let mut launched = long(launcher, &place, &[], &[]);
        launched.trained(&place, 3);
        let all = launched.processes();
        signal(launched.process_of(0), "KILL");
        let launched = launched.ends_within(SOON);
        are_gone(&all, SOON);
        let said = launched.said();
        match launcher {
            // Its parent outlives it and records how it ended.
            Launcher::Process => says(&place, &launched, Status::Failed, &["rank 0 at step ", "signal 9"]),
            // Like a killed run of one rank: what it saved is there and can be resumed.
            _ => {
                assert!(said.contains("rank 0 is gone"), "{said}");
                assert_eq!(place.run().summary().status, Status::Running);
            }
        }
    }
}

#[test]
fn a_rank_that_hangs_is_found_and_named() {
    for launcher in LAUNCHERS {
        for rank in [2, 0] {
            let place = Place::new();
            let fault = format!("hang {rank} 5");
            let launched = long(launcher, &place, &["parallelism.timeout_s=3"], &[("XRUN_FAULT", &fault)]);
            let all = launched.processes();
            let launched = launched.ends_within(2 * SOON);
            are_gone(&all, SOON);
            let found = format!("no sign of rank {rank} for ");
            says(&place, &launched, Status::Failed, &[&found, "at step 5. Other ranks: rank ", "waits in "]);
        }
    }
}

/// A process that the system stopped does not even read its connection.
#[test]
fn a_stopped_process_is_found_and_ended() {
    for launcher in [Launcher::Process, Launcher::Env] {
        let place = Place::new();
        let mut launched = long(launcher, &place, &["parallelism.timeout_s=3"], &[]);
        launched.trained(&place, 3);
        let all = launched.processes();
        let stopped = launched.process_of(1);
        signal(stopped, "STOP");
        if launcher == Launcher::Env {
            // Its own launcher would end it; here nobody does.
            let mut others: Vec<Member> = Vec::new();
            std::mem::swap(&mut others, &mut launched.members);
            let stopped_member = others.remove(1);
            launched.members = others;
            let launched = launched.ends_within(2 * SOON);
            assert!(launched.said().contains("no sign of rank 1 for "), "{}", launched.said());
            drop(LaunchedRanks { launcher, members: vec![stopped_member] });
        } else {
            let launched = launched.ends_within(2 * SOON);
            says(&place, &launched, Status::Failed, &["no sign of rank 1 for "]);
        }
        are_gone(&all, SOON);
    }
}

#[test]
fn children_end_with_their_parent() {
    for name in ["KILL", "ABRT"] {
        let place = Place::new();
        let mut launched = long(Launcher::Process, &place, &[], &[]);
        launched.trained(&place, 3);
        let all = launched.processes();
        assert_eq!(all.len(), 4);
        signal(launched.members[0].id(), name);
        are_gone(&all, SOON);
    }
}

/// A child that is stopped when its parent dies cannot see its connection close; the system ends it.
#[test]
fn even_a_stopped_child_ends_with_its_parent() {
    let place = Place::new();
    let mut launched = long(Launcher::Process, &place, &[], &[]);
    launched.trained(&place, 3);
    let all = launched.processes();
    signal(launched.process_of(2), "STOP");
    signal(launched.members[0].id(), "KILL");
    are_gone(&all, SOON + Duration::from_secs(1));
}

/// Rank 0 runs the watchdog and cannot watch itself; the others notice that its process is silent.
#[test]
fn a_stopped_rank_0_does_not_keep_the_others_waiting() {
    let place = Place::new();
    let mut launched = long(Launcher::Env, &place, &["parallelism.timeout_s=2"], &[]);
    launched.trained(&place, 3);
    signal(launched.process_of(0), "STOP");
    let zero = LaunchedRanks { launcher: Launcher::Env, members: vec![launched.members.remove(0)] };
    let launched = launched.ends_within(2 * SOON);
    for member in &launched.members {
        assert_eq!(member.code, Some(1), "{}", member.stderr);
        assert!(member.stderr.contains("no sign of the process of rank 0 for "), "{}", member.stderr);
    }
    // Once awake again, it finds the others gone.
    signal(zero.members[0].id(), "CONT");
    let zero = zero.ends_within(2 * SOON);
    assert_eq!(zero.members[0].code, Some(1), "{}", zero.said());
    says(&place, &zero, Status::Failed, &["its process is gone"]);
}

/// A run of one rank is watched too, whether or not it was asked to stop.
#[test]
fn a_single_rank_that_hangs_is_ended() {
    for stopped in [false, true] {
        let place = Place::new();
        let arguments = [&LONG[..], &["parallelism.timeout_s=3"]].concat();
        let mut launched = Launcher::Thread.start(&place, 1, &arguments, &[("XRUN_FAULT", "hang 0 15")]);
        if stopped {
            launched.trained(&place, 14);
            signal(launched.members[0].id(), "TERM");
        }
        let launched = launched.ends_within(2 * SOON);
        assert_eq!(launched.members[0].code, Some(1), "{}", launched.said());
        says(&place, &launched, Status::Failed, &["no sign of rank 0 for ", "rank 0 computes, at step 15"]);
    }
}

/// The run is complete and its rank 0 is stopped while it draws plots: the parent waits no longer than for a
/// rank that trains.
#[test]
fn a_rank_0_that_is_stopped_while_it_draws_is_ended() {
    for _ in 0..20 {
        let place = Place::new();
        let quick = [
            "tiny.toml",
            "metrics.plots=true",
            "parallelism.timeout_s=2",
            "training.steps=6",
            "generation.interval=0",
        ];
        let mut launched = Launcher::Process.start(&place, 2, &quick, &[]);
        let run = launched.trained(&place, 1);
        let zero = launched.process_of(0);
        let drawn = run.path.join("plots/loss-light.svg");
        while !drawn.exists() && !launched.members[0].is_over() {
            std::thread::sleep(Duration::from_micros(200));
        }
        signal_if_there(zero, "STOP");
        let all = launched.processes();
        let launched = launched.ends_within(2 * SOON);
        are_gone(&all, SOON);
        assert_eq!(run.summary().status, Status::Ok, "{}", launched.said());
        if launched.members[0].code == Some(0) {
            // It drew everything before it could be stopped.
            continue;
        }
        assert_eq!(launched.members[0].code, Some(1), "{}", launched.said());
        assert!(launched.said().contains("no sign of rank 0 for "), "{}", launched.said());
        assert!(launched.said().contains("rank 0 draws plots"), "{}", launched.said());
        return;
    }
    panic!("rank 0 was never stopped while it drew");
}

/// Long work shows progress, so a step, an evaluation, or reading a corpus is not taken for a hang.
#[test]
fn work_that_takes_longer_than_the_timeout_is_no_hang() {
    const TIMEOUT_MS: f64 = 1500.0;
    let one_step = ["tiny.toml", "training.steps=1", "generation.interval=0", "validation.steps=0"];
    let trained = |launcher: Launcher, world, micro_steps: usize, held_out: usize, timeout_ms: f64| {
        let place = Place::new();
        let more = [
            format!("training.accumulation={micro_steps}"),
            format!("data.validation_tokens={held_out}"),
            format!("parallelism.timeout_s={}", timeout_ms / 1e3),
        ];
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        launcher.trains(&place, world, &[&one_step[..], &more].concat());
        let timing: Vec<TimingRow> = rows::read(&place.run().path.join("timing.csv")).unwrap();
        let took = |evaluates: bool| {
            let rows = timing.iter().filter(|row| (row.phase == Phase::Eval) == evaluates);
            rows.map(|row| row.step_ms).fold(0.0, f64::max)
        };
        (took(false), took(true))
    };
    let (few, little) = (20, 20_000);
    let (step_ms, evaluation_ms) = trained(Launcher::Thread, 1, few, little, 600_000.0);
    // Enough to take three times the timeout on this machine, as busy as it is now.
    let scaled = |size: usize, took_ms: f64| (size as f64 * (3.0 * TIMEOUT_MS / took_ms).max(1.0)) as usize;
    let (many, much) = (scaled(few, step_ms), scaled(little, evaluation_ms));
    for (launcher, world) in [(Launcher::Thread, 1), (Launcher::Process, 2)] {
        // Ranks share an evaluation, but each has its own micro-steps.
        let (step_ms, evaluation_ms) = trained(launcher, world, many, world * much, TIMEOUT_MS);
        let shortest = step_ms.min(evaluation_ms);
        assert!(shortest > TIMEOUT_MS, "too quick to show anything: {step_ms} ms, {evaluation_ms} ms");
    }
}
