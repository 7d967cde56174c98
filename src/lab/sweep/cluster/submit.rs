//! Submits the cells of a sweep that are not done: plans them, divides them into tasks, and queues the tasks.

use super::submission::{Content, Submission, SubmittedJob};
use crate::error::{Error, Result};
use crate::executor::SlurmSettings;
use crate::executor::batch_system::{ArrayJob, BatchSystem, JobId, TaskNeeds};
use crate::format::{binary, plural, wall_time};
use crate::results::atomic;
use crate::results::ledger::Ledger;
use crate::results::names::file_part;
use crate::results::progress::eprint_line;
use crate::sweep::cell::Cell;
use crate::sweep::design::Design;
use crate::sweep::schedule::Output;
use crate::sweep::table::Tables;
use crate::sweep::work::CellFit;
use crate::sweep::{Request, Sweep, prepare};
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The hidden command that runs a task.
pub const TASK_COMMAND: &str = "sweep-task";

/// The predicted time of a task is multiplied by this, because nodes differ and predictions err.
const TIME_MARGIN: f64 = 1.5;

/// Time for what the prediction leaves out: the start, a corpus that is not cached yet, kernels to compile.
const START_TIME: Duration = Duration::from_secs(10 * 60);

/// Host memory beside what the plan of a cell on the CPU needs, and all of it for a cell on a GPU whose state
/// is copied there to be saved.
const HOST_MEMORY_MIB: u64 = 2 << 10;

/// CPU threads of a cell on a GPU: they read the corpus and write checkpoints.
const CPUS_WITH_GPU: usize = 8;

/// Most tasks, if the settings do not say how many cells a task has. Each task is a file of the ledger, which
/// every later task reads.
const MOST_TASKS: usize = 1000;

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
            "submitted {cells} cell{} in {tasks} task{}, {rest}; job{} {}; `xrun sweep --status {sweep}` shows how far they are",
            plural(*cells),
            plural(*tasks),
            plural(jobs.len()),
            ids.join(", ")
        )
    }
}

/// A cell to submit.
struct Planned {
    /// Its index among the cells of the sweep.
    at: usize,
    needs: TaskNeeds,
}

/// Submits the cells of a sweep that are neither done nor queued, and returns at once.
///
/// # Errors
/// A usage error for a wrong recipe or argument, or for a cell whose time is unknown. Fails if a file cannot
/// be written or the batch system refuses a job.
pub fn submit(
    request: &Request<'_>,
    settings: &SlurmSettings,
    system: &dyn BatchSystem,
) -> Result<Submitted> {
    let sweep = Sweep::new(request)?;
    if !matches!(sweep.design, Design::Grid) {
        return Err(Error::usage(
            "cells of a sweep with rungs or cooldowns depend on each other, and those are not submitted to a cluster; leave \
             out sweep.rungs and sweep.cooldowns, or run the sweep in one job",
        ));
    }
    sweep.axes.notes.iter().for_each(|note| eprint_line(note));
    prepare(request.results)?;
    let ledger = Ledger::read(request.results)?;
    let mut tables = Tables::new(request.results, sweep.base.name(), &sweep.axes, &sweep.cells)?;
    tables.write(&sweep.cells, &ledger)?;
    let name = tables.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let queued = queued_cells(request.results, &name, system)?;
    let mut submitted = Submitted { folder: tables.folder.clone(), ..Submitted::default() };
    let (mut seen, mut wanted, mut retried) = (HashSet::new(), Vec::new(), BTreeMap::new());
    for (at, cell) in sweep.cells.iter().enumerate() {
        let last = ledger.last(&cell.key);
        let is_done = last.is_some_and(|last| sweep.design.is_done(last.status));
        let again = last.filter(|last| is_done && request.retry.contains(&last.status));
        if queued.contains(&at) {
            submitted.queued += 1;
        } else if !seen.insert(&cell.key) || is_done && again.is_none() {
            submitted.done += 1;
        } else if let Some(needs) = needs_of(cell, settings)? {
            wanted.push(Planned { at, needs });
            retried.extend(again.map(|last| (cell.key.clone(), last.attempt)));
        } else {
            submitted.done += 1;
        }
    }
    if wanted.is_empty() {
        return Ok(submitted);
    }
    submitted.cells = wanted.len();
    let groups = divide(&wanted, settings);
    submitted.tasks = groups.iter().map(|(_, tasks)| tasks.len()).sum();
    let id = format!("{}-{}", crate::format::now().strftime("%Y%m%dT%H%M%SZ"), std::process::id());
    let folder = Submission::create_folder(request.results, &name, &id)?;
    let recipe = format!("{}.toml", file_part(sweep.base.name()));
    atomic::write(&folder.join(&recipe), sweep.base.copy().as_bytes())?;
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
            tasks: groups.into_iter().flat_map(|(_, tasks)| tasks).collect(),
            jobs,
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
            in_words(needs)
        ));
    }
    submitted.jobs = submit_jobs(&submission, &needs, system)?;
    submitted.submission = Some(submission.folder);
    Ok(submitted)
}

/// Submits the jobs of a submission, and one more that runs what is left after them.
fn submit_jobs(submission: &Submission, needs: &[TaskNeeds], system: &dyn BatchSystem) -> Result<Vec<JobId>> {
    let program = submission.keep_program()?;
    let command: Vec<OsString> = vec![program.into(), TASK_COMMAND.into(), submission.folder.clone().into()];
    let mut ids: Vec<JobId> = Vec::new();
    let job = |job: &SubmittedJob, needs: TaskNeeds, after: &[JobId]| ArrayJob {
        name: job.name.clone(),
        command: command.clone(),
        first: job.first,
        count: job.count,
        needs,
        after: after.to_vec(),
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
    for (one, needs) in submission.content.jobs.iter().zip(needs) {
        ids.push(submitted(system.submit(&job(one, *needs, &[])), &ids)?);
    }
    let last = submission.last_job();
    let most = |get: fn(&TaskNeeds) -> u64| needs.iter().map(get).max().unwrap_or(1);
    let needs = TaskNeeds {
        gpus: most(|needs| needs.gpus as u64) as usize,
        cpus: most(|needs| needs.cpus as u64) as usize,
        memory_mib: most(|needs| needs.memory_mib),
        time: Duration::from_secs(most(|needs| needs.time.as_secs())),
    };
    ids.push(submitted(system.submit(&job(&last, needs, &ids)), &ids)?);
    Ok(ids)
}

/// Returns the cells of a sweep that wait or run in earlier submissions.
pub fn queued_cells(results: &Path, sweep: &str, system: &dyn BatchSystem) -> Result<HashSet<usize>> {
    let submissions = Submission::all(results, sweep)?;
    let names: Vec<String> = submissions.iter().flat_map(Submission::job_names).collect();
    let queued = system.queued(&names)?;
    let cells = submissions.iter().flat_map(|one| queued.iter().flat_map(|task| one.cells_of(task)));
    Ok(cells.copied().collect())
}

/// Returns what a cell needs; `None` if it cannot run, which a task records.
fn needs_of(cell: &Cell, settings: &SlurmSettings) -> Result<Option<TaskNeeds>> {
    let Ok(work) = &cell.work else { return Ok(None) };
    let CellFit { planned_bytes, refusal: None, needs } = work.fit()? else { return Ok(None) };
    let execution = &work.plan.execution;
    let gpus = execution.gpus().count();
    let predicted = needs.time.map(|time| Duration::from_secs_f64(time.total_s * TIME_MARGIN));
    let given = settings.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let time = given.or(predicted).ok_or_else(|| {
        Error::usage(format!(
            "no time is predicted for {} ({}), because the speed of the device is unknown; set executor.slurm.minutes",
            cell.name,
            crate::sweep::axes::format_settings(&cell.settings)
        ))
    })?;
    let planned_mib = if gpus == 0 { planned_bytes.div_ceil(1 << 20) * 5 / 4 } else { 3 * HOST_MEMORY_MIB };
    Ok(Some(TaskNeeds {
        gpus,
        cpus: settings.cpus.unwrap_or(if gpus == 0 { execution.threads } else { CPUS_WITH_GPU * gpus }),
        memory_mib: settings.memory_mib.unwrap_or(planned_mib + HOST_MEMORY_MIB),
        time,
    }))
}

/// The tasks of one shape: what each needs, and the cells of each.
type Group = (TaskNeeds, Vec<Vec<usize>>);

/// Divides cells into tasks, group by group of cells that need the same devices.
fn divide(wanted: &[Planned], settings: &SlurmSettings) -> Vec<Group> {
    let per_task = settings.cells_per_task.unwrap_or(wanted.len().div_ceil(MOST_TASKS)).max(1);
    let mut shapes: BTreeMap<(usize, usize), Vec<&Planned>> = BTreeMap::new();
    for cell in wanted {
        shapes.entry((cell.needs.gpus, cell.needs.cpus)).or_default().push(cell);
    }
    let group = |((gpus, cpus), cells): ((usize, usize), Vec<&Planned>)| {
        let tasks = cells.chunks(per_task);
        let times = tasks.clone().map(|task| task.iter().map(|cell| cell.needs.time).sum::<Duration>());
        let time = match settings.minutes {
            Some(minutes) => Duration::from_secs(minutes * 60),
            None => times.max().unwrap_or_default() + START_TIME,
        };
        let memory_mib = cells.iter().map(|cell| cell.needs.memory_mib).max().unwrap_or_default();
        let tasks = tasks.map(|task| task.iter().map(|cell| cell.at).collect()).collect();
        (TaskNeeds { gpus, cpus, memory_mib, time }, tasks)
    };
    shapes.into_iter().map(group).collect()
}

/// Divides the tasks of every group into jobs of at most `most` tasks. Returns the jobs, and what a task of
/// each needs.
fn jobs(groups: &[Group], name: &str, most: usize) -> (Vec<SubmittedJob>, Vec<TaskNeeds>) {
    let (mut jobs, mut all_needs, mut first) = (Vec::new(), Vec::new(), 0);
    for (needs, tasks) in groups {
        for chunk in tasks.chunks(most) {
            let name = format!("{name}-{}", jobs.len() + 1);
            jobs.push(SubmittedJob { name, first, count: chunk.len() });
            all_needs.push(*needs);
            first += chunk.len();
        }
    }
    (jobs, all_needs)
}

/// Describes what a task needs.
fn in_words(needs: &TaskNeeds) -> String {
    let gpus =
        if needs.gpus > 0 { format!("{} GPU{}, ", needs.gpus, plural(needs.gpus)) } else { String::new() };
    format!(
        "{gpus}{} CPU{}, {} of memory, {} (the prediction times {TIME_MARGIN}, and {} to start)",
        needs.cpus,
        plural(needs.cpus),
        binary((needs.memory_mib << 20) as usize),
        wall_time(needs.time.as_secs_f64()),
        wall_time(START_TIME.as_secs_f64())
    )
}
