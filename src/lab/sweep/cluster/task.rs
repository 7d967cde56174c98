//! Runs a task of a submission on a node.

use super::submission::{Content, Submission, TaskWork};
use super::submitted_sweep::SubmittedSweep;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::LocalProcesses;
use crate::executor::batch_system::BatchSystem;
use crate::ranks::{Stop, environment};
use crate::recipe;
use crate::results::configurations::Settings;
use crate::results::ledger::Ledger;
use crate::results::progress::Mode;
use crate::sweep::axes::{GridPoint, format_settings, naming_keys};
use crate::sweep::cell::{Cell, Corpora, Source, build_name};
use crate::sweep::design::Design;
use crate::sweep::display::Display;
use crate::sweep::schedule::{Output, Schedule, SweepPolicy, TaskPolicy, TaskStage};
use crate::sweep::table::SweepCell;
use crate::sweep::trunk::Trunks;
use crate::sweep::{Sweep, cells, run_planned};
use std::path::{Path, PathBuf};

/// Checkpoints that a cell keeps until it is done, to continue after an interruption.
const CHECKPOINTS: usize = 1;

/// Writes no tables: a thousand tasks would each write them after every line. The last task does.
struct NoTables;

impl Output for NoTables {
    fn write(&mut self, _: &[Cell], _: &Ledger) -> Result<()> {
        Ok(())
    }
}

/// Runs the cells of a task that are not done. If the batch system announces the end of the task's time, the
/// cells save their state and the task is queued again. Returns the sweep's folder if the task was one of the
/// last ones, which complete the tables.
///
/// # Errors
/// [`ErrorKind::Interrupted`] after a signal. Fails if a cell ends badly, if the submission cannot be read, or
/// if the ledger cannot be written.
pub fn run_task(folder: &Path, task: usize) -> Result<Option<PathBuf>> {
    let submission = Submission::read(folder)?;
    let system = submission.system();
    let system = system.as_ref();
    let stop = Stop::on_signals(None)?;
    let ended = match submission.work_of(task)? {
        Some(TaskWork::Cells(own)) => run_cells(&submission, own, (system, &stop)).map(|()| None),
        Some(TaskWork::Stage(stage)) => run_stage(&submission, *stage, (system, &stop)).map(|()| None),
        None => run_rest(&submission, (system, &stop)).map(Some),
    };
    if stop.was_announced() && ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::Interrupted) {
        submission.requeue(system);
    }
    ended
}

/// Runs the cells of a task, given by their indices.
fn run_cells(
    submission: &Submission<SubmittedSweep>,
    own: &[usize],
    (system, stop): (&dyn BatchSystem, &Stop),
) -> Result<()> {
    let results = submission.results()?;
    let folder = submission.sweep_folder()?;
    let listed = cells(&folder)?;
    let path = submission.recipe();
    let machine = environment::machine();
    let base = recipe::load(&path, &[], recipe::environment(), &machine)?;
    let source =
        Source { path: &path, name: base.name(), machine: &machine, results, checkpoints: CHECKPOINTS };
    let (build, mut corpora) = (build_name(), Corpora::default());
    let mut planned = Vec::with_capacity(own.len());
    for &at in own {
        let SweepCell { key, settings } = listed.get(at).ok_or_else(|| {
            Error::failed(format!(
                "{} has {} cells, but the task names cell {at}",
                folder.display(),
                listed.len()
            ))
        })?;
        let point = GridPoint { settings: settings.clone(), excluded: None };
        let cell = Cell::new(&source, &point, &build, &mut corpora);
        check_key(&cell, key, settings)?;
        planned.push(cell);
    }
    // The cells of one trunk are in one task.
    let design = if base.values().sweep.cooldowns.is_some() {
        Design::Cooldowns(Trunks::new(&mut planned)?)
    } else {
        Design::Grid
    };
    let keys = naming_keys(listed.iter().map(|cell| &cell.settings));
    run_schedule(submission, (&planned, &design), &keys, (&build, None), (system, stop))
}

/// Trains cells of a sweep with rungs up to a rung. Which ones follows from the ledger alone, so every task
/// finds the same, whenever it starts and however often.
fn run_stage(
    submission: &Submission<SubmittedSweep>,
    stage: TaskStage,
    (system, stop): (&dyn BatchSystem, &Stop),
) -> Result<()> {
    let results = submission.results()?;
    let path = submission.recipe();
    let whole = Sweep::new(&submission.request(&path, results, system))?;
    check_keys(submission, &whole)?;
    let Sweep { cells, design, axes, build, .. } = &whole;
    run_schedule(submission, (cells, design), &axes.keys, (build, Some(stage)), (system, stop))
}

/// Runs cells in processes of this node, one at a time. `keys` name them in the output.
fn run_schedule(
    submission: &Submission<SubmittedSweep>,
    (cells, design): (&[Cell], &Design),
    keys: &[String],
    (build, stage): (&str, Option<TaskStage>),
    (system, stop): (&dyn BatchSystem, &Stop),
) -> Result<()> {
    let Content { name, work, .. } = &submission.content;
    let results = submission.results()?;
    let policy = SweepPolicy {
        name,
        results,
        retry: &[],
        limits: work.limits(),
        build,
        comparison: None,
        task: Some(TaskPolicy { system, retried: &work.retried, stage }),
    };
    let mut executor = LocalProcesses::new(results, 1, stop);
    let display = Display::new(Mode::Plain, keys, cells.len());
    let (ledger, mut output) = (Ledger::open(results)?, NoTables);
    Schedule::new(&policy, cells, design, ledger, &mut executor, &mut output, display)
        .run(&submission.sweep_folder()?, stop)
}

/// Runs what other tasks left, and compares the configurations, as the sweep would on one machine.
fn run_rest(
    submission: &Submission<SubmittedSweep>,
    (system, stop): (&dyn BatchSystem, &Stop),
) -> Result<PathBuf> {
    let path = submission.recipe();
    let request = submission.request(&path, submission.results()?, system);
    let whole = Sweep::new(&request)?;
    check_keys(submission, &whole)?;
    let ended = run_planned(&request, &whole, stop)?;
    ended.outcome.map(|()| ended.folder)
}

/// Checks that the cells of a sweep are on this node what they were when they were submitted.
fn check_keys(submission: &Submission<SubmittedSweep>, sweep: &Sweep) -> Result<()> {
    let listed = cells(&submission.sweep_folder()?)?;
    let mut able = sweep.cells.iter().zip(&listed).filter(|(cell, _)| cell.work.is_ok());
    able.try_for_each(|(cell, listed)| check_key(cell, &listed.key, &listed.settings))
}

/// Checks that a cell is on this node what it was when it was submitted.
fn check_key(cell: &Cell, expected: &str, settings: &Settings) -> Result<()> {
    let named = format_settings(settings);
    if let Err(e) = &cell.work {
        return Err(Error::failed(format!("{} {named} cannot run on this node: {e}", cell.name)));
    }
    if cell.key == expected {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{} {named} is another cell on this node than where it was submitted, because its device ({}), its corpus or \
         the program differs; submit from a machine with the same devices, and choose nodes like it with \
         executor.slurm.constraint or --hosts",
        cell.name,
        cell.device.as_deref().unwrap_or("unknown"),
    )))
}
