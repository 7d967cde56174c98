//! Runs a task of a submission on a node.

use super::submission::{Content, Submission};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::batch_system::BatchSystem;
use crate::executor::{Limits, LocalProcesses};
use crate::ranks::{Stop, environment};
use crate::recipe;
use crate::results::configurations::Settings;
use crate::results::ledger::{CellStatus, Ledger, SWEEPS};
use crate::results::progress::{Mode, eprint_line};
use crate::sweep::axes::GridPoint;
use crate::sweep::cell::{Cell, Corpora, Source, build_name};
use crate::sweep::design::Design;
use crate::sweep::display::Display;
use crate::sweep::schedule::{Output, Schedule, SweepPolicy};
use crate::sweep::table::SweepCell;
use crate::sweep::{Request, cells, run_until};
use std::path::Path;
use std::time::Duration;

/// Checkpoints that a cell keeps until it is done, to continue after an interruption.
const CHECKPOINTS: usize = 1;

/// The tables of a sweep are written by the commands that look at it: a thousand tasks would each write them
/// after every line.
struct NoTables;

impl Output for NoTables {
    fn write(&mut self, _: &[Cell], _: &Ledger) -> Result<()> {
        Ok(())
    }
}

/// Runs the cells of a task that are not done. If the batch system announces the end of the task's time, the
/// cells save their state and the task is queued again.
///
/// # Errors
/// [`ErrorKind::Interrupted`] after a signal. Fails if a cell ends badly, if the submission cannot be read, or
/// if the ledger cannot be written.
pub fn run_task(folder: &Path, task: usize, system: &dyn BatchSystem) -> Result<()> {
    let submission = Submission::read(folder)?;
    let stop = Stop::on_signals(None)?;
    let ended = match submission.content.tasks.get(task) {
        Some(own) => run_cells(&submission, own, &stop),
        None if task == submission.content.tasks.len() => run_rest(&submission, &stop),
        None => Err(Error::usage(format!(
            "{} has {} tasks; there is no task {task}",
            submission.folder.display(),
            submission.content.tasks.len()
        ))),
    };
    if stop.was_announced() && ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::Interrupted) {
        match system.requeue_own_task(submission.content.most_requeues) {
            Ok(true) => eprint_line("the time of this task ends; it is queued again and continues"),
            Ok(false) => eprint_line(
                "the time of this task ends, and it was queued again as often as executor.slurm.most_requeues allows; \
                 submit the sweep again to continue",
            ),
            Err(e) => eprint_line(&format!(
                "warning: the task is not queued again: {e}; submit the sweep again to continue"
            )),
        }
    }
    ended
}

/// Runs the cells of a task, given by their indices.
fn run_cells(submission: &Submission, own: &[usize], stop: &Stop) -> Result<()> {
    let Content { sweep, retried, .. } = &submission.content;
    let results = submission.results()?;
    let folder = results.join(SWEEPS).join(sweep);
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
    let policy = SweepPolicy {
        name: sweep,
        results,
        retry: &[],
        limits: limits(&submission.content),
        build: &build,
        comparison: None,
        resumes: true,
        retried: Some(retried),
    };
    let mut executor = LocalProcesses::new(results, 1, stop);
    let keys = differing_keys(&listed);
    let display = Display::new(Mode::Plain, &keys, planned.len());
    let (ledger, mut output) = (Ledger::open(results)?, NoTables);
    let mut schedule =
        Schedule::new(&policy, &planned, &Design::Grid, ledger, &mut executor, &mut output, display);
    schedule.run(&folder, stop)
}

/// Runs what other tasks left, and compares the configurations, as the sweep would on one machine.
fn run_rest(submission: &Submission, stop: &Stop) -> Result<()> {
    let path = submission.recipe();
    let ended = run_until(
        &Request {
            recipe: &path,
            arguments: &submission.content.arguments,
            results: submission.results()?,
            jobs: 1,
            retry: &[CellStatus::Killed; 0],
            limits: limits(&submission.content),
            progress: Mode::Plain,
        },
        stop,
    )?;
    ended.outcome
}

fn limits(content: &Content) -> Limits {
    let limit = |seconds: Option<f64>| seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Limits { hang: limit(content.hang_s), timeout: limit(content.timeout_s) }
}

/// Checks that a cell is on this node what it was when it was submitted.
fn check_key(cell: &Cell, expected: &str, settings: &Settings) -> Result<()> {
    let named = crate::sweep::axes::format_settings(settings);
    if let Err(e) = &cell.work {
        return Err(Error::failed(format!("{} {named} cannot run on this node: {e}", cell.name)));
    }
    if cell.key == expected {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{} {named} is another cell on this node than where it was submitted, because its device ({}), its corpus or \
         the program differs; submit from a machine with the same devices, or choose nodes like it with \
         executor.slurm.constraint",
        cell.name,
        cell.device.as_deref().unwrap_or("unknown"),
    )))
}

/// Returns the keys by which the cells of a sweep differ, which name them in the output.
fn differing_keys(cells: &[SweepCell]) -> Vec<String> {
    let Some(first) = cells.first() else { return Vec::new() };
    let differs =
        |key: &&String| cells.iter().any(|cell| cell.settings.get(*key) != first.settings.get(*key));
    first.settings.keys().filter(differs).cloned().collect()
}
