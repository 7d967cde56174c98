//! Where a run lies, and what other files call it.

use crate::error::{Error, IoContext, Result};
use crate::results::find::id_of;
use std::path::{Path, PathBuf};

/// The results folder of a run, and the run's `RECIPE/RUN` in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The folder.
    pub results: PathBuf,
    /// `RECIPE/RUN`.
    pub id: String,
}

/// Returns where a run's folder lies.
///
/// # Errors
/// When the current folder is gone, or the path is none of a run in a results folder.
pub fn locate(run: &Path) -> Result<Located> {
    let run = std::path::absolute(run).at("find", run)?;
    match run.parent().and_then(Path::parent) {
        Some(results) => Ok(Located { results: results.to_owned(), id: id_of(&run) }),
        None => Err(Error::usage(format!("{} is no RESULTS/RECIPE/RUN", run.display()))),
    }
}
