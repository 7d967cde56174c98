//! Comparisons of a baseline and a candidate as experiments: trials of both arms in fresh processes, a ratio
//! with its interval, a verdict, and a gate on the loss curves.
//!
//! ```text
//! ArmsRequest ─▶ Arms ─▶ trials A B B A … ─▶ blocks ─▶ ratio ─▶ verdict ─▶ comparison.json
//!                           └─▶ loss curves ─▶ gate       └─▶ prediction
//! ```

mod arms;
mod conclusion;
mod cpu_load;
mod external;
mod gate;
mod measured;
mod prediction;
pub mod quality;
pub mod revision;
mod running;
pub mod statistics;
mod text;
mod trials;

pub use arms::{Arms, ArmsRequest, PlannedArm, Program, hash_of, load_stored};
pub use running::Request;
pub use text::{describe, report};

use crate::error::{Error, Result};
use crate::ranks::Stop;
use crate::results::comparison::Comparison;
use running::RunningComparison;
use std::path::PathBuf;

/// A comparison that has ended.
#[derive(Debug)]
pub struct FinishedComparison {
    /// Its folder.
    pub folder: PathBuf,
    /// The result, as stored in the folder.
    pub comparison: Comparison,
    /// The error that ended it before its last trial.
    pub failed: Option<Error>,
}

/// Runs a comparison: stores the prediction, runs the trials of both arms, and judges the result.
///
/// # Errors
/// If processes cannot be started or files cannot be written. A trial that fails ends the comparison, with
/// its error in [`FinishedComparison::failed`].
pub fn run(request: Request<'_>) -> Result<FinishedComparison> {
    run_until(request, &Stop::on_signals(Some("stopping the trial; a second signal stops it at once"))?)
}

/// As [`run`], until `stop` is requested.
///
/// # Errors
/// As [`run`].
pub fn run_until(request: Request<'_>, stop: &Stop) -> Result<FinishedComparison> {
    let mut running = RunningComparison::start(request)?;
    let failed = match running.is_of_stored_runs() {
        true => running.read_stored_runs(),
        false => running.run_trials(stop),
    };
    let failed = failed.err();
    running.conclude(failed.is_none());
    running.comparison.write(&running.folder)?;
    Ok(FinishedComparison { folder: running.folder, comparison: running.comparison, failed })
}

#[cfg(test)]
mod tests;
