//! Submits the cells of a sweep that are not done: plans them, divides them into tasks, and queues the tasks.

use super::division::{PlannedCell, START_TIME, TIME_MARGIN, divide, jobs, needs_of};
use super::status::queued_cells;
use super::submission::{Content, Submission, SubmittedJob};
use crate::error::{Error, Result};
use crate::executor::TaskSettings;
use crate::executor::batch_system::{ArrayJob, BatchSystem, JobId, TaskNeeds, TaskState};
use crate::format::{binary, plural, wall_time};
use crate::results::atomic;
use crate::results::ledger::Ledger;
use crate::results::names::file_part;
use crate::results::progress::eprint_line;
use crate::sweep::schedule::Output;
use crate::sweep::table::Tables;
use crate::sweep::{Request, Sweep, prepare};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The hidden command that runs a task.
pub const TASK_COMMAND: &str = "sweep-task";

/// What was submitted.
#[derive(Debug, Default)]
pub struct Submitted {
    /// The folder of the sweep.
    pub folder: PathBuf,
    /// The folder of the submission; `None` if every cell is done or queued.
    pub submission: Option<PathBuf>,
    /// The jobs, in order.
    pub jobs: Vec<JobId>,
    /// The number of cells that were submitted.
    pub cells: usize,
    /// The number of tasks that run them.
    pub tasks: usize,
    /// The number of cells that wait or run in earlier submissions.
    pub queued: usize,
    /// The number of cells that are done, or cannot run.
    pub done: usize,
}

impl Submitted {
    /// Describes what was submitted, and how to follow it.
    pub fn in_words(&self) -> String {
        let Self { cells, tasks, queued, done, jobs, .. } = self;
        let sweep = self.folder.display();
        let rest = format!("{done} done or not to run, {queued} queued before");
        if self.submission.is_none() {
            return format!("nothing to submit: {rest}");
        }
        let ids: Vec<&str> = jobs.iter().map(|job| job.0.as_str()).collect();
        format!(
            "submitted {cells} cell{} in {tasks} task{}, {rest}; job{} {}; `xrun sweep --status {sweep}` shows how \
             far they are",
            plural(*cells),
            plural(*tasks),
            plural(jobs.len()),
            ids.join(", ")
        )
    }
}

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
    let submissions = Submission::all(request.results, &name)?;
    let tasks = Submission::queued(&submissions, ssh_command)?;
    let queued = queued_cells(&submissions, &tasks, sweep.cells.len());
    let mut submitted = Submitted { folder: tables.folder.clone(), ..Submitted::default() };
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
        } else if let Some(needs) = needs_of(cell, settings)? {
            wanted.push(PlannedCell { at, needs });
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
    let id = format!("{}-{}", crate::format::now().strftime("%Y%m%dT%H%M%SZ"), std::process::id());
    let folder = Submission::create_folder(request.results, &name, &id)?;
    let recipe = format!("{}.toml", file_part(sweep.base.name()));
    atomic::write(&folder.join(&recipe), sweep.base.copy().as_bytes())?;
    // Until `submission.json` is written, nothing is submitted.
    system.check(&folder)?;
    let (jobs, needs) = jobs(&groups, &format!("xrun-{name}-{id}"), system.most_tasks()?);
    let submission = Submission {
        content: Content {
            sweep: name,
            recipe,
            arguments: request.arguments.to_vec(),
            retried,
            hang_s: request.limits.hang.map(|limit| limit.as_secs_f64()),
            timeout_s: request.limits.timeout.map(|limit| limit.as_secs_f64()),
            most_requeues: settings.most_requeues,
            tasks: groups.into_iter().flat_map(|group| group.tasks).collect(),
            jobs,
            system: system.record(),
        },
        folder,
    };
    submission.write()?;
    for (job, needs) in submission.content.jobs.iter().zip(&needs) {
        eprint_line(&format!(
            "{}: {} task{}, each with {}",
            job.name,
            job.count,
            plural(job.count),
            in_words(needs, settings)
        ));
    }
    submitted.jobs = submit_jobs(&submission, &needs, system)?;
    submitted.submission = Some(submission.folder);
    Ok(submitted)
}

/// Submits the jobs of a submission, and one more whose tasks run what is left after them.
fn submit_jobs(submission: &Submission, needs: &[TaskNeeds], system: &dyn BatchSystem) -> Result<Vec<JobId>> {
    let program = submission.keep_program()?;
    let command: Vec<OsString> = vec![program.into(), TASK_COMMAND.into(), submission.folder.clone().into()];
    let mut ids: Vec<JobId> = Vec::new();
    let job = |job: &SubmittedJob, needs: TaskNeeds, after: Vec<JobId>| ArrayJob {
        name: job.name.clone(),
        command: command.clone(),
        first: job.first,
        count: job.count,
        needs,
        after,
        folder: submission.folder.clone(),
    };
    let submitted = |one: Result<JobId>, ids: &[JobId]| {
        one.map_err(|e| {
            let ids: Vec<&str> = ids.iter().map(|job| job.0.as_str()).collect();
            let before = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
            Error::failed(format!(
                "{}; submitted before: {before}; the same command submits the rest",
                e.message()
            ))
        })
    };
    let jobs = &submission.content.jobs;
    for (one, needs) in jobs.iter().zip(needs) {
        // Those of the stage before have waited for earlier ones.
        let before = jobs.iter().zip(&ids).filter(|(other, _)| other.stage + 1 == one.stage);
        let after = before.map(|(_, id)| id.clone()).collect();
        ids.push(submitted(system.submit(&job(one, *needs, after)), &ids)?);
    }
    let last = submission.last_job();
    let most = |get: fn(&TaskNeeds) -> u64| needs.iter().map(get).max().unwrap_or(1);
    let needs = TaskNeeds {
        gpus: most(|needs| needs.gpus as u64) as usize,
        cpus: most(|needs| needs.cpus as u64) as usize,
        memory_mib: most(|needs| needs.memory_mib),
        time: Duration::from_secs(most(|needs| needs.time.as_secs())),
    };
    ids.push(submitted(system.submit(&job(&last, needs, ids.clone())), &ids)?);
    Ok(ids)
}

/// Describes what a task needs.
fn in_words(needs: &TaskNeeds, settings: &TaskSettings) -> String {
    let gpus =
        if needs.gpus > 0 { format!("{} GPU{}, ", needs.gpus, plural(needs.gpus)) } else { String::new() };
    let limit = wall_time(needs.time.as_secs_f64());
    let time = match settings.minutes {
        _ if !settings.has_time_limit => "without a limit of time".to_owned(),
        Some(_) => format!("{limit} (as executor.slurm.minutes sets)"),
        None => {
            let start = wall_time(START_TIME.as_secs_f64());
            format!("{limit} (the prediction times {TIME_MARGIN}, and {start} to start)")
        }
    };
    format!(
        "{gpus}{} CPU{}, {} of memory, {time}",
        needs.cpus,
        plural(needs.cpus),
        binary((needs.memory_mib << 20) as usize)
    )
}
