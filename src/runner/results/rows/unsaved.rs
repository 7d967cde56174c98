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

/// Copies the header and the rows that a resume is about to remove, some of which may be damaged. An existing
/// copy stays if it reaches further.
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

/// Returns the step of the last row that has a readable one, and 0 if none has: what is damaged throughout is
/// needed no longer than until the next checkpoint.
fn parse_last_step(bytes: &[u8]) -> Option<u64> {
    let step = |line: &[u8]| {
        let step = line.split(|byte| *byte == b',').next()?;
        std::str::from_utf8(step).ok()?.parse().ok()
    };
    Some(bytes.rsplit(|byte| *byte == b'\n').find_map(step).unwrap_or(0))
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

    #[test]
    fn a_copy_of_damaged_rows_is_kept_up_to_the_last_readable_step() {
        let dir = tempfile::tempdir().unwrap();
        let rows = dir.path().join("metrics.csv");
        for (dropped, step) in [
            (&b"step,loss\n8,1.5\n\0\0\0\0\n"[..], 8),
            (b"step,loss\n\0\0\0\n9,1.25\n\0\0", 9),
            (b"step,loss\n\0\0\0\0", 0),
        ] {
            keep(&rows, dropped).unwrap();
            assert_eq!(last_step(&rows).unwrap(), Some(step));
            assert_eq!(std::fs::read(path(&rows)).unwrap(), dropped);
            remove(&rows).unwrap();
        }
    }
}
