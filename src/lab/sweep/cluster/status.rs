//! Tells how far a submitted sweep is, from the ledger and the queue, and cancels it.

use super::submission::Submission;
use crate::error::Result;
use crate::executor::batch_system::{JobId, QueuedTask, TaskState};
use crate::format::plural;
use crate::results::ledger::{CellStatus, Ledger};
use crate::sweep::cells;
use crate::sweep::table::SweepCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;

/// Describes how far the sweep in a folder is. Writes nothing, so it works in a folder that belongs to
/// somebody else. `ssh_command` is the command of the user's own settings.
///
/// # Errors
/// If the sweep or the ledger cannot be read.
pub fn status(results: &Path, folder: &Path, ssh_command: &[String]) -> Result<String> {
    let listed = cells(folder)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let submissions = Submission::all(results, &name)?;
    // Ask for the queue before reading the ledger: a task that ends between the two has ended its cells too.
    // Without an answer of the batch system, the ledger still says what is done.
    let queued = Submission::queued(&submissions, ssh_command);
    let ledger = Ledger::read(results)?;
    let mut text = format!("{name}: {} cell{}\n", listed.len(), plural(listed.len()));
    let tasks = queued.as_ref().map_or(&[][..], Vec::as_slice);
    let submitted = submissions
        .iter()
        .flat_map(|one| &one.content.tasks)
        .flat_map(|work| work.cells(listed.len()))
        .collect();
    let waiting = queued_cells(&submissions, tasks, listed.len());
    for (words, count) in counts(&listed, &ledger, &submitted, &waiting) {
        let _ = writeln!(text, "{count:>8}  {words}");
    }
    match &queued {
        Err(e) => _ = writeln!(text, "the queue is unknown: {}", e.message()),
        Ok(tasks) => text += &queue_in_words(tasks),
    }
    Ok(text)
}

/// Returns the cells, of `count` in the sweep, of tasks that have not ended, each with the state of its task.
/// If several tasks may run a cell, one that runs comes before one that waits.
pub fn queued_cells<'a>(
    submissions: &[Submission],
    tasks: &'a [QueuedTask],
    count: usize,
) -> HashMap<usize, &'a TaskState> {
    let rank = |state: &TaskState| match state {
        TaskState::Running(_) => 2,
        TaskState::Waiting(_) => 1,
        TaskState::Unknown(_) => 0,
    };
    let mut cells: HashMap<usize, &TaskState> = HashMap::new();
    for submission in submissions {
        for task in tasks {
            for cell in submission.cells_of(task, count) {
                let state = cells.entry(cell).or_insert(&task.state);
                if rank(&task.state) > rank(state) {
                    *state = &task.state;
                }
            }
        }
    }
    cells
}

/// Returns the number of cells by what is known about them. `submitted` are those of any task, and `queued`
/// those of tasks that have not ended.
fn counts(
    cells: &[SweepCell],
    ledger: &Ledger,
    submitted: &HashSet<usize>,
    queued: &HashMap<usize, &TaskState>,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (at, cell) in cells.iter().enumerate() {
        let last = ledger.last(&cell.key).map(|last| last.status);
        let words = match (last, queued.get(&at).copied()) {
            (Some(status), _) if status.is_final() => status.to_string(),
            (_, Some(TaskState::Waiting(_))) => "waiting in the queue".to_owned(),
            (_, Some(TaskState::Unknown(_))) => "on a host that does not answer".to_owned(),
            (None, Some(TaskState::Running(_))) => "next in a running task".to_owned(),
            (None, None) if submitted.contains(&at) => "left by a task that ended".to_owned(),
            (None, None) => "not submitted".to_owned(),
            (Some(CellStatus::Running), None) => "running when its task ended".to_owned(),
            (Some(status), _) => status.to_string(),
        };
        *counts.entry(words).or_default() += 1;
    }
    counts
}

/// Describes the tasks that have not ended.
fn queue_in_words(tasks: &[QueuedTask]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let mut nodes: BTreeSet<&str> = BTreeSet::new();
    let mut unknown: BTreeMap<&str, usize> = BTreeMap::new();
    let mut running = 0;
    for task in tasks {
        match &task.state {
            TaskState::Running(node) => {
                running += 1;
                nodes.insert(node);
            }
            TaskState::Waiting(reason) => *reasons.entry(reason).or_default() += 1,
            TaskState::Unknown(why) => *unknown.entry(why).or_default() += 1,
        }
    }
    if tasks.is_empty() {
        return "no task is queued\n".to_owned();
    }
    let mut text = format!(
        "{running} task{} run{} on {} node{}",
        plural(running),
        if running == 1 { "s" } else { "" },
        nodes.len(),
        plural(nodes.len())
    );
    for (reason, count) in reasons {
        let _ = write!(text, ", {count} wait{} ({reason})", if count == 1 { "s" } else { "" });
    }
    text.push('\n');
    for (why, count) in unknown {
        let _ = writeln!(text, "{count} task{} may run: {why}", plural(count));
    }
    text
}

/// Ends the tasks of a sweep that are queued or running. Returns how many tasks that were.
/// `ssh_command` is the command of the user's own settings.
///
/// # Errors
/// If the submissions cannot be read, or a batch system or a node does not answer.
pub fn cancel(results: &Path, folder: &Path, ssh_command: &[String]) -> Result<usize> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let submissions = Submission::all(results, &name)?;
    let mut count = 0;
    for (system, names) in Submission::by_system(&submissions, ssh_command) {
        let queued = system.queued(&names)?;
        let jobs: BTreeSet<JobId> = queued.iter().map(|task| task.job.clone()).collect();
        system.cancel(&jobs.into_iter().collect::<Vec<_>>())?;
        count += queued.len();
    }
    Ok(count)
}
