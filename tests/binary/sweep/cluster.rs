//! Sweeps that are submitted to Slurm.

use super::grid::{count, lines, place, runs, table};
use super::kills::{process_of, sent};
use crate::place::{Done, Place};
use crate::slurm::{self, TASK_PATH, submission, xrun};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use xrun::results::ledger::CellStatus;

/// The cells: five seeds.
const SWEEP: [&str; 3] = ["sweep", "grid.toml", "training.seed=1,2,3,4,5"];

/// Submits them.
const SUBMIT: [&str; 5] = [SWEEP[0], SWEEP[1], SWEEP[2], "--executor", "slurm"];

/// Makes a folder with a recipe on a cluster.
fn cluster() -> Place {
    let place = place("");
    slurm::add_to(&place);
    place
}

fn submit(place: &Place) -> Done {
    xrun(place, &SUBMIT)
}

/// Returns the columns of the table of `count` cells that depend on the cell alone, by its digits.
pub fn figures(place: &Place, count: usize) -> BTreeMap<String, Vec<String>> {
    let columns = ["status", "steps", "train_loss", "loss", "val_loss", "planned_mib", "reason"];
    let figures = |row: &BTreeMap<String, String>| columns.map(|column| row[column].clone()).to_vec();
    table(place, count).iter().map(|row| (row["cell"].clone(), figures(row))).collect()
}

/// Returns the names of the files in the folder of the only sweep and below.
pub fn files(place: &Place) -> BTreeSet<PathBuf> {
    let mut sweeps =
        fs::read_dir(place.path().join("results/sweeps")).unwrap().map(|entry| entry.unwrap().path());
    let sweep = sweeps.find(|path| path.join("table.csv").exists()).unwrap();
    let (mut folders, mut found) = (vec![sweep.clone()], BTreeSet::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            found.insert(path.strip_prefix(&sweep).unwrap().to_owned());
            folders.extend(path.is_dir().then_some(path));
        }
    }
    found
}

#[test]
fn a_submitted_sweep_has_the_rows_of_a_local_one() {
    let place = cluster();
    let said = submit(&place).succeeds();
    assert!(
        said.stdout
            .contains("submitted 5 cells in 5 tasks, 0 done or not to run, 0 queued before; jobs 1, 2, 3, 4"),
        "{}",
        said.stdout
    );
    assert!(said.stderr.contains("-1: 2 tasks, each with 1 CPU, "), "{}", said.stderr);
    let local = super::grid::place("");
    local.xrun(&SWEEP).succeeds();
    assert_eq!(figures(&place, 5), figures(&local, 5));
    let lines = lines(&place);
    assert_eq!((lines.len(), count(&lines, CellStatus::Ok), runs(&place)), (10, 5, 5));

    let folder = submission(&place);
    let script = |end: &str| {
        let mut found = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let path = found.find(|path| path.to_string_lossy().ends_with(end)).unwrap();
        fs::read_to_string(path).unwrap()
    };
    let second = script("-2.sh");
    for option in
        ["array=0-1%256", "partition=short", "time=3", "signal=B:USR2@90", "requeue", "comment=tests"]
    {
        assert!(second.contains(&format!("#SBATCH --{option}\n")), "{second}");
    }
    assert!(second.ends_with(" $((2 + SLURM_ARRAY_TASK_ID))\n"), "{second}");
    assert!(script("-3.sh").contains("--array=0-0%256\n"));
    let last = script("-last.sh");
    assert!(last.contains("#SBATCH --dependency=afterany:1:2:3\n"), "{last}");
    assert!(
        fs::read_to_string(place.path().join("log")).unwrap().contains("5 done, 0 to run"),
        "the last task"
    );

    let again = submit(&place).succeeds();
    assert_eq!(again.stdout, "nothing to submit: 5 done or not to run, 0 queued before\n");
    let status = xrun(&place, &["sweep", "--status", "grid"]).succeeds();
    assert!(status.stdout.contains("5 cells\n       5  ok\nno task is queued\n"), "{}", status.stdout);
}

#[test]
fn cells_that_depend_on_each_other_end_as_in_a_local_sweep() {
    let halving = [
        "optimizer.lr=1e-3,3e-3,1e-2",
        "training.seed=1,2",
        "validation.interval=10",
        "sweep.rungs=[10, 20]",
    ];
    let cooldowns = [
        "training.seed=1,2",
        "lr_scheduler.decay=wsd",
        "lr_scheduler.decay_ratio=0.5",
        "lr_scheduler.warmup_steps=2",
        "sweep.cooldowns=[10, 20]",
    ];
    let stages =
        "submitted 6 cells in 10 tasks, 0 done or not to run, 0 queued before; jobs 1, 2, 3, 4, 5, 6\n";
    for (arguments, cells, said) in [
        (&halving[..], 6, stages),
        (&cooldowns, 4, "submitted 4 cells in 2 tasks, 0 done or not to run, 0 queued before; jobs 1, 2\n"),
    ] {
        let place = cluster();
        let sweep = [&["sweep", "grid.toml"], arguments].concat();
        let done = xrun(&place, &[&sweep[..], &["--executor", "slurm"]].concat()).succeeds();
        assert_eq!(
            done.stdout
                .split_inclusive("; `xrun")
                .next()
                .map(|said| said.replace("; `xrun", "\n"))
                .as_deref(),
            Some(said)
        );
        let local = super::grid::place("");
        local.xrun(&sweep).succeeds();
        assert_eq!(figures(&place, cells), figures(&local, cells));
        assert_eq!(runs(&place), runs(&local), "no cell was trained twice");
        assert_eq!(files(&place), files(&local), "the last task completes tables and plots");
        let log = fs::read_to_string(place.path().join("log")).unwrap();
        assert!(
            log.contains(&format!("{cells} done, 0 to run")),
            "nothing was left for the last task: {log}"
        );
        let checkpoints = |run: fs::DirEntry| run.path().join("checkpoint").exists();
        assert!(!fs::read_dir(place.path().join("results/grid")).unwrap().flatten().any(checkpoints));
    }
}

#[test]
fn a_task_whose_time_ends_saves_is_queued_again_and_continues_to_the_bit() {
    let place = cluster();
    place.write("hold", b"");
    let sweep = ["sweep", "grid.toml", "training.steps=3000", "--executor", "slurm"];
    xrun(&place, &sweep).succeeds();
    let folder = submission(&place);
    let task = ["sweep-task", folder.to_str().unwrap(), "0"];
    let mut first = place.start_under(TASK_PATH, &task);
    let has_rows = || {
        let runs = fs::read_dir(place.path().join("results/grid")).into_iter().flatten().flatten();
        runs.into_iter().any(|run| {
            fs::read_to_string(run.path().join("metrics.csv")).is_ok_and(|rows| rows.lines().count() > 5)
        })
    };
    assert!(first.until(has_rows), "the task ended before it was signalled");
    first.signal("USR2");
    first.ends().ended(75).says(&["it is queued again and continues"]);
    assert_eq!(fs::read_to_string(place.path().join("requeued")).unwrap(), "7_0\n");
    assert_eq!(lines(&place).last().unwrap().status, CellStatus::TimeLimit);
    let waiting = xrun(&place, &["sweep", "--status", "grid"]).succeeds();
    assert!(waiting.stdout.contains("       1  time_limit\n"), "{}", waiting.stdout);

    place.start_under(TASK_PATH, &task).ends().succeeds();
    let end = lines(&place).pop().unwrap();
    assert_eq!((end.status, end.attempt, runs(&place)), (CellStatus::Ok, 2, 1), "the run was resumed");
    let local = super::grid::place("");
    local.xrun(&sweep[..3]).succeeds();
    assert_eq!(end.rows, lines(&local).pop().unwrap().rows, "the rows have the same bits");
    assert!(end.rows.is_some());
}

#[test]
fn the_ledger_says_how_a_task_ended_that_left_no_word() {
    let place = cluster();
    place.write("hold", b"");
    xrun(&place, &["sweep", "grid.toml", "training.steps=100000", "--executor", "slurm"]).succeeds();
    let folder = submission(&place);
    let task = ["sweep-task", folder.to_str().unwrap(), "0"];
    let ends = [
        (None, CellStatus::Killed, "ended with the task 7_0, which left no word"),
        (Some("NODE_FAIL"), CellStatus::NodeFailed, "whose node failed"),
        (Some("PREEMPTED"), CellStatus::Preempted, "which was preempted"),
        (Some("TIMEOUT"), CellStatus::TimeLimit, "whose time ended"),
        (Some("OUT_OF_MEMORY"), CellStatus::HostOom, "which needed more host memory"),
    ];
    let last = |attempt: u64| lines(&place).into_iter().rfind(|line| line.attempt == attempt);
    let mut running = place.start_under(TASK_PATH, &task);
    for (attempt, (state, status, reason)) in (1..).zip(ends) {
        assert!(running.until(|| last(attempt).is_some_and(|line| process_of(&place, &line).is_some())));
        let run = process_of(&place, &last(attempt).unwrap()).unwrap();
        running.kill();
        assert!(sent("KILL", run));
        if let Some(state) = state {
            let states = format!("#!/bin/sh\nprintf 'COMPLETED\\n{state}\\nRUNNING\\n'\n");
            slurm::add_command(&place, "sacct", &states);
        }
        // The next task records the end.
        running = place.start_under(TASK_PATH, &task);
        assert!(running.until(|| last(attempt).is_some_and(|line| line.status != CellStatus::Running)));
        let line = last(attempt).unwrap();
        assert_eq!(line.status, status);
        assert!(line.reason.as_ref().is_some_and(|said| said.contains(reason)), "{line:?}");
    }
    running.ends().ended(1).says(&["some cells did not end well; `--retry host_oom` runs them again"]);
}

#[test]
fn the_status_tells_what_waits_and_runs_and_cancel_ends_it() {
    let place = cluster();
    place.write("hold", b"");
    submit(&place).succeeds();
    let name = fs::read_to_string(submission(&place).join("submission.json")).unwrap();
    let name = name.split('"').find(|word| word.starts_with("xrun-grid")).unwrap().to_owned();
    let queue = format!("11|0|{name}|RUNNING|None|n3\n11|1|{name}|PENDING|Priority|\n");
    place.write("queue", queue.as_bytes());
    let status = xrun(&place, &["sweep", "--status", "sweeps/grid"]).succeeds();
    let said = "5 cells\n       3  left by a task that ended\n       1  next in a running task\n       1  waiting in the queue\n\
                1 task runs on 1 node, 1 waits (Priority)\n";
    assert!(status.stdout.contains(said), "{}", status.stdout);
    let json = xrun(&place, &["sweep", "--status", "sweeps/grid", "--json"]).succeeds().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["cells"], &json["by_status"]["waiting in the queue"]), (&5.into(), &1.into()));
    assert_eq!(json["tasks"]["waiting"]["Priority"], 1);
    assert!(fs::read_to_string(place.path().join("asked")).unwrap().contains(&format!("--name={name},")));

    let more = submit(&place).succeeds();
    assert!(
        more.stdout.contains("submitted 3 cells in 3 tasks, 0 done or not to run, 2 queued before"),
        "{}",
        more.stdout
    );
    let ended = xrun(&place, &["sweep", "--cancel", "grid"]).succeeds();
    assert_eq!(ended.stdout, "ended 2 tasks\n");
    assert_eq!(fs::read_to_string(place.path().join("canceled")).unwrap(), "11\n");
}

#[test]
fn what_slurm_refuses_is_said_with_the_next_step() {
    let place = cluster();
    place.write("refuse", b"");
    submit(&place)
        .ended(1)
        .says(&["sbatch failed: sbatch: error: Invalid account", "submitted before: none"]);
    let without_slurm = place.start_under("PATH=/nowhere; export PATH", &SUBMIT).ends();
    without_slurm.ended(1).says(&["cannot run squeue", "as on a login node"]);
    place.write("xrun.toml", b"[executor.slurm]\nmintes = 3\n");
    submit(&place).ended(2).says(&["xrun.toml:2: unknown field `mintes`"]);
    place.xrun(&["sweep", "--status", "grid"]).ended(2);
    place.write("xrun.toml", b"");
    place.xrun(&["sweep", "--status", "other"]).ended(2).says(&["has no sweep \"other\""]);
}

/// The node of a GPU sweep may be the only machine with a GPU.
#[test]
fn cells_are_planned_for_the_gpus_that_the_settings_name() {
    let place = cluster();
    let sites = "[executor.slurm]\ndevice = \"h200\"\n";
    place.write("xrun.toml", sites.as_bytes());
    place.write("hold", b"");
    let on_gpu = [&SUBMIT[..], &["engine.device=cuda"]].concat();
    let said = xrun(&place, &on_gpu).succeeds();
    assert!(said.stdout.contains("submitted 5 cells in 5 tasks"), "{}", said.stdout);
    assert!(
        said.stderr.contains("-1: 2 tasks, each with 1 GPU, 8 CPUs, 8.00 GiB of memory, "),
        "{}",
        said.stderr
    );
    // This machine has no GPU, so its task finds another cell than the one that was submitted.
    fs::remove_file(place.path().join("hold")).unwrap();
    let task = xrun(&place, &["sweep-task", &submission(&place).to_string_lossy(), "0"]);
    assert_eq!(task.code, Some(1), "{}", task.stderr);
    assert!(
        task.stderr.contains("cannot run on this node") || task.stderr.contains("another cell"),
        "{}",
        task.stderr
    );

    let on_two = [&SUBMIT[..], &["engine.device=cuda", "parallelism.world_size=2"]].concat();
    let said = xrun(&place, &on_two);
    assert!(said.stderr.contains("set gpu_links in xrun.toml"), "{}", said.stderr);
    place.write("xrun.toml", format!("{sites}gpu_links = \"NV18\"\n").as_bytes());
    let said = xrun(&place, &on_two).succeeds();
    assert!(said.stderr.contains("each with 2 GPUs, 16 CPUs"), "{}", said.stderr);

    place.write("xrun.toml", b"[executor.slurm]\ndevice = \"h2000\"\n");
    let said = xrun(&place, &on_gpu);
    assert!(said.stderr.contains("executor.slurm.device = \"h2000\": there is no device"), "{}", said.stderr);
}
