//! Comparisons that are submitted to Slurm.

use crate::place::{Done, Place};
use crate::quality::SHORT;
use crate::slurm::{self, TASK_PATH, submission, xrun};
use std::fs;
use std::path::PathBuf;
use xrun::results::experiment::{Experiment, Standing};
use xrun::results::ledger::{CellStatus, Ledger};

fn cluster() -> Place {
    let place = Place::new();
    slurm::add_to(&place);
    place
}

/// Returns the words of a comparison.
fn compare<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["compare", "tiny.toml"], arguments, &SHORT].concat()
}

fn submit(place: &Place, arguments: &[&str]) -> Done {
    xrun(place, &[&compare(arguments)[..], &["--executor", "slurm"]].concat()).succeeds()
}

/// Runs a task of the only submission.
fn run_task(place: &Place, task: usize) -> Done {
    let folder = submission(place);
    let words = ["compare-task", folder.to_str().unwrap(), &task.to_string()];
    place.start_under(TASK_PATH, &words).ends()
}

/// Returns the only comparison.
fn only(place: &Place) -> Experiment {
    let folders = xrun::results::find::comparisons(&results(place)).unwrap();
    assert_eq!(folders.len(), 1);
    Experiment::read(&folders[0]).unwrap()
}

fn results(place: &Place) -> PathBuf {
    place.path().join("results")
}

/// Returns the number of runs that the ledger has started.
fn started(place: &Place) -> usize {
    let ledger = Ledger::read(&results(place)).unwrap();
    ledger.lines().iter().filter(|line| line.status == CellStatus::Running).count()
}

/// Checks that a comparison says the same as the one that the same command makes on this machine.
#[track_caller]
fn says_what_a_local_one_says(place: &Place, arguments: &[&str]) {
    let local = Place::new();
    local.xrun(&compare(arguments)).succeeds();
    let said = |place: &Place| {
        let Experiment { runs, findings, finished, arms, changes, design, standing, history, .. } =
            only(place);
        let values: Vec<_> = runs.into_iter().map(|run| (run.arm, run.seed, run.values)).collect();
        let recipes: Vec<_> = arms.into_iter().map(|arm| (arm.recipe, arm.command)).collect();
        format!(
            "{values:?} {findings:?} {finished} {recipes:?} {changes:?} {design:?} {standing:?} {history:?}"
        )
    };
    assert_eq!(said(place), said(&local));
    assert_eq!(only(place).standing, Some(Standing::Confirmatory));
}

#[test]
fn a_submitted_comparison_says_what_a_local_one_says() {
    let place = cluster();
    let arguments = ["optimizer.lr=1e-2", "--on", "val_loss", "--seeds", "3"];
    let said = submit(&place, &arguments);
    assert!(said.stdout.starts_with("submitted 6 cells in 6 tasks, 0 done or not to run"), "{}", said.stdout);
    assert_eq!(started(&place), 6, "each run once");
    says_what_a_local_one_says(&place, &arguments);
    let log = fs::read_to_string(place.path().join("log")).unwrap();
    assert!(log.contains("6 runs, 6 of them stored already"), "nothing was left for the last task: {log}");
    let status = xrun(&place, &["compare", "--status", "tiny"]).succeeds();
    assert!(status.stdout.contains(": answered\nSEED"), "{}", status.stdout);
    assert!(
        !fs::read_dir(results(&place).join("tiny"))
            .unwrap()
            .flatten()
            .any(|run| { run.path().join("checkpoint").exists() })
    );
}

#[test]
fn each_task_of_a_sequential_comparison_decides_the_same_whoever_died() {
    let place = cluster();
    place.write("hold", b"");
    let arguments = [
        "optimizer.lr=1e-2",
        "--on",
        "val_loss",
        "--seeds",
        "6",
        "--sequential",
        "--min-effect",
        "val_loss=0.5",
    ];
    submit(&place, &arguments);
    // The recipe may be edited while tasks wait.
    let recipe = fs::read_to_string(place.path().join("tiny.toml")).unwrap();
    place.write("tiny.toml", format!("{recipe}\n[seeds]\norder = 3\n").as_bytes());
    // Of eight tasks of the first look, one runs; its others, and the task that decides, died.
    run_task(&place, 1).succeeds();
    assert_eq!(started(&place), 1);
    // A task of the fifth pair runs what is left of the first four.
    run_task(&place, 8).succeeds();
    let after_first_look = started(&place);
    assert!(after_first_look == 8 || after_first_look == 9, "{after_first_look}");
    run_task(&place, 9).succeeds();
    run_task(&place, 12).succeeds();
    place.write("tiny.toml", recipe.as_bytes());
    says_what_a_local_one_says(&place, &arguments);
    assert_eq!(started(&place), only(&place).runs.len(), "each run once, and none after the decision");
    // After the answer, tasks that are late end at once.
    run_task(&place, 10).succeeds();
    assert_eq!(started(&place), only(&place).runs.len());
}

#[test]
fn a_stopped_run_of_a_pair_continues_from_its_checkpoint() {
    let place = cluster();
    place.write("hold", b"");
    let arguments = ["optimizer.lr=1e-2", "--on", "val_loss", "--seeds", "2", "--set=training.steps=3000"];
    let words = [&["compare", "tiny.toml"], &arguments[..], &SHORT[1..], &["--executor", "slurm"]].concat();
    xrun(&place, &words).succeeds();
    let folder = submission(&place);
    let mut first = place.start_under(TASK_PATH, &["compare-task", folder.to_str().unwrap(), "0"]);
    let has_rows = || {
        let runs = fs::read_dir(results(&place).join("tiny")).into_iter().flatten().flatten();
        runs.into_iter().any(|run| {
            fs::read_to_string(run.path().join("metrics.csv")).is_ok_and(|rows| rows.lines().count() > 5)
        })
    };
    assert!(first.until(has_rows), "the task ended before it was signalled");
    first.signal("USR2");
    first.ends().ended(75).says(&["it is queued again and continues"]);
    run_task(&place, 0).succeeds();
    let ledger = Ledger::read(&results(&place)).unwrap();
    let last = ledger.lines().last().unwrap();
    assert_eq!((last.status, last.attempt), (CellStatus::Ok, 2));
    assert_eq!(fs::read_dir(results(&place).join("tiny")).unwrap().count(), 1, "the run was resumed");
}

#[test]
fn timed_runs_are_one_task_alone_on_its_node() {
    let place = cluster();
    place.write("hold", b"");
    let said = submit(&place, &["engine.threads=2", "--repeats", "2"]);
    assert!(said.stdout.starts_with("submitted 4 cells in 1 task,"), "{}", said.stdout);
    let folder = submission(&place);
    let script = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .find(|file| file.path().extension().is_some_and(|e| e == "sh"));
    let script = fs::read_to_string(script.unwrap().path()).unwrap();
    assert!(script.contains("#SBATCH --exclusive\n"), "{script}");
    run_task(&place, 0).says(&["trial 4 of 4"]);
    assert!(only(&place).finished);
    assert_eq!(only(&place).baseline().recipe.as_deref(), Some("tiny.toml"));

    let refused = |arguments: &[&str], said: &str| {
        xrun(&place, &[&compare(arguments)[..], &["--executor", "slurm"]].concat()).ended(2).says(&[said]);
    };
    refused(
        &["optimizer.lr=1e-2", "--on", "val_loss", "--pilot", "3"],
        "--pilot is for runs on this machine",
    );
    refused(&["--before-rev", "HEAD"], "--before-rev: a node may have no compiler");
    xrun(&place, &["compare", "--status", "other"]).ended(2).says(&["no comparison \"other\" was submitted"]);
}
