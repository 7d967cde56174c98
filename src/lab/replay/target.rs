//! Finds what is replayed by its name.

use crate::error::Result;
use crate::results::find;
use crate::results::names::KEPT;
use std::path::{Path, PathBuf};

/// Something stored that can be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The folder of a run.
    Run(PathBuf),
    /// The folder of a comparison.
    Comparison(PathBuf),
}

/// Finds the target `name` in the same way as `xrun keep`: a run or comparison below `results`, or else a
/// kept one.
///
/// # Errors
/// A usage error if there is none.
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
