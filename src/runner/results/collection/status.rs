//! The status of a run as lists have it.

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
    /// A process works on it.
    Running,
    /// Stopped after saving a checkpoint.
    Interrupted,
    /// Its process ended without recording a status: SIGKILL, out of memory, or a power cut.
    Killed,
    /// Its last state or its results could not be saved.
    Unsaved,
    /// Stopped by an error.
    Failed,
    /// An allocation failed.
    Oom,
    /// The loss or the gradient became NaN or infinite.
    Diverged,
}

impl RunStatus {
    /// Returns the status of a run with this status in its summary: a dead process cannot have written its
    /// own.
    ///
    /// # Errors
    /// When the lock of the run cannot be read.
    pub fn of_run(run: &Path, written: Status) -> Result<Self> {
        Ok(match written {
            Status::Running if find::is_running(run)? => Self::Running,
            written => Self::without_process(written),
        })
    }

    /// Returns the status of a run that no process holds, with this status in its summary.
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

    /// Returns the word for it.
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
