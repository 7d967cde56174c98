//! A [`Request`] in the form in which a parent process sends it to the processes of its ranks.

use super::{Origin, Request};
use crate::error::Result;
use crate::recipe;
use crate::results::progress::Mode;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A [`Request`] as plain data. The recipe travels as TOML, with every default filled in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerRequest {
    name: String,
    recipe: String,
    as_written: Vec<(PathBuf, String)>,
    results: PathBuf,
    progress: Mode,
    origin: Origin,
    algorithms_from: Option<PathBuf>,
    command: Vec<String>,
}

impl WorkerRequest {
    /// Converts a request to plain data.
    pub fn from_request(request: &Request) -> Self {
        let Request { resolved, results, progress, origin, algorithms_from, command } = request.clone();
        Self {
            name: resolved.name.clone(),
            recipe: resolved.to_toml(),
            as_written: resolved.as_written,
            results,
            progress,
            origin,
            algorithms_from,
            command,
        }
    }

    /// Converts the data back to the request.
    ///
    /// # Errors
    /// When the recipe is invalid, which it is not unless parent and child are different versions.
    pub fn into_request(self) -> Result<Request> {
        let Self { name, recipe, as_written, results, progress, origin, algorithms_from, command } = self;
        let mut resolved = recipe::load_str(name.as_ref(), &recipe, &[], std::iter::empty())?;
        (resolved.name, resolved.as_written) = (name, as_written);
        Ok(Request { resolved, results, progress, origin, algorithms_from, command })
    }
}
