//! The settings of a comparison, and its result.

use crate::error::Error;
use crate::executor::batch_system::BatchSystem;
use crate::machine::Machine;
use crate::results::experiment::Experiment;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How to answer a question.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// The results folder.
    pub results: &'a Path,
    /// The machine that runs are planned for.
    pub machine: Machine,
    /// Runs at once on the CPU; each GPU has one at a time. Trials always run one at a time.
    pub jobs: usize,
    /// Time limit of one run.
    pub timeout: Option<Duration>,
    /// Number of pilot pairs, from which the plan estimates the deviation.
    pub pilot: usize,
    /// The batch system if this is one of its tasks: a run that was stopped continues from its checkpoint.
    pub batch: Option<&'a dyn BatchSystem>,
    /// A run whose matrix-product algorithms all trials use; if unset, they use the first trial's.
    pub algorithms_from: Option<PathBuf>,
}

/// A stored comparison and its folder.
#[derive(Clone, Debug)]
pub struct StoredExperiment {
    /// Its folder.
    pub folder: PathBuf,
    /// Its record.
    pub experiment: Experiment,
}

/// A comparison that has ended.
#[derive(Debug)]
pub struct FinishedComparison {
    /// The comparison's folder.
    pub folder: PathBuf,
    /// The record, as stored in the folder.
    pub experiment: Experiment,
    /// The error that ended it early.
    pub failed: Option<Error>,
}
