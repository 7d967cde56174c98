//! Rows of steps that no checkpoint holds. A resume drops them from their file; a copy stays beside it until
//! a later checkpoint is of their last step or beyond, so that a resume which cannot save either loses
//! nothing.

use crate::error::{IoContext, Result};
use crate::results::atomic;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Prefix of the name of the copy, before the name of the row file.
const PREFIX: &str = "unsaved-";

/// Returns the path of the copy.
pub(super) fn path(rows: &Path) -> PathBuf {
    rows.with_file_name(format!("{PREFIX}{}", rows.file_name().unwrap_or_default().to_string_lossy()))
}

/// Copies what a resume is about to drop: a header and whole rows. A copy whose rows reach further stays.
///
/// # Errors
/// When the copy cannot be written. Nothing may be dropped then.
pub(super) fn keep(rows: &Path, dropped: &[u8]) -> Result<()> {
    if last_step(rows)? >= last_step_of(dropped) {
        return Ok(());
    }
    let copy = path(rows);
    atomic::write(&copy, dropped)
        .map_err(|e| e.context(format_args!("no row of {} is dropped before it is copied", rows.display())))
}

/// Returns the last step of the copy; `None` without one.
pub(super) fn last_step(rows: &Path) -> Result<Option<u64>> {
    let copy = path(rows);
    match std::fs::read(&copy) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        bytes => Ok(last_step_of(&bytes.at("read", &copy)?)),
    }
}

/// Removes the copy.
pub(super) fn remove(rows: &Path) -> Result<()> {
    let copy = path(rows);
    match std::fs::remove_file(&copy) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).at("remove", &copy),
        _ => Ok(()),
    }
}

/// Returns the first column of the last row.
fn last_step_of(bytes: &[u8]) -> Option<u64> {
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
