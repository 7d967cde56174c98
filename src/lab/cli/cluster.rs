//! Options of commands whose runs may be submitted to a batch system.

use crate::error::Result;
use crate::executor::SlurmSettings;
use std::path::PathBuf;

/// Where runs are made.
#[derive(clap::Args, Debug)]
pub struct ClusterArgs {
    /// Where runs are made: in processes of this machine, or as jobs of Slurm, which this command submits
    /// without waiting for them.
    #[arg(long, value_enum, default_value_t = ExecutorName::Local)]
    executor: ExecutorName,
    /// Settings of the executor, in place of those of `xrun.toml` here or in the configuration folder.
    #[arg(long, value_name = "FILE")]
    executor_settings: Option<PathBuf>,
    /// Print how far the submitted runs are; RECIPE is then the name of the sweep or comparison.
    #[arg(long, conflicts_with = "cancel")]
    pub status: bool,
    /// End the tasks that were submitted, and remove those that wait; RECIPE is then the name of the sweep or
    /// comparison.
    #[arg(long)]
    pub cancel: bool,
}

/// Where runs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExecutorName {
    Local,
    Slurm,
}

impl ClusterArgs {
    /// Returns true if runs are submitted to a batch system.
    pub fn is_batch(&self) -> bool {
        self.executor == ExecutorName::Slurm
    }

    /// Returns true if the command is about what was submitted before.
    pub fn looks(&self) -> bool {
        self.status || self.cancel
    }

    /// Reads the settings of the batch system.
    ///
    /// # Errors
    /// If [`SlurmSettings::load`] fails.
    pub fn settings(&self) -> Result<SlurmSettings> {
        SlurmSettings::load(self.executor_settings.as_deref())
    }
}

/// Arguments of the hidden commands that run a task.
#[derive(clap::Args, Debug)]
pub struct TaskArgs {
    /// The folder of the submission.
    pub submission: PathBuf,
    /// The number of the task.
    pub task: usize,
}
