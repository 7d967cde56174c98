//! The request of a run, and the form in which a parent process sends it to the processes of its ranks.

use crate::error::Result;
use crate::machine::Machine;
use crate::recipe::{Recipe, StoredRecipe};
use crate::results::progress::Mode;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Start of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Step 0 in a new folder; or the newest unfinished run of this recipe, where `checkpoint.resume =
    /// "auto"`.
    Fresh,
    /// The newest valid checkpoint of this run, in its folder.
    Resume(PathBuf),
    /// A checkpoint of another run, in a new folder, where training keys may differ.
    Fork {
        /// The run.
        run: PathBuf,
        /// The step of the checkpoint; `None` for the newest valid one.
        step: Option<u64>,
    },
}

/// The request of a run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The recipe.
    pub recipe: Recipe,
    /// Machine that it runs on.
    pub machine: Machine,
    /// Folder of all run folders.
    pub results: PathBuf,
    /// Display of progress.
    pub progress: Mode,
    /// Start of the run.
    pub origin: Origin,
    /// Step after which the run saves its state and ends; `None` for the last one.
    pub until: Option<u64>,
    /// Run whose matrix-product algorithms are reused.
    pub algorithms_from: Option<PathBuf>,
    /// Command line, for the provenance.
    pub command: Vec<String>,
}

/// A [`Request`] as plain data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerRequest {
    recipe: StoredRecipe,
    results: PathBuf,
    progress: Mode,
    origin: Origin,
    until: Option<u64>,
    algorithms_from: Option<PathBuf>,
    command: Vec<String>,
}

impl WorkerRequest {
    /// Converts a request to plain data.
    pub fn from_request(request: &Request) -> Self {
        let Request { recipe, results, progress, origin, until, algorithms_from, command, .. } =
            request.clone();
        let recipe = recipe.to_stored();
        Self { recipe, results, progress, origin, until, algorithms_from, command }
    }

    /// Converts the data back to the request, for the machine that runs this process.
    ///
    /// # Errors
    /// When the recipe is invalid, which happens only between different versions of xrun.
    pub fn into_request(self) -> Result<Request> {
        let Self { recipe, results, progress, origin, until, algorithms_from, command } = self;
        let (recipe, machine) = (recipe.load()?, Machine::here());
        Ok(Request { recipe, machine, results, progress, origin, until, algorithms_from, command })
    }
}
