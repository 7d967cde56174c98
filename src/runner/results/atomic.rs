//! Writes result files whole, and formats the JSON and the CSV in them.

pub use crate::atomic::{
    clear_leftovers, expire_listing, sync_folder, write, write_new, write_through, write_with,
};
use crate::error::{Error, Result};
use crate::format::harmless_json;
use crate::regular;
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

/// Returns a value as JSON on one line, without a newline.
///
/// # Errors
/// If the value cannot be written as JSON.
pub fn json_line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))
}

/// Parses the content of a JSON file, which should be `what`, such as "a summary".
///
/// # Errors
/// If it is something else; the message names the file and the line.
pub fn parse_json<T: DeserializeOwned>(path: &Path, bytes: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|e| Error::failed(format!("{}:{}: not {what}: {e}", path.display(), e.line())))
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
    let bytes = regular::read_rows(path)?;
    let rows = csv::Reader::from_reader(bytes.as_slice()).into_deserialize().collect::<Result<_, _>>();
    rows.map_err(|e| Error::failed(format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::DocumentLoss;
    use crate::results::names::DOCUMENTS;

    #[test]
    fn rows_read_back_and_blanks_stay_blank() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join(DOCUMENTS);
        let row = |set: &str, document, bytes, loss| DocumentLoss {
            set: DocumentLoss::set_name(set),
            document,
            tokens: 3,
            bytes,
            loss,
        };
        let rows = [row("", 0, Some(2), 0.1 + 0.2), row("news", 7, None, f64::INFINITY)];
        write_csv(&path, &rows).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "set,document,tokens,bytes,loss\ndata.validation,0,3,2,0.30000000000000004\nnews,7,3,,inf\n"
        );
        assert_eq!(read_csv::<DocumentLoss>(&path).unwrap(), rows);
        std::fs::write(&path, text.replace(",7,", ",x,")).unwrap();
        assert!(read_csv::<DocumentLoss>(&path).unwrap_err().message().contains("documents.csv"));
    }
}
