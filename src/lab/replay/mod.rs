//! Replays a stored run or comparison from its recorded recipe, and reports whether the result is the same.
//!
//! ```text
//! StoredRun ─▶ RunBinary (this one, or the recorded commit's) ─▶ a new run in a scratch folder
//!      └────────────────────┬─────────────────────────────────────────┘
//!                   first difference, conditions ─▶ Outcome
//! ```
//!
//! The same sources, libraries, and instruction set or model of GPU give the same bits. If one of these
//! changed, a difference proves nothing and is reported as such.

mod binary;
mod comparison;
mod conditions;
mod difference;
mod outcome;
mod page;
mod pairs;
mod recording;
mod run;
mod setting;
mod stored_run;
mod target;
mod trials;

pub use binary::Binaries;
pub use outcome::{Outcome, Replay};
pub use page::{Entry, PageEntries, entries};
pub use recording::Recording;
pub use setting::Setting;
pub use target::{Target, find};

use crate::error::{Error, Result};
use crate::recipe;
use comparison::StoredComparison;
use std::path::Path;
use stored_run::StoredRun;

/// Replays a stored run or comparison and compares the result.
///
/// # Errors
/// If a stored file cannot be read, a signal stopped this process, or results cannot be written. A run that
/// fails is reported as an [`Outcome`] instead.
pub fn replay(target: &Target, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Replay> {
    if let Some((variable, _)) = recipe::environment().next() {
        return Err(Error::usage(format!(
            "{variable} is set, which would change the recorded recipe; unset it, and replay again"
        )));
    }
    match target {
        Target::Run(folder) => run::replay(&StoredRun::read(folder)?, setting, binaries),
        Target::Comparison(folder) => {
            let stored = StoredComparison::read(folder, setting.results)?;
            match stored.experiment.has_trials() {
                true => trials::replay(&stored, setting, binaries),
                false => pairs::replay(&stored, setting, binaries),
            }
        }
    }
}

/// Returns what is known about a target before it runs.
///
/// # Errors
/// If its files cannot be read.
pub fn recording(target: &Target, results: &Path) -> Result<Recording> {
    match target {
        Target::Run(folder) => {
            let run = StoredRun::read(folder)?;
            let steps = format!("{} steps", run.summary.steps);
            Ok(Recording::new(&run.id, &steps, 1, std::iter::once(&run), &run.environment.device_class()))
        }
        Target::Comparison(folder) => Ok(StoredComparison::read(folder, results)?.recording()),
    }
}
