//! `xrun schema`.

use super::terminal::print_json;
use crate::error::Result;
use crate::recipe;

/// Arguments of `xrun schema`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Prints the JSON schema of recipes (draft 2020-12).
///
/// # Errors
/// If stdout cannot be written.
pub fn run(_args: &Args) -> Result<()> {
    print_json(&recipe::json_schema())
}
