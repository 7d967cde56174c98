//! `xrun man FOLDER`: manual pages, in builds with the feature `man`.

use crate::error::{IoContext, Result};
use std::path::PathBuf;

/// Arguments of `xrun man`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder for `xrun.1`, `xrun-run.1` and the other pages; created if missing.
    pub folder: PathBuf,
}

/// Writes a page for `command` and for each of its subcommands that is not hidden.
///
/// # Errors
/// If the folder or a page cannot be written.
pub fn run(args: &Args, command: clap::Command) -> Result<()> {
    std::fs::create_dir_all(&args.folder).at("create", &args.folder)?;
    clap_mangen::generate_to(command, &args.folder).at("write pages into", &args.folder)
}
