//! Runs a task of a submitted comparison on a node.

use super::submitted_comparison::SubmittedComparison;
use crate::compare::{FinishedComparison, run_pairs, run_until};
use crate::error::{ErrorKind, Result};
use crate::ranks::{Stop, environment};
use crate::results::progress::eprint_line;
use crate::sweep::{Submission, TaskWork};
use std::path::{Path, PathBuf};

/// A task of a comparison that has ended.
#[derive(Debug)]
pub enum EndedTask {
    /// It ran some runs.
    Runs,
    /// It was the last one, which answers the question.
    Answered {
        /// The results folder.
        results: PathBuf,
        /// The answer.
        comparison: Box<FinishedComparison>,
    },
}

/// Runs a task of the submission in a folder. If the batch system announces the end of the task's time, runs
/// save their state and the task is queued again, unless they are timed: those would begin again.
///
/// # Errors
/// [`ErrorKind::Interrupted`] after a signal. Fails if the submission cannot be read, if the question has
/// changed, or if the ledger or the record cannot be written.
pub fn run_task(folder: &Path, task: usize) -> Result<EndedTask> {
    let submission: Submission<SubmittedComparison> = Submission::read(folder)?;
    let system = submission.system();
    let system = system.as_ref();
    let stop = Stop::on_signals(None)?;
    let results = submission.results()?;
    let work = &submission.content.work;
    let own = submission.work_of(task)?;
    let question = work.question(results, &submission.folder)?;
    let setting = work.setting(results, environment::machine(), system);
    let answered = |comparison: FinishedComparison| EndedTask::Answered {
        results: results.to_owned(),
        comparison: Box::new(comparison),
    };
    let ended = match (own, &work.comparison) {
        (Some(TaskWork::Cells(runs)), Some(name)) => {
            run_pairs::run_some(&question, &setting, name, runs, &stop).map(|()| EndedTask::Runs)
        }
        (_, Some(name)) => run_pairs::finish(&question, &setting, name, &stop).map(answered),
        (_, None) => run_until(&question, setting, &stop).map(answered),
    };
    if stop.was_announced() && ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::Interrupted) {
        if work.comparison.is_some() {
            submission.requeue(system);
        } else {
            eprint_line(
                "the time of this task ends before all runs were measured; set executor.slurm.minutes and submit again",
            );
        }
    }
    ended
}
