//! Successive halving trains the same, to the bit, as the whole grid, however often it is killed.

use super::grid::{STEPS, count, left, lines, place, runs};
use crate::place::{Place, Running};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xrun::results::ledger::{Attempt, CellStatus};

/// Nine rates; the last diverges at once.
const RATES: &str = "[sweep]\ngrid = { \"optimizer.lr\" = \
                     [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 6e-3, 1e-2, 3e-2, 10.0] }\n";
const CELLS: usize = 9;

/// An evaluation every fourth step, two rungs, and dropout whose masks depend on the step.
const RUNGS: [&str; 3] = ["validation.interval=4", "model.dropout=0.1", "sweep.rungs=[8, 20]"];

/// Returns the arguments of a sweep, with rungs or without.
fn arguments(rungs: bool) -> Vec<&'static str> {
    [&["sweep", "grid.toml"], &RUNGS[..if rungs { 3 } else { 2 }]].concat()
}

/// Returns the last line of every cell, by its rate.
fn last(place: &Place) -> BTreeMap<String, Attempt> {
    lines(place).into_iter().map(|line| (line.settings["optimizer.lr"].clone(), line)).collect()
}

/// Returns the rows of a cell's run.
fn rows(place: &Place, line: &Attempt) -> String {
    let run = line.run.as_ref().expect("a run");
    fs::read_to_string(place.path().join("results").join(run).join("metrics.csv")).unwrap()
}

/// Asserts that every cell has the same rows as in the whole grid, as far as it was trained, and that the
/// right cells continued.
#[track_caller]
fn is_part_of(halved: &Place, whole: &Place) {
    let (halved_cells, whole_cells) = (last(halved), last(whole));
    assert_eq!((halved_cells.len(), whole_cells.len()), (CELLS, CELLS));
    let mut trained = BTreeMap::new();
    for (rate, line) in &halved_cells {
        let (mine, full) = (rows(halved, line), rows(whole, &whole_cells[rate]));
        assert!(full.starts_with(&mine), "{rate}: other rows\n{mine}\n{full}");
        let steps = mine.lines().count() as u64 - 1;
        assert_eq!(line.measured.get("steps").unwrap_or_default() as u64, steps, "{rate}");
        *trained.entry((line.status, steps)).or_insert(0) += 1;
        let figures = |line: &Attempt| ["val_loss", "loss"].map(|name| line.measured.get(name));
        if line.status == CellStatus::Ok {
            assert_eq!(figures(line), figures(&whole_cells[rate]), "{rate}");
        }
    }
    let expected = [
        ((CellStatus::Ok, STEPS), 1),
        ((CellStatus::Dropped, 8), 5),
        ((CellStatus::Dropped, 20), 2),
        ((CellStatus::Diverged, 0), 1),
    ];
    let diverged = whole_cells["10.0"].measured.get("steps").unwrap_or_default() as u64;
    let expected: BTreeMap<_, _> = expected
        .into_iter()
        .map(|((status, steps), n)| {
            ((status, if status == CellStatus::Diverged { diverged } else { steps }), n)
        })
        .collect();
    assert_eq!(trained, expected);
    // The best third at each rung, by the losses of the whole grid.
    let at = |rate: &str, step: usize| -> f64 {
        let text = rows(whole, &whole_cells[rate]);
        text.lines().nth(step).unwrap().split(',').nth(3).unwrap().parse().unwrap()
    };
    let mut first: Vec<&String> = whole_cells.keys().filter(|rate| *rate != "10.0").collect();
    first.sort_by(|a, b| at(a, 8).total_cmp(&at(b, 8)));
    first.truncate(3);
    let mut second = first.clone();
    second.sort_by(|a, b| at(a, 20).total_cmp(&at(b, 20)));
    second.truncate(1);
    for rate in halved_cells.keys() {
        let line = &halved_cells[rate];
        let went_on = line.status == CellStatus::Ok || line.measured.get("steps") == Some(20.0);
        assert_eq!(went_on, first.contains(&rate), "{rate}");
        assert_eq!(line.status == CellStatus::Ok, second.contains(&rate), "{rate}");
    }
    // No checkpoint is left behind.
    for line in halved_cells.values() {
        let run = halved.path().join("results").join(line.run.as_ref().unwrap());
        assert!(!run.join("checkpoint").exists(), "{}", run.display());
    }
}

/// Trains the whole grid once.
fn whole() -> Place {
    let whole = place(RATES);
    whole.xrun(&arguments(false)).succeeds().says(&["9 of 9 cells done: 8 ok, 1 diverged"]);
    whole
}

#[test]
fn survivors_have_the_rows_of_the_whole_grid() {
    let whole = whole();
    let halved = place(RATES);
    let dry = [&arguments(true)[..], &["--dry-run"]].concat();
    let shown = halved.xrun(&dry).succeeds().stdout;
    assert!(shown.contains("9 to step 8, 3 to step 20, 1 to the end; 36 % of the steps"), "{shown}");
    let says = ["1 ok, 7 dropped, 1 diverged", "not among the best 3 of 9 at step 8"];
    halved.xrun(&arguments(true)).succeeds().says(&says);
    is_part_of(&halved, &whole);
    assert_eq!((runs(&halved), left(&halved)), (CELLS, 0), "a cell goes on in its run");

    // Nothing runs the second time; the whole grid on top runs the dropped cells.
    let before = lines(&halved);
    halved.xrun(&arguments(true)).succeeds();
    assert_eq!(lines(&halved), before);
    halved.xrun(&arguments(false)).succeeds().says(&["2 done, 7 to run", "8 ok, 1 diverged"]);
    for (rate, line) in last(&halved) {
        assert_eq!(rows(&halved, &line), rows(&whole, &last(&whole)[&rate]), "{rate}");
    }
    // Halving on top of a whole grid finds every row there.
    let before = lines(&whole);
    whole.xrun(&arguments(true)).succeeds().says(&["9 done, 0 to run"]);
    assert_eq!(lines(&whole), before);
}

#[test]
fn killed_at_random_moments_it_ends_the_same() {
    let whole = whole();
    let halved = place(RATES);
    let mut state = u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut kills = 0;
    for _ in 0..60 {
        let mut sweep: Running = halved.start(&arguments(true));
        // After one to three more lines, however fast the machine is.
        let (before, more) = (lines(&halved).len(), 1 + random(3) as usize);
        sweep.until(|| lines(&halved).len() >= before + more);
        std::thread::sleep(Duration::from_millis(random(30)));
        // Every second time, its run dies too.
        let with_run = random(2) == 0;
        let open = lines(&halved).last().filter(|line| line.status == CellStatus::Running).cloned();
        let killed = sweep.kill();
        if let Some(open) = open.filter(|_| with_run) {
            kill_run(&halved, &open);
        }
        kills += usize::from(killed);
        if !killed || count(&lines(&halved), CellStatus::Ok) > 0 {
            break;
        }
    }
    assert!(kills > 2, "it was killed {kills} times");
    halved.xrun(&arguments(true)).succeeds();
    is_part_of(&halved, &whole);
}

/// Kills the run of an attempt if it has begun and not ended.
fn kill_run(place: &Place, attempt: &Attempt) {
    let name = format!("results/sweeps/.attempts/{}-{}.jsonl", &attempt.key[..16], attempt.attempt);
    let text = fs::read_to_string(place.path().join(name)).unwrap_or_default();
    let mut events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let Some(pid) = events.find(|event| event["event"] == "begin").and_then(|event| event["pid"].as_u64())
    else {
        return;
    };
    let kill = std::process::Command::new("sh").args(["-c", &format!("kill -KILL {pid}")]).output();
    // An error means that it has ended.
    let _ = kill;
}

#[test]
fn a_stopped_sweep_goes_on_at_its_rung() {
    let whole = whole();
    let halved = place(RATES);
    let mut sweep = halved.start(&arguments(true));
    assert!(sweep.until(|| count(&lines(&halved), CellStatus::Halted) >= 2));
    sweep.signal("TERM");
    sweep.ends().ended(75).says(&["the same command continues"]);
    halved.xrun(&arguments(true)).succeeds();
    is_part_of(&halved, &whole);
}

#[test]
fn rungs_need_an_evaluation_before_the_end() {
    let place = place(RATES);
    let refused = |arguments: &[&str], says: &[&str]| {
        place.xrun(&[&["sweep", "grid.toml"][..], arguments].concat()).ended(2).says(says);
    };
    refused(&["sweep.rungs=[8, 20]"], &["a rung at step 8", "no evaluation", "validation.interval"]);
    refused(&["sweep.rungs=[8, 22]", "validation.interval=4"], &["a rung at step 22"]);
    refused(
        &["sweep.rungs=[40]", "validation.interval=4"],
        &["a rung at step 40, but training has 40 steps"],
    );
    refused(&["sweep.rungs=[0]", "validation.interval=4"], &["a rung at step 0", "steps from 1 to 39"]);
    refused(&["sweep.rungs=[]"], &["an empty list"]);
    assert!(!place.path().join("results").exists());
}
