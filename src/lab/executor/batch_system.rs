//! Batch systems, which run the tasks of a sweep on the nodes of a cluster.
//!
//! ```text
//! sweep ─▶ ArrayJob ─▶ BatchSystem: Slurm, Ssh ─▶ one task per element: `xrun sweep-task` ─▶ LocalProcesses
//! ```
//!
//! The command that submits does not wait. Everything that a task needs is in the results folder, which all
//! nodes share. A batch system queues, places and ends tasks, and knows nothing of sweeps, so a further one
//! needs only one file.

use super::settings::SshSettings;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Equal tasks that are submitted together. Each runs `command` with its own number at the end.
#[derive(Clone, Debug)]
pub struct ArrayJob {
    /// A name that no other job has. A job is found by its name, because the answer to its submission may be
    /// lost.
    pub name: String,
    /// The command of every task.
    pub command: Vec<OsString>,
    /// The number of the first task.
    pub first: usize,
    /// How many tasks.
    pub count: usize,
    /// What each task needs.
    pub needs: TaskNeeds,
    /// Jobs that must have ended, well or badly, before the tasks start.
    pub after: Vec<JobId>,
    /// The folder of the job's script and of its tasks' output.
    pub folder: PathBuf,
}

/// What a task needs on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskNeeds {
    /// GPUs.
    pub gpus: usize,
    /// CPU threads.
    pub cpus: usize,
    /// Host memory in MiB.
    pub memory_mib: u64,
    /// Time, after which the task is ended.
    pub time: Duration,
    /// Whether nothing else may run on the node, because times are measured.
    pub exclusive: bool,
}

/// The id of a submitted job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(pub String);

/// A task that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedTask {
    /// Its job.
    pub job: JobId,
    /// The name of its job.
    pub name: String,
    /// Its index among the tasks of the job.
    pub index: usize,
    /// Whether it runs, or why it waits.
    pub state: TaskState,
}

/// What a task does that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It waits for this reason, in the words of the batch system.
    Waiting(String),
    /// It runs on this node.
    Running(String),
    /// Nobody knows whether it has ended, because its node does not answer. The text names the node and says
    /// why.
    Unknown(String),
}

/// The batch system of a submission, as `submission.json` names it, so that a later command finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemRecord {
    /// The Slurm cluster that the results folder belongs to.
    #[default]
    Slurm,
    /// These hosts.
    Ssh(SshSettings),
}

/// How a task ended that left no word itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// The batch system took its node for another job, or somebody queued or ended it.
    Preempted,
    /// Its node failed.
    NodeFailed,
    /// Its time ended.
    TimeLimit,
    /// It needed more host memory than it had asked for.
    OutOfMemory,
}

/// Runs array jobs on the nodes of a cluster.
pub trait BatchSystem: std::fmt::Debug {
    /// Returns what a later command needs to find this batch system again.
    fn record(&self) -> SystemRecord;

    /// Returns how many tasks run what the others left. One is enough if the batch system runs it on a node
    /// that works.
    fn last_tasks(&self) -> usize;

    /// Checks that the nodes can run jobs whose files are in this folder.
    ///
    /// # Errors
    /// If a node cannot; the message names it and says why.
    fn check(&self, folder: &Path) -> Result<()>;

    /// Returns the most tasks of one job.
    ///
    /// # Errors
    /// If the batch system does not answer.
    fn most_tasks(&self) -> Result<usize>;

    /// Submits a job.
    ///
    /// # Errors
    /// If it is refused, or if no answer came. Then [`queued`](Self::queued) tells whether it is there.
    fn submit(&self, job: &ArrayJob) -> Result<JobId>;

    /// Returns the tasks of the jobs with these names that have not ended, or of which nobody knows.
    ///
    /// # Errors
    /// If the batch system does not answer.
    fn queued(&self, names: &[String]) -> Result<Vec<QueuedTask>>;

    /// Ends jobs, and removes their waiting tasks. Jobs that have ended stay as they are.
    ///
    /// # Errors
    /// If the batch system or a node does not answer. The jobs of nodes that answer have ended then.
    fn cancel(&self, jobs: &[JobId]) -> Result<()>;

    /// Returns how a task ended that is named as the ledger names it; `None` if that is not known, because the
    /// task runs or no accounting is kept.
    fn end_of_task(&self, task: &str) -> Option<TaskEnd>;

    /// Puts the task that this process runs back into the queue, which ends this process soon. Returns false
    /// if it has been queued again `most` times, or if the batch system never queues a task again: its cells
    /// stay as they are until another task, or another submission of the sweep, continues them.
    ///
    /// # Errors
    /// If the batch system refuses.
    fn requeue_own_task(&self, most: usize) -> Result<bool>;
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
