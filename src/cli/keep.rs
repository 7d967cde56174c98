//! `xrun keep`: a run, a comparison with its runs, or the rows of a sweep.

use super::eprint_line;
use crate::error::Result;
use crate::format::plural;
use crate::results::comparison::Comparison;
use crate::results::folder::KEPT;
use crate::results::{find, keep};
use crate::sweep;
use std::path::{Path, PathBuf};

/// Arguments of `xrun keep`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: a folder, a run's name, a recipe's name for its newest run, or `latest`. Or a comparison,
    /// with its runs: a folder, its id, or `comparisons/NAME` for the newest one. Or the rows of a sweep:
    /// `sweeps/NAME`.
    run: String,
    /// Where kept runs go [default: RESULTS/kept].
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Runs the command. Prints where the files are.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let to = args.to.clone().unwrap_or_else(|| results.join(KEPT));
    let (run, comparison) = (find::find(results, &args.run), find::find_comparison(results, &args.run)?);
    let kept = match (run, comparison) {
        // A recipe and its comparisons may share a name: then the run is meant.
        (Ok(run), _) => keep::keep(&run, &to)?,
        (Err(_), Some(comparison)) => {
            for run in Comparison::read(&comparison)?.runs() {
                // One of two stored runs may have been kept long ago, and not be here any more.
                if results.join(run).is_dir() || !to.join(run).is_dir() {
                    keep::keep(&find::find(results, run)?, &to)?;
                }
            }
            keep::keep_comparison(&comparison, &to)?
        }
        (Err(error), None) => match sweep::find(results, &args.run)? {
            Some(folder) => sweep::keep(results, &folder, &to)?,
            None => return Err(error),
        },
    };
    let bytes: u64 = kept.manifest.files.iter().map(|file| file.bytes).sum();
    let what = if kept.already { "already kept, unchanged" } else { "kept" };
    let files = kept.manifest.files.len();
    eprint_line(&format!("{what}: {files} file{}, {} KiB", plural(files), bytes.div_ceil(1024)));
    println!("{}", kept.folder.display());
    Ok(())
}
