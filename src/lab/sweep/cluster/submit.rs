//! Submits the cells of a sweep that are not done: plans them, divides them into tasks, and queues the tasks.

use super::division::{SubmittedCell, divide, needs_of};
use super::jobs::{Parts, Submitted, submit_parts};
use super::status::queued_cells;
use super::submission::{Submission, create_folder};
use super::submitted_sweep::SubmittedSweep;
use crate::error::{Error, Result};
use crate::executor::TaskSettings;
use crate::executor::batch_system::{BatchSystem, TaskNeeds, TaskState};
use crate::results::atomic;
use crate::results::ledger::Ledger;
use crate::results::names::file_part;
use crate::results::progress::eprint_line;
use crate::sweep::axes::format_settings;
use crate::sweep::cell::Cell;
use crate::sweep::schedule::Output;
use crate::sweep::table::Tables;
use crate::sweep::{Request, Sweep, prepare};
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// The hidden command that runs a task.
pub const TASK_COMMAND: &str = "sweep-task";

/// Submits the cells of a sweep that are neither done nor queued, and returns at once. `ssh_command` is the
/// command of the user's own settings, to ask for earlier submissions.
///
/// # Errors
/// A usage error for a wrong recipe or argument, or for a cell whose time is unknown. Fails if a file cannot
/// be written or the batch system refuses a job.
pub fn submit(
    request: &Request<'_>,
    settings: &TaskSettings,
    system: &dyn BatchSystem,
    ssh_command: &[String],
) -> Result<Submitted> {
    let sweep = Sweep::new(request)?;
    sweep.axes.notes.iter().for_each(|note| eprint_line(note));
    prepare(request.results)?;
    let ledger = Ledger::read(request.results)?;
    let mut tables = Tables::new(request.results, sweep.base.name(), &sweep.axes, &sweep.cells)?;
    tables.write(&sweep.cells, &ledger)?;
    let name = tables.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let submissions = Submission::<IgnoredAny>::all(request.results, &name)?;
    let tasks = Submission::queued(&submissions, ssh_command)?;
    let queued = queued_cells(&submissions, &tasks, sweep.cells.len());
    let status_command = format!("xrun sweep --status {}", tables.folder.display());
    let mut submitted = Submitted { status_command, ..Submitted::default() };
    let (mut seen, mut wanted, mut retried) = (HashSet::new(), Vec::new(), BTreeMap::new());
    for (at, cell) in sweep.cells.iter().enumerate() {
        let last = ledger.last(&cell.key);
        let is_done = last.is_some_and(|last| sweep.design.is_done(last.status));
        let again = last.filter(|last| is_done && request.retry.contains(&last.status));
        let is_open = !is_done || again.is_some();
        match queued.get(&at) {
            Some(TaskState::Waiting(_) | TaskState::Running(_)) => {
                submitted.queued += 1;
                continue;
            }
            Some(TaskState::Unknown(why)) if is_open => {
                return Err(Error::failed(format!(
                    "cells of {name} may still run, so they are not submitted again: {why}"
                )));
            }
            Some(TaskState::Unknown(_)) | None => {}
        }
        if !seen.insert(&cell.key) || !is_open {
            submitted.done += 1;
        } else if let Some(needs) = planned_needs(cell, settings)? {
            wanted.push(SubmittedCell { at, needs });
            retried.extend(again.map(|last| (cell.key.clone(), last.attempt)));
        } else {
            submitted.done += 1;
        }
    }
    if wanted.is_empty() {
        return Ok(submitted);
    }
    submitted.cells = wanted.len();
    let groups = divide(&sweep, &wanted, settings);
    submitted.tasks = groups.iter().map(|group| group.tasks.len()).sum();
    let folder = create_folder(request.results, &name)?;
    let recipe = format!("{}.toml", file_part(sweep.base.name()));
    atomic::write(&folder.join(&recipe), sweep.base.copy().as_bytes())?;
    let limit = |limit: Option<Duration>| limit.map(|limit| limit.as_secs_f64());
    let work = SubmittedSweep {
        recipe,
        arguments: request.arguments.to_vec(),
        retried,
        hang_s: limit(request.limits.hang),
        timeout_s: limit(request.limits.timeout),
    };
    let parts = Parts { name, folder, work, groups, last: None, task_command: TASK_COMMAND };
    submitted.jobs = submit_parts(parts, settings, system)?;
    Ok(submitted)
}

/// Returns what a cell needs; `None` if it cannot run, which a task records.
fn planned_needs(cell: &Cell, settings: &TaskSettings) -> Result<Option<TaskNeeds>> {
    let Ok(work) = &cell.work else { return Ok(None) };
    needs_of(work, settings, || format!("{} ({})", cell.name, format_settings(&cell.settings)))
}
