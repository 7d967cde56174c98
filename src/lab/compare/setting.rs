//! What a comparison is run with, and what it ends as.

use crate::error::Error;
use crate::results::experiment::Experiment;
use crate::results::progress::Mode;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a question is answered.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// The results folder.
    pub results: &'a Path,
    /// Runs at once on the CPU; a GPU has one at a time. Trials run one at a time.
    pub jobs: usize,
    /// Time limit of a run.
    pub timeout: Option<Duration>,
    /// Number of pilot pairs, which estimate the deviation for the plan.
    pub pilot: usize,
    /// A run whose matrix-product algorithms all trials use; unset means those that the first trial chooses.
    pub algorithms_from: Option<PathBuf>,
    /// How progress is shown.
    pub progress: Mode,
}

/// A comparison that has ended.
#[derive(Debug)]
pub struct FinishedComparison {
    /// Its folder.
    pub folder: PathBuf,
    /// The record, as stored in the folder.
    pub experiment: Experiment,
    /// The error that ended it before its last run.
    pub failed: Option<Error>,
}
