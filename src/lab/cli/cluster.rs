//! Options of commands whose runs may be submitted to a batch system.

use crate::error::{Error, Result};
use crate::executor::batch_system::BatchSystem;
use crate::executor::{Slurm, SlurmSettings, Ssh, SshSettings, TaskSettings};
use std::path::PathBuf;

/// Where runs are made.
#[derive(clap::Args, Debug)]
pub struct ClusterArgs {
    /// Where runs are made: in processes of this machine, or as tasks that this command submits without
    /// waiting for them, to Slurm or to hosts that share the results folder.
    #[arg(long, value_enum, default_value_t = ExecutorName::Local)]
    executor: ExecutorName,
    /// The hosts of --executor ssh, separated by commas, in place of executor.ssh.hosts.
    #[arg(long, value_name = "HOST", value_delimiter = ',', conflicts_with_all = ["status", "cancel"])]
    hosts: Vec<String>,
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
    Ssh,
}

impl ClusterArgs {
    /// Returns true if the command is about what was submitted before.
    pub fn looks(&self) -> bool {
        self.status || self.cancel
    }

    /// Returns the program `ssh` of the user's settings, to ask hosts for what was submitted before.
    ///
    /// # Errors
    /// If the settings are wrong.
    pub fn ssh_command(&self) -> Result<Vec<String>> {
        SshSettings::load_command(self.executor_settings.as_deref())
    }

    /// Returns the batch system to submit to, and how cells are divided into its tasks; `None` if runs are
    /// made on this machine.
    ///
    /// # Errors
    /// If the settings are wrong, or hosts are named that nothing runs on.
    pub fn batch_system(&self) -> Result<Option<(TaskSettings, Box<dyn BatchSystem>)>> {
        if !self.hosts.is_empty() && self.executor != ExecutorName::Ssh {
            return Err(Error::usage(
                "--hosts names the hosts of --executor ssh; add that, or leave --hosts out",
            ));
        }
        let file = self.executor_settings.as_deref();
        Ok(match self.executor {
            ExecutorName::Local => None,
            ExecutorName::Slurm => {
                let settings = SlurmSettings::load(file)?;
                Some((settings.tasks()?, Box::new(Slurm::new(settings))))
            }
            ExecutorName::Ssh => {
                let settings = SshSettings::load(file, &self.hosts)?;
                Some((settings.tasks()?, Box::new(Ssh::new(settings))))
            }
        })
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
