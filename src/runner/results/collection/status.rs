//! The status of a run as lists show it.

use crate::error::Result;
use crate::results::Status;
use crate::results::find;
use clap::ValueEnum;
use std::path::Path;

/// The status of a run in a list: what its summary says, and whether a process still works on it.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// Every planned step was trained.
    Ok,
    /// A process works on the run.
    Running,
    /// The run stopped after saving a checkpoint.
    Interrupted,
    /// The run's process ended without recording a status: SIGKILL, out of memory, or a power cut.
    Killed,
    /// The run's last state or its results could not be saved.
    Unsaved,
    /// An error stopped the run.
    Failed,
    /// An allocation failed.
    Oom,
    /// The loss or the gradient became NaN or infinite.
    Diverged,
}

impl RunStatus {
    /// Returns the status of a run whose summary has the status `written`. A dead process could not write its
    /// own, so [`Status::Running`] is checked against the run's lock.
    ///
    /// # Errors
    /// If the run's lock cannot be read.
    pub fn resolve(run: &Path, written: Status) -> Result<Self> {
        Ok(match written {
            Status::Running if find::is_running(run)? => Self::Running,
            written => Self::without_process(written),
        })
    }

    /// Returns the status of a run that no process works on, from the status in its summary.
    pub fn without_process(written: Status) -> Self {
        match written {
            Status::Running => Self::Killed,
            Status::Ok => Self::Ok,
            Status::Interrupted => Self::Interrupted,
            Status::Unsaved => Self::Unsaved,
            Status::Failed => Self::Failed,
            Status::Oom => Self::Oom,
            Status::Diverged => Self::Diverged,
        }
    }

    /// Returns the word that lists show.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Killed => "killed",
            Self::Unsaved => "unsaved",
            Self::Failed => "failed",
            Self::Oom => "oom",
            Self::Diverged => "diverged",
        }
    }
}
