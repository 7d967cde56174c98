//! Tells how far a submitted sweep or comparison is, from the ledger and the queue, and cancels it.

use super::submission::Submission;
use crate::error::Result;
use crate::executor::batch_system::{JobId, QueuedTask, TaskState};
use crate::format::plural;
use crate::results::ledger::{CellStatus, Ledger};
use crate::sweep::cells;
use serde::Serialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::Path;

/// How far a submitted sweep or comparison is.
#[derive(Debug, Serialize)]
pub struct SubmittedStatus {
    /// Its name.
    pub name: String,
    /// The number of cells.
    pub cells: usize,
    /// The number of cells by what is known about them.
    pub by_status: BTreeMap<String, usize>,
    /// Its tasks; `None` if the batch system does not answer.
    pub tasks: Option<TaskCounts>,
    /// Why the tasks are unknown.
    pub unknown_because: Option<String>,
}

/// The tasks that have not ended.
#[derive(Debug, Default, Serialize)]
pub struct TaskCounts {
    /// How many run.
    pub running: usize,
    /// The nodes that they run on.
    pub nodes: BTreeSet<String>,
    /// How many wait, by reason.
    pub waiting: BTreeMap<String, usize>,
    /// How many may run, by the reason why nobody knows.
    pub unknown: BTreeMap<String, usize>,
}

/// Tells how far the sweep in a folder is. Writes nothing, so it works in a folder that belongs to somebody
/// else. `ssh_command` is the command of the user's own settings.
///
/// # Errors
/// If the sweep or the ledger cannot be read.
pub fn status(results: &Path, folder: &Path, ssh_command: &[String]) -> Result<SubmittedStatus> {
    let keys: Vec<String> = cells(folder)?.into_iter().map(|cell| cell.key).collect();
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    status_of_cells(results, &name, &keys, ssh_command)
}

/// Tells how far the cells with these keys are, of the sweep or comparison whose submissions are in the folder
/// `name`.
///
/// # Errors
/// If the submissions or the ledger cannot be read.
pub fn status_of_cells(
    results: &Path,
    name: &str,
    keys: &[String],
    ssh_command: &[String],
) -> Result<SubmittedStatus> {
    let submissions = Submission::<IgnoredAny>::all(results, name)?;
    // Ask for the queue before reading the ledger: a task that ends between the two has ended its cells too.
    // Without an answer of the batch system, the ledger still says what is done.
    let queued = Submission::queued(&submissions, ssh_command);
    let ledger = Ledger::read(results)?;
    let tasks = queued.as_ref().map_or(&[][..], Vec::as_slice);
    let submitted = submissions
        .iter()
        .flat_map(|one| &one.content.tasks)
        .flat_map(|work| work.cells(keys.len()))
        .collect();
    let waiting = queued_cells(&submissions, tasks, keys.len());
    Ok(SubmittedStatus {
        name: name.to_owned(),
        cells: keys.len(),
        by_status: counts(keys, &ledger, &submitted, &waiting),
        unknown_because: queued.as_ref().err().map(|e| e.message().to_owned()),
        tasks: queued.ok().map(|tasks| TaskCounts::new(&tasks)),
    })
}

impl TaskCounts {
    fn new(tasks: &[QueuedTask]) -> Self {
        let mut counts = Self::default();
        for task in tasks {
            match &task.state {
                TaskState::Running(node) => {
                    counts.running += 1;
                    counts.nodes.insert(node.clone());
                }
                TaskState::Waiting(reason) => *counts.waiting.entry(reason.clone()).or_default() += 1,
                TaskState::Unknown(why) => *counts.unknown.entry(why.clone()).or_default() += 1,
            }
        }
        counts
    }
}

impl fmt::Display for SubmittedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (words, count) in &self.by_status {
            writeln!(f, "{count:>8}  {words}")?;
        }
        match (&self.tasks, &self.unknown_because) {
            (Some(tasks), _) => tasks.fmt(f),
            (None, why) => writeln!(f, "the queue is unknown: {}", why.as_deref().unwrap_or("no answer")),
        }
    }
}

impl fmt::Display for TaskCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { running, nodes, waiting, unknown } = self;
        if *running == 0 && waiting.is_empty() && unknown.is_empty() {
            return writeln!(f, "no task is queued");
        }
        let (s, runs) = (plural(*running), if *running == 1 { "runs" } else { "run" });
        write!(f, "{running} task{s} {runs} on {} node{}", nodes.len(), plural(nodes.len()))?;
        for (reason, count) in waiting {
            write!(f, ", {count} wait{} ({reason})", if *count == 1 { "s" } else { "" })?;
        }
        writeln!(f)?;
        for (why, count) in unknown {
            writeln!(f, "{count} task{} may run: {why}", plural(*count))?;
        }
        Ok(())
    }
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
