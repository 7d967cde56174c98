//! `xrun schema`.

use super::terminal::print_json;
use crate::error::Result;
use crate::recipe;

/// Prints the JSON schema of recipes (draft 2020-12).
///
/// # Errors
/// If stdout cannot be written.
pub fn run() -> Result<()> {
    print_json(&recipe::json_schema())
}
