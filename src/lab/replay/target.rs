//! What is run again, by its name.

use crate::error::Result;
use crate::results::find;
use crate::results::names::KEPT;
use std::path::{Path, PathBuf};

/// Something stored that can be run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The folder of a run.
    Run(PathBuf),
    /// The folder of a comparison.
    Comparison(PathBuf),
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
