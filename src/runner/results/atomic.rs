//! Writes result files whole, and formats the JSON and the CSV in them.

use super::regular::{MAX_TEXT, read_through_link};
pub use crate::atomic::{clear_leftovers, sync_folder, write, write_new, write_through, write_with};
use crate::error::{Error, Result};
use crate::format::harmless_json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::path::Path;

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

/// Replaces a file with rows as CSV, with a header.
///
/// # Errors
/// If the file cannot be written.
pub fn write_csv(path: &Path, rows: &[impl Serialize]) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::failed(format!("cannot write {}: {e}", path.display()));
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row)).map_err(|e| failed(&e))?;
    write(path, &writer.into_inner().map_err(|e| failed(&e))?)
}

/// Reads the rows of a file that [`write_csv`] wrote.
///
/// # Errors
/// If the file cannot be read, or a row is malformed.
pub fn read_csv<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let bytes = read_through_link(path, MAX_TEXT)?;
    let rows = csv::Reader::from_reader(bytes.as_slice()).into_deserialize().collect::<Result<_, _>>();
    rows.map_err(|e| Error::failed(format!("{}: {e}", path.display())))
}
