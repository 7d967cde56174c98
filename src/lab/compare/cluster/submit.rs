//! Submits a comparison: plans its runs, stores the question, and queues the tasks.

use super::submitted_comparison::SubmittedComparison;
use crate::compare::pairs::PairRuns;
use crate::compare::{Arms, ArmsRequest, Options, Question, confirm, run_pairs};
use crate::error::{Error, Result};
use crate::executor::TaskSettings;
use crate::executor::batch_system::{BatchSystem, TaskNeeds};
use crate::forecast::Planned;
use crate::plan::corpus_facts;
use crate::ranks::Stop;
use crate::results::experiment::{Design, Experiment};
use crate::statistics::FIRST_LOOK;
use crate::sweep::{
    Parts, START_TIME, Submission, Submitted, SubmittedCell, TaskGroup, Work, create_folder,
    divide_independent, largest_needs, needs_of, prepare, queued_cells, submit_parts,
};
use serde::de::IgnoredAny;
use std::path::Path;
use std::time::Duration;

/// The hidden command that runs a task.
pub const TASK_COMMAND: &str = "compare-task";

/// Host memory to judge runs that are stored.
const MEMORY_TO_JUDGE_MIB: u64 = 2 << 10;

/// A comparison to submit.
#[derive(Clone, Debug)]
pub struct ComparisonRequest {
    /// The arms.
    pub arms: ArmsRequest,
    /// What is judged.
    pub options: Options,
    /// The stored comparison to repeat; then the arms are its arms.
    pub confirmed: Option<String>,
    /// The longest time of a run.
    pub timeout: Option<Duration>,
}

/// Submits a comparison to a batch system and returns at once. `ssh_command` is the command of the user's own
/// settings, to ask for earlier submissions.
///
/// # Errors
/// A usage error for a wrong question, for arms that a task cannot run, or if a run's time is unknown. Fails
/// if a file cannot be written or the batch system refuses a job.
pub fn submit(
    request: &ComparisonRequest,
    results: &Path,
    settings: &TaskSettings,
    (system, ssh_command): (&dyn BatchSystem, &[String]),
) -> Result<Submitted> {
    let ComparisonRequest { arms, options, confirmed, timeout } = request;
    if arms.runs.is_some() {
        return Err(Error::usage("--runs compares stored runs, so there is nothing to submit"));
    }
    if arms.before_rev.is_some() {
        return Err(Error::usage(
            "--before-rev: a node may have no compiler; build the commit here and name it with --before-bin",
        ));
    }
    let question = match confirmed {
        Some(confirmed) => confirm(results, confirmed, options)?,
        None => Question::new(Arms::new(arms, results)?, options)?,
    };
    prepare(results)?;
    let work = SubmittedComparison {
        arms: arms.clone(),
        options: options.clone(),
        confirmed: confirmed.clone(),
        timeout_s: timeout.map(|limit| limit.as_secs_f64()),
        copies: Vec::new(),
        comparison: None,
        seeds: Vec::new(),
        keys: Vec::new(),
    };
    if question.is_timed() || matches!(question.design, Design::Trials { .. }) {
        return submit_timed(&question, work, results, settings, (system, ssh_command));
    }
    let stop = Stop::default();
    let setting = work.setting(results, settings.machine.clone(), system);
    run_pairs::ask(&question, &setting, &stop, |experiment, runs| {
        submit_pairs(experiment, runs, work, results, settings, (system, ssh_command))
    })
}

/// Submits one task with all runs, one after another on a node of its own, because they are timed.
fn submit_timed(
    question: &Question,
    mut work: SubmittedComparison,
    results: &Path,
    settings: &TaskSettings,
    (system, ssh_command): (&dyn BatchSystem, &[String]),
) -> Result<Submitted> {
    if system.last_tasks() > 1 {
        return Err(Error::usage(
            "times are measured on one host; name one, as in --hosts a, or leave out what is timed",
        ));
    }
    let needs = timed_needs(question, settings)?;
    let hash = question.hash(&question.asked_arms()?);
    let name = format!("{}+{}", folder_prefix(&question.name), &hash[..8]);
    let mut submitted = Submitted {
        status_command: format!("xrun compare --status {}", question.name),
        cells: 2 * question.design.max_pairs(),
        tasks: 1,
        ..Submitted::default()
    };
    let submissions = Submission::<IgnoredAny>::all(results, &name)?;
    if !Submission::queued(&submissions, ssh_command)?.is_empty() {
        return Ok(Submitted { queued: submitted.cells, cells: 0, tasks: 0, ..submitted });
    }
    let folder = create_folder(results, &name)?;
    work.copies = SubmittedComparison::copy_recipes(&work.arms, &folder)?;
    let parts =
        Parts { name, folder, work, groups: Vec::new(), last: Some(needs), task_command: TASK_COMMAND };
    submitted.jobs = submit_parts(parts, settings, system)?;
    Ok(submitted)
}

/// Returns what a task needs that takes all runs of a question in turns.
///
/// # Errors
/// A usage error if an arm does not fit, or if the time is neither predicted nor set.
fn timed_needs(question: &Question, settings: &TaskSettings) -> Result<TaskNeeds> {
    let machine = &settings.machine;
    let minutes = settings.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let (mut each, mut time) = (Vec::new(), START_TIME);
    for arm in question.arms.both() {
        let Some(recipe) = arm.recipe_for_trials(machine) else {
            let is_known = minutes.is_some() || !settings.has_time_limit;
            is_known.then_some(()).ok_or_else(|| {
                Error::usage(format!(
                    "no time is predicted for the command {:?}; set executor.slurm.minutes",
                    arm.command
                ))
            })?;
            continue;
        };
        let Planned { recipe, plan, .. } = Planned::new(&recipe, &corpus_facts(&recipe)?, machine)?;
        let work = Work { recipe, plan, machine: machine.clone() };
        if let Some(refusal) = work.fit()?.refusal {
            return Err(refusal);
        }
        let Some(needs) = needs_of(&work, settings, || arm.command.clone())? else { continue };
        time += needs.time * u32::try_from(question.design.max_pairs()).unwrap_or(u32::MAX);
        each.push(needs);
    }
    Ok(TaskNeeds { time: minutes.unwrap_or(time), exclusive: true, ..largest_needs(&each) })
}

/// Submits the runs of pairs that are neither stored nor queued, of a question that has been asked.
fn submit_pairs(
    experiment: &Experiment,
    runs: &PairRuns<'_>,
    mut work: SubmittedComparison,
    results: &Path,
    settings: &TaskSettings,
    (system, ssh_command): (&dyn BatchSystem, &[String]),
) -> Result<Submitted> {
    let cells = runs.cells()?;
    let name = format!("{}+{}", folder_prefix(&experiment.name), experiment.id);
    let submissions = Submission::<IgnoredAny>::all(results, &name)?;
    let tasks = Submission::queued(&submissions, ssh_command)?;
    let queued = queued_cells(&submissions, &tasks, cells.len());
    let mut submitted = Submitted {
        status_command: format!("xrun compare --status {}", experiment.full_name()),
        ..Submitted::default()
    };
    let mut wanted = Vec::new();
    for (at, (cell, is_stored)) in cells.iter().enumerate() {
        if queued.contains_key(&at) {
            submitted.queued += 1;
        } else if *is_stored {
            submitted.done += 1;
        } else if let Some(needs) = needs_of(cell.work, settings, || experiment.full_name())? {
            wanted.push(SubmittedCell { at, needs });
        } else {
            submitted.done += 1;
        }
    }
    // Without runs to make, the last task still has to answer.
    if wanted.is_empty() && !tasks.is_empty() {
        return Ok(submitted);
    }
    submitted.cells = wanted.len();
    let groups = divide_pairs(&experiment.design, &wanted, settings);
    submitted.tasks = groups.iter().map(|group| group.tasks.len()).sum();
    work.comparison = Some(experiment.full_name());
    work.seeds = experiment.pairs().map(|pair| pair.seeds().map(Option::unwrap_or_default)).collect();
    work.keys = cells.iter().map(|(cell, _)| cell.key.to_owned()).collect();
    let folder = create_folder(results, &name)?;
    work.copies = SubmittedComparison::copy_recipes(&work.arms, &folder)?;
    let last = if wanted.is_empty() { Some(needs_to_judge(settings)) } else { None };
    let parts = Parts { name, folder, work, groups, last, task_command: TASK_COMMAND };
    submitted.jobs = submit_parts(parts, settings, system)?;
    Ok(submitted)
}

/// Divides runs into tasks. In a sequential design those of each pair after the first look wait for the pairs
/// before them, which may decide the question.
fn divide_pairs(design: &Design, wanted: &[SubmittedCell], settings: &TaskSettings) -> Vec<TaskGroup> {
    if !matches!(design, Design::Sequential { .. }) {
        return divide_independent(wanted, settings);
    }
    let look = |cell: &SubmittedCell| (cell.at / 2 + 1).saturating_sub(FIRST_LOOK);
    let looks = wanted.chunk_by(|a, b| look(a) == look(b));
    let groups = looks.enumerate().flat_map(|(stage, cells)| {
        divide_independent(cells, settings).into_iter().map(move |group| TaskGroup { stage, ..group })
    });
    groups.collect()
}

/// Returns what the last task needs if all runs are stored.
fn needs_to_judge(settings: &TaskSettings) -> TaskNeeds {
    let time = settings.minutes.map_or(START_TIME, |minutes| Duration::from_secs(60 * minutes));
    let memory_mib = settings.memory_mib.unwrap_or(MEMORY_TO_JUDGE_MIB);
    TaskNeeds { gpus: 0, cpus: settings.cpus.unwrap_or(1), memory_mib, time, exclusive: false }
}

/// Returns the beginning of the names of the folders with submissions of the comparisons called `name`. No
/// sweep has such a name, because its name has no plus sign.
pub fn folder_prefix(name: &str) -> String {
    format!("compare+{}", name.replace('/', "+"))
}
