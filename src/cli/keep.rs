//! `xrun keep`.

use crate::error::{Error, Result};

/// Arguments of `xrun keep`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: &Args, _results: &std::path::Path) -> Result<()> {
    Err(Error::failed("to come"))
}
