//! Tells how far a submitted sweep or comparison is, from the ledger and the queue, and cancels it.

use super::submission::Submission;
use crate::error::Result;
use crate::executor::batch_system::{JobId, QueuedTask, TaskState};
use crate::format::plural;
use crate::results::ledger::{CellStatus, Ledger};
use crate::sweep::cells;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::path::Path;

/// Describes how far the sweep in a folder is. Writes nothing, so it works in a folder that belongs to
/// somebody else. `ssh_command` is the command of the user's own settings.
///
/// # Errors
/// If the sweep or the ledger cannot be read.
pub fn status(results: &Path, folder: &Path, ssh_command: &[String]) -> Result<String> {
    let keys: Vec<String> = cells(folder)?.into_iter().map(|cell| cell.key).collect();
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let counted = status_of_cells(results, &name, &keys, ssh_command)?;
    Ok(format!("{name}: {} cell{}\n{counted}", keys.len(), plural(keys.len())))
}

/// Counts the cells with these keys of a sweep or comparison by what is known about them, and its tasks by
/// what they do. `name` is that of the folder of its submissions.
///
/// # Errors
/// If the submissions or the ledger cannot be read.
pub fn status_of_cells(
    results: &Path,
    name: &str,
    keys: &[String],
    ssh_command: &[String],
) -> Result<String> {
    let submissions = Submission::<IgnoredAny>::all(results, name)?;
    // Ask for the queue before reading the ledger: a task that ends between the two has ended its cells too.
    // Without an answer of the batch system, the ledger still says what is done.
    let queued = Submission::queued(&submissions, ssh_command);
    let ledger = Ledger::read(results)?;
    let mut text = String::new();
    let tasks = queued.as_ref().map_or(&[][..], Vec::as_slice);
    let submitted = submissions
        .iter()
        .flat_map(|one| &one.content.tasks)
        .flat_map(|work| work.cells(keys.len()))
        .collect();
    let waiting = queued_cells(&submissions, tasks, keys.len());
    for (words, count) in counts(keys, &ledger, &submitted, &waiting) {
        let _ = writeln!(text, "{count:>8}  {words}");
    }
    match &queued {
        Err(e) => _ = writeln!(text, "the queue is unknown: {}", e.message()),
        Ok(tasks) => text += &queue_in_words(tasks),
    }
    Ok(text)
}

/// Returns the cells, of `count` in the sweep or comparison, of tasks that have not ended, each with the state
/// of its task. If several tasks may run a cell, one that runs comes before one that waits.
pub fn queued_cells<'a, W>(
    submissions: &[Submission<W>],
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
    keys: &[String],
    ledger: &Ledger,
    submitted: &HashSet<usize>,
    queued: &HashMap<usize, &TaskState>,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (at, key) in keys.iter().enumerate() {
        let last = ledger.last(key).map(|last| last.status);
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

/// Ends the tasks of a sweep or comparison that are queued or running. `name` is that of the folder of its
/// submissions, `ssh_command` the command of the user's own settings. Returns how many tasks that were.
///
/// # Errors
/// If the submissions cannot be read, or a batch system or a node does not answer.
pub fn cancel(results: &Path, name: &str, ssh_command: &[String]) -> Result<usize> {
    let submissions = Submission::<IgnoredAny>::all(results, name)?;
    let mut count = 0;
    for (system, names) in Submission::by_system(&submissions, ssh_command) {
        let queued = system.queued(&names)?;
        let jobs: BTreeSet<JobId> = queued.iter().map(|task| task.job.clone()).collect();
        system.cancel(&jobs.into_iter().collect::<Vec<_>>())?;
        count += queued.len();
    }
    Ok(count)
}
