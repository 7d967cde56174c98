//! `xrun runs export --tensorboard[=DIR] RUN…`.

use crate::cli::terminal::print;
use crate::error::Result;
use crate::results::collection::locate;
use crate::results::folder::read_summary;
use crate::results::{find, tensorboard};
use std::path::{Path, PathBuf};

/// Arguments of `xrun runs export`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The runs: folders (kept runs too), names, prefixes of names or hashes, or `latest`.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    /// Write event files for TensorBoard: DIR/RECIPE/RUN/events.out.tfevents.*
    #[arg(long, value_name = "DIR", required = true, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "tensorboard")]
    tensorboard: PathBuf,
}

/// Writes the event files of all runs and prints their paths. Writes nothing if one of the runs is not found.
///
/// # Errors
/// If a run is missing, its files cannot be read, or an event file cannot be written.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let runs = args.runs.iter().map(|name| find::find(results, name)).collect::<Result<Vec<_>>>()?;
    for run in runs {
        let samples = read_summary(&run)?.samples;
        let folder = args.tensorboard.join(locate(&run)?.id);
        print(&format!("{}\n", tensorboard::export(&run, &samples, &folder)?.display()))?;
    }
    Ok(())
}
