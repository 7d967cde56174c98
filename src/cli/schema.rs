//! `xrun schema`.

use super::terminal::print;
use crate::error::Result;
use crate::recipe;

/// Arguments of `xrun schema`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Prints the JSON schema of a recipe (draft 2020-12).
///
/// # Errors
/// When stdout cannot be written to.
pub fn run(_args: &Args) -> Result<()> {
    print(&format!("{:#}\n", recipe::json_schema()))
}
