//! Reads the small files of a run or comparison, in order to keep them.

use crate::error::{Error, IoContext, Result};
use crate::results::folder::holder;
use crate::results::names::{ALGORITHMS, ENVIRONMENT, LOG, METRICS, RECIPE, RESOLVED, SUMMARY, TIMING};
use crate::results::stored;
use std::path::Path;

/// Larger logs are not kept.
const MAX_LOG_BYTES: u64 = 256 << 10;

/// Contents of files, each with its path in the folder.
pub type Contents = Vec<(Vec<u8>, String)>;

/// Reads the files of a run to keep, all from the same state of the run. The run is not locked; instead, this
/// detects a process that resumes it meanwhile.
pub fn snapshot(run: &Path) -> Result<Contents> {
    let check_free = || match holder(run)? {
        None => Ok(()),
        Some(holder) => Err(Error::failed(format!(
            "{} is in use by {holder}; wait for it to end, or stop it, and keep it then",
            run.display()
        ))),
    };
    check_free()?;
    let read = read_files(run, small_files(run)?)?;
    check_free()?;
    // A process that came and went in between has rewritten the summary.
    let summary = stored::read_plain(&run.join(SUMMARY))?;
    if !read.iter().any(|(bytes, path)| path == SUMMARY && *bytes == summary) {
        return Err(Error::failed(format!("{} was written while it was read; keep it again", run.display())));
    }
    Ok(read)
}

/// Reads the given files of a folder.
pub fn read_files(folder: &Path, files: Vec<String>) -> Result<Contents> {
    let read = |path: String| Ok((stored::read_plain(&folder.join(&path))?, path));
    files.into_iter().map(read).collect()
}

/// Returns the files to keep, sorted by path. Ignores links.
fn small_files(run: &Path) -> Result<Vec<String>> {
    let is_kept = |name: &str| {
        [RECIPE, RESOLVED, ENVIRONMENT, METRICS, TIMING, SUMMARY, LOG, ALGORITHMS].contains(&name)
            || (name.starts_with("env-") && name.ends_with(".json"))
    };
    let mut paths: Vec<String> = plain_files(run)?
        .into_iter()
        .filter(|(name, bytes)| is_kept(name) && (name != LOG || *bytes <= MAX_LOG_BYTES))
        .map(|(name, _)| name)
        .collect();
    paths.sort();
    Ok(paths)
}

/// Returns the names and sizes of the regular files in a folder.
pub fn plain_files(folder: &Path) -> Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).at("read", folder)? {
        let entry = entry.at("read", folder)?;
        let metadata = entry.metadata().at("read", &entry.path())?;
        if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
            files.push((name, metadata.len()));
        }
    }
    Ok(files)
}
