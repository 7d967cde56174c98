//! Cooldowns from one trunk: every cell equals the uninterrupted training of its length to the bit, however
//! often the sweep is killed.

use super::grid::{count, left, lines, place};
use crate::place::{Place, Running};
use std::collections::BTreeMap;
use std::fs;
use xrun::checkpoint::{first_difference, newest};
use xrun::results::ledger::{Attempt, CellStatus};

/// Cooldowns of a fifth, from steps 16 and 32, with two rates. Dropout depends on the step, and the batch
/// grows on the trunk.
const COOLDOWNS: &str = "[sweep]\ncooldowns = [32, 16]\ngrid = { \"optimizer.lr\" = [1e-3, 3e-3] }\n";

const COMMON: [&str; 6] = [
    "lr_scheduler.decay=wsd",
    "lr_scheduler.cooldown=one_minus_sqrt",
    "model.dropout=0.1",
    "training.batch_ramp=[[10, 2]]",
    "training.accumulation=2",
    "checkpoint.keep=1",
];

/// Returns the arguments of the sweep with cooldowns, or of one that trains each cell from step 0.
fn arguments(cooldowns: bool) -> Vec<&'static str> {
    let lengths = ["training.steps,lr_scheduler.decay_steps=40:8,20:4"];
    let file: &[&str] = if cooldowns { &["sweep", "trunk.toml"] } else { &["sweep", "whole.toml"] };
    [file, &COMMON, if cooldowns { &[] } else { &lengths }].concat()
}

fn both() -> Place {
    let place = place("");
    let base = fs::read_to_string(place.path().join("grid.toml")).unwrap();
    place.write("trunk.toml", format!("{base}{COOLDOWNS}").as_bytes());
    let grid = COOLDOWNS.replace("cooldowns = [32, 16]\n", "");
    place.write("whole.toml", format!("{base}{grid}").as_bytes());
    place
}

/// Returns the last line of every cell, by its rate and steps.
fn last(place: &Place) -> BTreeMap<(String, String), Attempt> {
    let key = |line: &Attempt| ["optimizer.lr", "training.steps"].map(|key| line.settings[key].clone());
    lines(place).into_iter().map(|line| (key(&line).into(), line)).collect()
}

/// Asserts that the cells equal those trained from step 0, in last rows, figures and states.
#[track_caller]
fn is_as_whole(place: &Place, whole: &Place) {
    let (mine, full) = (last(place), last(whole));
    assert_eq!((mine.len(), full.len()), (4, 4));
    let run =
        |place: &Place, line: &Attempt| place.path().join("results").join(line.run.as_ref().expect("a run"));
    for (name, line) in &mine {
        let other = &full[name];
        assert_eq!((line.status, &line.recipe_hash), (CellStatus::Ok, &other.recipe_hash), "{name:?}");
        assert_eq!(line.key, other.key, "{name:?}: a cell has the key of a training from step 0");
        let (mine, full) = (run(place, line), run(whole, other));
        let rows = |run: &std::path::Path| fs::read_to_string(run.join("metrics.csv")).unwrap();
        let (mine_rows, full_rows) = (rows(&mine), rows(&full));
        let own: Vec<&str> = mine_rows.lines().skip(1).collect();
        assert!(full_rows.ends_with(&format!("{}\n", own.join("\n"))), "{name:?}\n{mine_rows}\n{full_rows}");
        let state = |run: &std::path::Path| newest(&run.join("checkpoint")).unwrap().unwrap();
        assert_eq!(first_difference(&state(&mine), &state(&full)).unwrap(), None, "{name:?}");
        let figures = |line: &Attempt| ["val_loss", "loss", "steps"].map(|name| line.measured.get(name));
        assert_eq!(figures(line), figures(other), "{name:?}");
    }
}

fn whole() -> Place {
    let whole = both();
    whole.xrun(&arguments(false)).succeeds().says(&["4 of 4 cells done: 4 ok"]);
    whole
}

#[test]
fn cooldowns_are_the_uninterrupted_trainings_of_their_lengths() {
    let whole = whole();
    let place = both();
    let dry = [&arguments(true)[..], &["--dry-run"]].concat();
    let shown = place.xrun(&dry).succeeds().stdout;
    assert!(shown.contains("4 cooldowns from 2 trunks: 88 steps, 73 % of what separate"), "{shown}");
    place.xrun(&arguments(true)).succeeds().says(&["4 of 4 cells done: 4 ok", "4 cooldowns from 2 trunks"]);
    is_as_whole(&place, &whole);
    let runs = xrun::results::find::runs(&place.path().join("results")).unwrap().len();
    assert_eq!((runs, left(&place)), (4, 0), "a run for each");
    let table = fs::read_to_string(
        fs::read_dir(place.path().join("results/sweeps"))
            .unwrap()
            .map(|entry| entry.unwrap().path().join("table.csv"))
            .find(|path| path.exists())
            .expect("a table"),
    )
    .unwrap();
    assert_eq!(table.lines().count(), 5, "a row for each cooldown\n{table}");
    // The shorter cells trained only their cooldown.
    for ((_, steps), line) in last(&place) {
        let rows =
            fs::read_to_string(place.path().join("results").join(line.run.unwrap()).join("metrics.csv"));
        let trained = rows.unwrap().lines().count() - 1;
        assert_eq!(trained, if steps == "20" { 4 } else { 40 });
    }

    // Nothing runs the second time, and cells trained from step 0 share the rows.
    let before = lines(&place);
    place.xrun(&arguments(true)).succeeds();
    place.xrun(&arguments(false)).succeeds().says(&["4 done, 0 to run"]);
    assert_eq!(lines(&place), before);
}

#[test]
fn without_a_request_no_checkpoint_is_left() {
    let place = both();
    let arguments = arguments(true);
    let (_, without) = arguments.split_last().expect("checkpoint.keep is the last");
    place.xrun(without).succeeds();
    for line in last(&place).values() {
        let run = place.path().join("results").join(line.run.as_ref().unwrap());
        assert!(!run.join("checkpoint").exists(), "{}", run.display());
    }
}

#[test]
fn killed_or_stopped_it_ends_the_same() {
    let whole = whole();
    let place = both();
    for (round, more) in [1, 2, 1, 3, 1].into_iter().enumerate() {
        let mut sweep: Running = place.start(&arguments(true));
        let before = lines(&place).len();
        sweep.until(|| lines(&place).len() >= before + more);
        if count(&lines(&place), CellStatus::Ok) == 4 {
            break;
        }
        match round % 2 {
            0 => _ = sweep.kill(),
            _ => {
                sweep.signal("TERM");
                sweep.ends();
            }
        }
    }
    place.xrun(&arguments(true)).succeeds();
    is_as_whole(&place, &whole);
    assert_eq!(left(&place), 0);
}

#[test]
fn cells_without_a_trunk_in_common_are_refused() {
    let place = both();
    let refused = |more: &[&str], says: &[&str]| {
        place.xrun(&[&["sweep", "trunk.toml"], more].concat()).ended(2).says(says);
    };
    let wsd = COMMON[0];
    refused(&[], &["the rate falls from the start", "lr_scheduler.decay = \"wsd\""]);
    refused(&[wsd, "training.steps=50"], &["training.steps follows from sweep.cooldowns"]);
    refused(&[wsd, "lr_scheduler.warmup_ratio=0.1"], &["they share no steps"]);
    refused(&[wsd, "lr_scheduler.warmup_steps=33"], &["warm-up (33) and decay (8 of 40) take more steps"]);
    refused(&[wsd, "sweep.cooldowns=[0, 8]"], &["falls from step 0 on"]);
    refused(&[wsd, "lr_scheduler.decay_ratio=1.0"], &["leaves no trunk"]);
    refused(&[wsd, "sweep.rungs=[4]", "validation.interval=4"], &["no rung in common"]);
    refused(&[wsd, "sweep.grid={ \"training.steps\" = [4, 8] }"], &["training.steps follows from"]);
    assert!(!place.path().join("results").exists());
}
