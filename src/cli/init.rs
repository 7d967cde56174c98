//! `xrun init`.

use crate::error::{Error, Result};

/// Arguments of `xrun init`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: &Args) -> Result<()> {
    Err(Error::failed("to come"))
}
