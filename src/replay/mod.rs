//! Runs a stored run, or a stored comparison, again from its recorded recipe, and says whether the same came out.
//!
//! ```text
//! StoredRun ─▶ RunBinary (this one, or the recorded commit's) ─▶ a new run in a scratch folder
//!      └────────────────────┬─────────────────────────────────────────┘
//!                   first difference, conditions ─▶ Outcome
//! ```
//!
//! The same bits are promised for the same sources, libraries, and instruction set or model of GPU. A difference
//! where one of these is another proves nothing, and is called so.

mod binary;
mod comparison;
mod conditions;
mod difference;
mod outcome;
mod page;
mod run;
mod stored_run;

pub use binary::{Binaries, Build};
pub use outcome::{Outcome, Replay};
pub use page::{Entry, PageEntries, entries};

use crate::error::{Error, Result};
use crate::ranks::Stop;
use crate::recipe;
use crate::results::find;
use crate::results::names::KEPT;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Something stored that can be run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The folder of a run.
    Run(PathBuf),
    /// The folder of a comparison.
    Comparison(PathBuf),
}

/// How replays are run.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The folder of results in which the replayed runs are stored.
    pub results: &'a Path,
    /// The folder of results that new runs are written to.
    pub into: &'a Path,
    /// True if commands that a comparison recorded may be run with `sh -c`.
    pub runs_commands: bool,
    /// Time limit of a run.
    pub timeout: Option<Duration>,
    /// Signals to this process.
    pub stop: &'a Stop,
}

/// Returns what `name` means, as in `xrun keep`: a run or comparison below `results`, else one that is kept
/// there.
///
/// # Errors
/// A usage error where there is none.
pub fn find(results: &Path, name: &str) -> Result<Target> {
    let kept = results.join(KEPT);
    let run = find::find(results, name);
    if let Ok(run) = run {
        return Ok(Target::Run(run));
    }
    for folder in [results, &kept] {
        if let Some(comparison) = find::find_comparison(folder, name)? {
            return Ok(Target::Comparison(comparison));
        }
    }
    find::find(&kept, name).map(Target::Run).or_else(|_| run.map(Target::Run))
}

/// Runs a stored run or comparison again, and compares the result.
///
/// # Errors
/// If the stored files cannot be read, this process was stopped by a signal, or results cannot be written. A run
/// that fails is an [`Outcome`].
pub fn replay(target: &Target, setting: &Setting<'_>, binaries: &mut Binaries) -> Result<Replay> {
    if let Some((variable, _)) = recipe::environment().next() {
        return Err(Error::usage(format!(
            "{variable} is set, which would change the recorded recipe; unset it, and replay again"
        )));
    }
    match target {
        Target::Run(folder) => run::replay(folder, setting, binaries),
        Target::Comparison(folder) => comparison::replay(folder, setting, binaries),
    }
}

/// Returns what is known of a target before it runs, in a line: its name, steps or trials, time and device.
///
/// # Errors
/// If its files cannot be read.
pub fn describe(target: &Target, results: &Path) -> Result<String> {
    match target {
        Target::Run(folder) => Ok(stored_run::StoredRun::read(folder)?.describe()),
        Target::Comparison(folder) => Ok(comparison::StoredComparison::read(folder, results)?.describe()),
    }
}
