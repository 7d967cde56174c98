//! `xrun man FOLDER`: manual pages, in builds with the feature `man`.

use crate::error::{IoContext, Result};
use std::path::PathBuf;

/// Arguments of `xrun man`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder to write `xrun.1`, `xrun-run.1` and the others into; it is made.
    pub folder: PathBuf,
}

/// Writes a page of `command`, and one of each of its subcommands that are not hidden.
///
/// # Errors
/// When the folder or a page cannot be written.
pub fn run(args: &Args, command: clap::Command) -> Result<()> {
    std::fs::create_dir_all(&args.folder).at("create", &args.folder)?;
    clap_mangen::generate_to(command, &args.folder).at("write pages into", &args.folder)
}
