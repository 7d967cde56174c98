//! The request of a run, and its form for sending to the processes of ranks.

use crate::error::Result;
use crate::machine::Machine;
use crate::recipe::{Recipe, StoredRecipe};
use crate::results::progress::Mode;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where a run starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// At step 0 in a new folder or, if `checkpoint.resume = "auto"`, with the newest unfinished run of this
    /// recipe.
    Fresh,
    /// From the newest valid checkpoint of this run, in its folder.
    Resume(PathBuf),
    /// From a checkpoint of another run, in a new folder. Training keys may differ.
    Fork {
        /// The other run.
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
    /// The machine to run on.
    pub machine: Machine,
    /// Folder of all run folders.
    pub results: PathBuf,
    /// How progress is displayed.
    pub progress: Mode,
    /// Where the run starts.
    pub origin: Origin,
    /// Step after which the run saves its state and ends; `None` for the last one.
    pub until: Option<u64>,
    /// The run whose matrix-product algorithms are reused.
    pub algorithms_from: Option<PathBuf>,
    /// The command line, for the provenance.
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

    /// Converts the data back to a request, for the machine of this process.
    ///
    /// # Errors
    /// If the recipe is invalid, which happens only between different versions of xrun.
    pub fn into_request(self) -> Result<Request> {
        let Self { recipe, results, progress, origin, until, algorithms_from, command } = self;
        let (recipe, machine) = (recipe.load()?, Machine::here());
        Ok(Request { recipe, machine, results, progress, origin, until, algorithms_from, command })
    }
}
