//! Keeps rows that a resume removes because no checkpoint holds their steps. A copy stays beside the row file
//! until a later checkpoint reaches the last of these steps, so that nothing is lost if the resumed run
//! cannot save either.

use crate::error::{IoContext, Result};
use crate::regular;
use crate::results::atomic;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Prefix of the copy's name, before the name of the row file.
const PREFIX: &str = "unsaved-";

pub(super) fn path(rows: &Path) -> PathBuf {
    rows.with_file_name(format!("{PREFIX}{}", rows.file_name().unwrap_or_default().to_string_lossy()))
}

/// Copies the header and the complete rows that a resume is about to remove. An existing copy stays if it
/// reaches further.
///
/// # Errors
/// If the copy cannot be written. The caller must not remove any rows then.
pub(super) fn keep(rows: &Path, dropped: &[u8]) -> Result<()> {
    if last_step(rows)? >= parse_last_step(dropped) {
        return Ok(());
    }
    let copy = path(rows);
    atomic::write(&copy, dropped)
        .map_err(|e| e.context(format_args!("rows of {} stay until they can be copied", rows.display())))
}

/// Returns the last step in the copy; `None` without a copy.
pub(super) fn last_step(rows: &Path) -> Result<Option<u64>> {
    let copy = path(rows);
    match regular::read_rows(&copy) {
        Err(_) if regular::is_missing(&copy) => Ok(None),
        bytes => Ok(parse_last_step(&bytes?)),
    }
}

pub(super) fn remove(rows: &Path) -> Result<()> {
    let copy = path(rows);
    match std::fs::remove_file(&copy) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).at("remove", &copy),
        _ => Ok(()),
    }
}

/// Parses the first column of the last row.
fn parse_last_step(bytes: &[u8]) -> Option<u64> {
    let last = bytes.strip_suffix(b"\n").unwrap_or(bytes).rsplit(|byte| *byte == b'\n').next()?;
    let step = last.split(|byte| *byte == b',').next()?;
    std::str::from_utf8(step).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_that_reaches_further_stays_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let rows = dir.path().join("metrics.csv");
        assert_eq!(last_step(&rows).unwrap(), None);
        remove(&rows).unwrap();
        keep(&rows, b"step,loss\n8,1.5\n9,1.25\n").unwrap();
        keep(&rows, b"step,loss\n8,1.5\n").unwrap();
        assert_eq!(last_step(&rows).unwrap(), Some(9));
        keep(&rows, b"step,loss\n9,1.25\n10,1.0\n").unwrap();
        assert_eq!(std::fs::read(path(&rows)).unwrap(), b"step,loss\n9,1.25\n10,1.0\n");
        remove(&rows).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
