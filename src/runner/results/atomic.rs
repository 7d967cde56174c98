//! Writes result files whole, and formats the JSON in them.

pub use crate::atomic::{clear_leftovers, sync_folder, write, write_new, write_through, write_with};
use crate::error::{Error, Result};
use crate::format::harmless_json;
use serde::Serialize;
use std::borrow::Cow;

/// Returns a value as indented JSON with a final newline.
///
/// # Errors
/// If the value cannot be written as JSON.
pub fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes =
        serde_json::to_vec_pretty(value).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
    bytes.push(b'\n');
    match str::from_utf8(&bytes).map(harmless_json) {
        Ok(Cow::Owned(harmless)) => Ok(harmless.into_bytes()),
        _ => Ok(bytes),
    }
}
