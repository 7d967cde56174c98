//! What a submission of a sweep says beside its tasks.

use super::submission::Submission;
use crate::error::Result;
use crate::executor::Limits;
use crate::executor::batch_system::BatchSystem;
use crate::ranks::environment;
use crate::results::ledger::SWEEPS;
use crate::results::progress::Mode;
use crate::sweep::Request;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A sweep, as it was submitted.
#[derive(Debug, Serialize, Deserialize)]
pub struct SubmittedSweep {
    /// Name of the recipe's file in the folder of the submission.
    pub recipe: String,
    /// The arguments of the sweep after the recipe.
    pub arguments: Vec<String>,
    /// The done cells that run again, by key, with the number of their last attempt.
    pub retried: BTreeMap<String, u64>,
    /// The longest time without a row, in seconds.
    pub hang_s: Option<f64>,
    /// The longest time of a cell, in seconds.
    pub timeout_s: Option<f64>,
}

impl SubmittedSweep {
    /// Returns the time limits of a cell.
    pub fn limits(&self) -> Limits {
        let limit =
            |seconds: Option<f64>| seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Limits { hang: limit(self.hang_s), timeout: limit(self.timeout_s) }
    }
}

impl Submission<SubmittedSweep> {
    /// Returns the folder of the sweep, with its cells and tables.
    ///
    /// # Errors
    /// The same as for [`results`](Self::results).
    pub fn sweep_folder(&self) -> Result<PathBuf> {
        Ok(self.results()?.join(SWEEPS).join(&self.content.name))
    }

    /// Returns the file of the recipe.
    pub fn recipe(&self) -> PathBuf {
        self.folder.join(&self.content.work.recipe)
    }

    /// Makes the request of the whole sweep. `path` is its recipe.
    pub fn request<'a>(
        &'a self,
        path: &'a Path,
        results: &'a Path,
        system: &'a dyn BatchSystem,
    ) -> Request<'a> {
        Request {
            recipe: path,
            arguments: &self.content.work.arguments,
            results,
            jobs: 1,
            retry: &[],
            limits: self.content.work.limits(),
            progress: Mode::Plain,
            machine: environment::machine(),
            batch: Some(system),
        }
    }
}
