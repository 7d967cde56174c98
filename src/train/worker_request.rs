//! A [`Request`] in the form in which a parent process sends it to the processes of its ranks.

use super::{Origin, Request};
use crate::error::Result;
use crate::machine::Machine;
use crate::recipe::StoredRecipe;
use crate::results::progress::Mode;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A [`Request`] as plain data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerRequest {
    recipe: StoredRecipe,
    results: PathBuf,
    progress: Mode,
    origin: Origin,
    algorithms_from: Option<PathBuf>,
    command: Vec<String>,
}

impl WorkerRequest {
    /// Converts a request to plain data.
    pub fn from_request(request: &Request) -> Self {
        let Request { resolved, results, progress, origin, algorithms_from, command, .. } = request.clone();
        let recipe = resolved.to_stored();
        Self { recipe, results, progress, origin, algorithms_from, command }
    }

    /// Converts the data back to the request, for the machine that runs this process.
    ///
    /// # Errors
    /// When the recipe is invalid, which it is not unless parent and child are different versions.
    pub fn into_request(self) -> Result<Request> {
        let Self { recipe, results, progress, origin, algorithms_from, command } = self;
        let (resolved, machine) = (recipe.load()?, Machine::here());
        Ok(Request { resolved, machine, results, progress, origin, algorithms_from, command })
    }
}
