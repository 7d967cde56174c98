//! Writes a submission and queues its jobs.

use super::division::{START_TIME, TIME_MARGIN, TaskGroup, largest_needs};
use super::submission::{Content, Submission, SubmittedJob, job_name};
use crate::error::{Error, Result};
use crate::executor::TaskSettings;
use crate::executor::batch_system::{ArrayJob, BatchSystem, JobId, TaskNeeds};
use crate::format::{binary, plural, wall_time};
use crate::results::progress::eprint_line;
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;

/// What was submitted.
#[derive(Debug, Default)]
pub struct Submitted {
    /// The command that tells how far the cells are.
    pub status_command: String,
    /// The jobs, in order; empty if every cell is done or queued.
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
        let Self { status_command, cells, tasks, queued, done, jobs } = self;
        let rest = format!("{done} done or not to run, {queued} queued before");
        if jobs.is_empty() {
            return format!("nothing to submit: {rest}");
        }
        let ids: Vec<&str> = jobs.iter().map(|job| job.0.as_str()).collect();
        format!(
            "submitted {cells} cell{} in {tasks} task{}, {rest}; job{} {}; `{status_command}` shows how far \
             they are",
            plural(*cells),
            plural(*tasks),
            plural(jobs.len()),
            ids.join(", ")
        )
    }
}

/// What a submission consists of.
#[derive(Debug)]
pub struct Parts<W> {
    /// Name of the sweep or the comparison, as the folder of its submissions has it.
    pub name: String,
    /// The folder of the submission, which exists.
    pub folder: PathBuf,
    /// What is submitted.
    pub work: W,
    /// Its tasks.
    pub groups: Vec<TaskGroup>,
    /// What the last task needs; `None` for as much as the largest of the others.
    pub last: Option<TaskNeeds>,
    /// The hidden command that runs a task.
    pub task_command: &'static str,
}

/// Writes a submission and queues its jobs, and one more task that runs what is left after them.
///
/// # Errors
/// Fails if a file cannot be written or the batch system refuses a job.
pub fn submit_parts<W: Serialize>(
    parts: Parts<W>,
    settings: &TaskSettings,
    system: &dyn BatchSystem,
) -> Result<Vec<JobId>> {
    let Parts { name, folder, work, groups, last, task_command } = parts;
    // Until `submission.json` is written, nothing is submitted.
    system.check(&folder)?;
    let (jobs, needs) = jobs(&groups, &job_name(&name, &folder), system.most_tasks()?);
    let tasks = groups.into_iter().flat_map(|group| group.tasks).collect();
    let content =
        Content { name, work, most_requeues: settings.most_requeues, tasks, jobs, system: system.record() };
    let submission = Submission { folder, content };
    submission.write()?;
    let last_job = submission.last_job();
    let last = (&last_job, last.unwrap_or_else(|| largest_needs(&needs)));
    let all = || submission.content.jobs.iter().zip(needs.iter().copied());
    // What the last task needs is said if it is the only one.
    for (job, needs) in all().chain(needs.is_empty().then_some(last)) {
        let (count, s) = (job.count, plural(job.count));
        eprint_line(&format!("{}: {count} task{s}, each with {}", job.name, in_words(&needs, settings)));
    }
    let program = submission.keep_program()?;
    let command: Vec<OsString> = vec![program.into(), task_command.into(), submission.folder.clone().into()];
    let array = |job: &SubmittedJob, needs: TaskNeeds, after: Vec<JobId>| ArrayJob {
        name: job.name.clone(),
        command: command.clone(),
        first: job.first,
        count: job.count,
        needs,
        after,
        folder: submission.folder.clone(),
    };
    let mut ids: Vec<JobId> = Vec::new();
    for (job, needs) in all() {
        // Those of the stage before have waited for earlier ones.
        let before = all().zip(&ids).filter(|((other, _), _)| other.stage + 1 == job.stage);
        let after = before.map(|(_, id)| id.clone()).collect();
        ids.push(submit_job(&array(job, needs, after), &ids, system)?);
    }
    ids.push(submit_job(&array(last.0, last.1, ids.clone()), &ids, system)?);
    Ok(ids)
}

/// Submits a job after those with these ids.
fn submit_job(job: &ArrayJob, before: &[JobId], system: &dyn BatchSystem) -> Result<JobId> {
    system.submit(job).map_err(|e| {
        let ids: Vec<&str> = before.iter().map(|job| job.0.as_str()).collect();
        let before = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
        Error::failed(format!(
            "{}; submitted before: {before}; the same command submits the rest",
            e.message()
        ))
    })
}

/// Divides the tasks of every group into jobs of at most `most` tasks, named after `name`. Returns the jobs,
/// and what a task of each needs.
fn jobs(groups: &[TaskGroup], name: &str, most: usize) -> (Vec<SubmittedJob>, Vec<TaskNeeds>) {
    let (mut jobs, mut all_needs, mut first) = (Vec::new(), Vec::new(), 0);
    for TaskGroup { needs, tasks, stage } in groups {
        for chunk in tasks.chunks(most) {
            let name = format!("{name}-{}", jobs.len() + 1);
            jobs.push(SubmittedJob { name, first, count: chunk.len(), stage: *stage });
            all_needs.push(*needs);
            first += chunk.len();
        }
    }
    (jobs, all_needs)
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
