//! Checks that a run agrees with itself: its figures follow from its rows, and its names from its recipe.
//!
//! ```text
//! metrics.csv, timing.csv ─▶ figures in summary.json      recomputed by the rule that the summary states
//! metrics.csv  ◀─▶  timing.csv  ◀─▶  resolved.toml         tokens per step, speeds, wall time
//! resolved.toml ─▶ metrics.csv, timing.csv             rates, evaluations, warm-up
//! recipe.toml ─▶ resolved.toml                            the keys that it sets
//! resolved.toml ─▶ recipe hash ─▶ name of the run          over the keys in the file
//! ```
//!
//! The hashes in a manifest only show that a file was changed after the manifest was written. These checks
//! also find earlier changes, unless rows, summary and recipe were changed consistently.

mod figures;
mod files;
mod follows;
mod identity;
mod speeds;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
pub use files::RunFiles;

/// Returns a sentence for each contradiction, and none for a run that nobody changed.
pub fn differences(run: &RunFiles) -> Vec<String> {
    [
        identity::differences(run),
        figures::differences(run),
        speeds::differences(run),
        follows::differences(run),
    ]
    .concat()
}

/// Checks that a run agrees with itself.
///
/// # Errors
/// If anything contradicts; the message lists everything that does.
pub fn check(run: &RunFiles) -> Result<()> {
    refuse(run, &differences(run))
}

/// Checks that what a run trained and evaluated agrees with itself, whatever its times are.
///
/// # Errors
/// If anything contradicts; the message lists everything that does.
pub fn check_losses(run: &RunFiles) -> Result<()> {
    refuse(run, &[identity::differences(run), figures::differences(run)].concat())
}

fn refuse(run: &RunFiles, found: &[String]) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{} does not agree with itself: {}. A file was changed after the run wrote it; restore it, or run it again",
        run.folder.display(),
        found.join("; ")
    )))
}
