//! The request of a run, and its form for sending to the processes of ranks.

use crate::machine::Machine;
use crate::recipe::Recipe;
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The recipe.
    #[serde(with = "stored")]
    pub recipe: Recipe,
    /// The machine to run on. Another process has its own ([`Request::on_this_machine`]).
    #[serde(skip, default = "Machine::none")]
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

impl Request {
    /// Returns the request for the machine of this process.
    pub fn on_this_machine(self) -> Self {
        Self { machine: Machine::here(), ..self }
    }
}

/// The form in which a request carries its recipe between processes.
mod stored {
    use crate::recipe::{Recipe, StoredRecipe};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(recipe: &Recipe, to: S) -> Result<S::Ok, S::Error> {
        recipe.to_stored().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Recipe, D::Error> {
        StoredRecipe::deserialize(from)?.load().map_err(D::Error::custom)
    }
}
