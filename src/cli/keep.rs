//! `xrun keep`.

use crate::error::Result;
use crate::results::folder::KEPT;
use crate::results::{find, keep};
use std::path::{Path, PathBuf};

/// Arguments of `xrun keep`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: a folder, a run's name, a recipe's name for its newest run, or `latest`.
    run: String,
    /// Where kept runs go [default: RESULTS/kept].
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Runs the command. Prints where the files are.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let run = find::find(results, &args.run)?;
    let to = args.to.clone().unwrap_or_else(|| results.join(KEPT));
    let kept = keep::keep(&run, &to)?;
    let bytes: u64 = kept.manifest.files.iter().map(|file| file.bytes).sum();
    let what = if kept.already { "already kept, unchanged" } else { "kept" };
    eprintln!("{what}: {} files, {} KiB", kept.manifest.files.len(), bytes.div_ceil(1024));
    println!("{}", kept.folder.display());
    Ok(())
}
