//! The index of a results folder: entries of runs, with the stamps of the files that each entry was read
//! from.
//!
//! An entry is used only while the sizes and times of all files behind it are unchanged. A file written less
//! than [`SETTLED`] ago may change again within one tick of its file system's clock without leaving a trace,
//! so the index does not store such a run. The first line holds the version and the hash of the rest; a
//! damaged index, or one of another version, counts as empty. Two processes may write the index at once: each
//! replaces the whole file, and either version is right.

use super::entry::{Entry, Stamps};
use crate::error::{IoContext, Result};
use crate::metrics;
use crate::regular;
use crate::results::atomic;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The index's folder in a results folder.
const FOLDER: &str = ".index";

/// The index's file in its folder.
const FILE: &str = "runs";

/// The beginning of the first line. Raise the number when an entry's content or derivation changes.
const HEADER: &str = "xrun index of runs 5 ";

/// The largest index that is read, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// How long after its last change a file is settled, in seconds. The coarsest file system clock in use (FAT)
/// has a resolution of two seconds.
const SETTLED: i64 = 2;

/// A run in the index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexedRun {
    pub stamps: Stamps,
    pub entry: Entry,
}

/// The names of the figures in an entry, which another version may not have.
fn figures() -> Vec<&'static str> {
    metrics::run_metrics().map(|metric| metric.name).collect()
}

fn path(results: &Path) -> PathBuf {
    results.join(FOLDER).join(FILE)
}

/// Reads the index of a results folder: runs by `RECIPE/RUN`. A missing or unusable index is empty.
pub fn read(results: &Path) -> HashMap<String, IndexedRun> {
    let bytes = regular::read(&path(results), MAX_BYTES).ok();
    bytes.and_then(|bytes| parse(&bytes)).unwrap_or_default()
}

fn parse(bytes: &[u8]) -> Option<HashMap<String, IndexedRun>> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (first, rest) = (str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
    if first.strip_prefix(HEADER)? != blake3::hash(rest).to_hex().as_str() {
        return None;
    }
    let (names, runs): (Vec<String>, HashMap<String, IndexedRun>) = serde_json::from_slice(rest).ok()?;
    (names == figures()).then_some(runs)
}

/// Replaces the index of a results folder with these runs, each under its `RECIPE/RUN`.
///
/// # Errors
/// If the folder cannot be written.
pub fn write(results: &Path, runs: &BTreeMap<&str, &IndexedRun>) -> Result<()> {
    let folder = results.join(FOLDER);
    if !folder.is_dir() {
        std::fs::create_dir(&folder).at("create", &folder)?;
    }
    // Nothing in this folder belongs in version control, wherever the results folder is.
    let ignored = folder.join(".gitignore");
    if !ignored.exists() {
        atomic::write(&ignored, b"*\n")?;
    }
    let body = serde_json::to_vec(&(figures(), runs)).unwrap_or_default();
    let head = format!("{HEADER}{}\n", blake3::hash(&body).to_hex());
    atomic::write(&path(results), &[head.as_bytes(), &body].concat())
}

/// Returns true if files that had these stamps at `now` cannot have changed since without a trace.
pub fn is_settled(stamps: &Stamps, now: SystemTime) -> bool {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    stamps.newest() < [seconds - SETTLED, since.subsec_nanos().into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Summary;
    use crate::results::folder::{RESOLVED, SUMMARY};

    /// Returns an index of two runs, and the bytes of its file.
    fn two(results: &Path) -> (HashMap<String, IndexedRun>, Vec<u8>) {
        let runs = ["r/20261102T030405Z-0123abcd", "r/20261102T030405Z-0123abcd-2"].map(|id| {
            let run = results.join(id);
            std::fs::create_dir_all(&run).unwrap();
            let summary = Summary::started("r", id, "0123abcd", 10);
            std::fs::write(run.join(SUMMARY), serde_json::to_vec(&summary).unwrap()).unwrap();
            std::fs::write(run.join(RESOLVED), "[model]\ndim = 64\n").unwrap();
            let entry = Entry::read(&run).unwrap();
            (id.to_owned(), IndexedRun { stamps: Stamps::read(&run), entry })
        });
        let runs = HashMap::from(runs);
        write(results, &runs.iter().map(|(id, run)| (id.as_str(), run)).collect()).unwrap();
        (runs, std::fs::read(path(results)).unwrap())
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (runs, _) = two(dir.path());
        assert_eq!(read(dir.path()), runs);
        assert!(runs.values().all(|run| run.entry.settings.len() == 1));
        let ignored = std::fs::read_to_string(dir.path().join(".index/.gitignore")).unwrap();
        assert_eq!(ignored, "*\n");
    }

    #[test]
    fn a_damaged_index_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let (_, bytes) = two(dir.path());
        let is_empty = |bytes: &[u8]| {
            std::fs::write(path(dir.path()), bytes).unwrap();
            read(dir.path()).is_empty()
        };
        assert!(!is_empty(&bytes));
        for length in (0..bytes.len()).step_by(7) {
            assert!(is_empty(&bytes[..length]), "{length}");
        }
        // Flip one bit anywhere, also in a figure, which would still parse.
        for at in (0..bytes.len()).step_by(11) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(is_empty(&damaged), "{at}");
        }
        assert!(is_empty(b"garbage") && is_empty(&[0xff; 100]));
        let other = String::from_utf8(bytes).unwrap().replacen("runs 5 ", "runs 4 ", 1);
        assert!(is_empty(other.as_bytes()));
        std::fs::remove_file(path(dir.path())).unwrap();
        assert!(read(dir.path()).is_empty());
    }

    #[test]
    fn figures_of_another_version_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (_, bytes) = two(dir.path());
        let text = String::from_utf8(bytes).unwrap();
        let (_, body) = text.split_once('\n').unwrap();
        let body = body.replacen("\"val_loss\"", "\"val_lass\"", 1);
        let file = format!("{HEADER}{}\n{body}", blake3::hash(body.as_bytes()).to_hex());
        assert!(parse(file.as_bytes()).is_none());
    }

    #[test]
    fn files_are_settled_a_while_after_their_last_change() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SUMMARY), "").unwrap();
        let (stamps, now) = (Stamps::read(dir.path()), SystemTime::now());
        assert!(!is_settled(&stamps, now) && !is_settled(&stamps, UNIX_EPOCH));
        assert!(is_settled(&stamps, now + std::time::Duration::from_secs(3)));
    }
}
