//! Checks that a run agrees with itself: its figures follow from its rows, and its names from its recipe.
//!
//! ```text
//! metrics.csv, timing.csv ─▶ figures of summary.json      recomputed by the rule that the summary names
//! metrics.csv  ◀─▶  timing.csv  ◀─▶  resolved.toml         tokens of a step, speeds, wall time
//! resolved.toml ─▶ recipe hash ─▶ name of the run          over the keys that the file has
//! ```
//!
//! Hashes in a manifest show that a file was changed after the manifest was written. These checks also find
//! changes before that, unless rows, summary and recipe were changed together so that they agree.

mod figures;
mod files;
mod identity;
mod speeds;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
pub use files::RunFiles;

/// Returns what does not agree, a sentence each; empty for a run that nobody changed.
pub fn differences(run: &RunFiles) -> Vec<String> {
    [identity::differences(run), figures::differences(run), speeds::differences(run)].concat()
}

/// Checks that a run agrees with itself.
///
/// # Errors
/// With everything that does not agree.
pub fn check(run: &RunFiles) -> Result<()> {
    let found = differences(run);
    if found.is_empty() {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{} does not agree with itself: {}. A file was changed after the run wrote it; restore it, or run it again",
        run.folder.display(),
        found.join("; ")
    )))
}
