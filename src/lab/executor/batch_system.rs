//! Batch systems, which run the tasks of a sweep on the nodes of a cluster.
//!
//! ```text
//! sweep ─▶ ArrayJob ─▶ BatchSystem: Slurm ─▶ one task per element: `xrun sweep-task` ─▶ LocalProcesses
//! ```
//!
//! The command that submits does not wait. Everything that a task needs is in the results folder, which all
//! nodes share. A batch system queues, places and ends tasks, and knows nothing of sweeps, so a further one
//! needs only one file.

use crate::error::Result;
use std::ffi::OsString;
use std::path::PathBuf;
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

    /// Returns the tasks of the jobs with these names that have not ended.
    ///
    /// # Errors
    /// If the batch system does not answer.
    fn queued(&self, names: &[String]) -> Result<Vec<QueuedTask>>;

    /// Ends jobs, and removes their waiting tasks. Jobs that have ended stay as they are.
    ///
    /// # Errors
    /// If the batch system does not answer.
    fn cancel(&self, jobs: &[JobId]) -> Result<()>;

    /// Returns how a task ended that is named as the ledger names it; `None` if that is not known, because the
    /// task runs or no accounting is kept.
    fn end_of_task(&self, task: &str) -> Option<TaskEnd>;

    /// Puts the task that this process runs back into the queue, which ends this process soon. Returns false
    /// if it has been queued again `most` times.
    ///
    /// # Errors
    /// If the batch system refuses.
    fn requeue_own_task(&self, most: usize) -> Result<bool>;
}
