//! Where a run lies, and the name by which other files refer to it.

use crate::error::{Error, IoContext, Result};
use crate::results::find::folder_id;
use std::path::{Path, PathBuf};

/// The results folder of a run, and the run's `RECIPE/RUN` in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub results: PathBuf,
    /// `RECIPE/RUN`.
    pub id: String,
}

/// Splits the path of a run's folder into its results folder and `RECIPE/RUN`.
///
/// # Errors
/// If the current folder is gone, or the path has fewer than two parents.
pub fn locate(run: &Path) -> Result<Located> {
    let run = std::path::absolute(run).at("find", run)?;
    match run.parent().and_then(Path::parent) {
        Some(results) => Ok(Located { results: results.to_owned(), id: folder_id(&run) }),
        None => Err(Error::usage(format!("{} is not a run folder (RESULTS/RECIPE/RUN)", run.display()))),
    }
}
