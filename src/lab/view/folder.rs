//! The results folder as the page may see it: runs, comparisons, sweeps and coordinates by their ids, and the
//! files in their folders.
//!
//! An id from an address is only compared with the ids that were found; it never becomes a path. No link
//! inside the folder is followed, so a folder from someone else cannot expose files outside it, on the page
//! or in a file that is sent on. The folder itself may be a link, because the user named it.

use crate::error::{Error, Result};
use crate::regular;
use crate::results::configurations::CONFIGURATIONS;
use crate::results::find;
use crate::results::ledger::{self, Ledger};
use crate::results::names::{
    COMPARISONS, COORDINATE_ROWS, COORDINATES, COORDINATES_JSON, ENVIRONMENT, EXPERIMENT, LOG, METRICS,
    PROFILE, RECIPE, RESOLVED, SUMMARY, SWEEPS, TIMING,
};
use crate::results::stored::{self, MANIFEST};
use crate::sweep::{CELLS, TABLE};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The files of a run that are read, here or when listing runs.
const RUN_FILES: [&str; 9] =
    [SUMMARY, METRICS, TIMING, RECIPE, RESOLVED, ENVIRONMENT, LOG, PROFILE, MANIFEST];

/// The files of a sweep's folder that are read.
pub const SWEEP_FILES: [&str; 3] = [CELLS, TABLE, CONFIGURATIONS];

/// A results folder.
#[derive(Clone, Debug)]
pub struct ResultsFolder {
    /// The folder itself.
    pub root: PathBuf,
}

impl ResultsFolder {
    /// Wraps a folder, which need not exist yet.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the first link that reading a run would follow, if any.
    pub fn link_in_run(&self, run: &Path) -> Option<PathBuf> {
        self.link_in(run, &RUN_FILES)
    }

    /// Returns the comparisons, newest first, each with its `NAME/ID`. Leaves out comparisons behind links.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn comparisons(&self) -> Result<Vec<(String, PathBuf)>> {
        let found = find::comparisons(&self.root)?;
        Ok(self.with_ids(found, COMPARISONS, &[EXPERIMENT]))
    }

    /// Returns the folders of sweeps, sorted by name, each with its name. Leaves out sweeps behind links.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn sweeps(&self) -> Result<Vec<(String, PathBuf)>> {
        let mut found = own_subfolders(&self.root.join(SWEEPS))?;
        let has_cells =
            |sweep: &PathBuf| [CELLS, TABLE].iter().any(|file| regular::is_file(&sweep.join(file)));
        found.retain(has_cells);
        found.sort();
        Ok(self.with_ids(found, SWEEPS, &SWEEP_FILES))
    }

    /// Returns the folders of coordinates, newest first, each with its `NAME/ID`. Leaves out folders behind
    /// links.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn coordinates(&self) -> Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for name in own_subfolders(&self.root.join(COORDINATES))? {
            found.extend(
                own_subfolders(&name)?.into_iter().filter(|one| one.join(COORDINATES_JSON).is_file()),
            );
        }
        found.sort_by(|a, b| (b.file_name(), b).cmp(&(a.file_name(), a)));
        Ok(self.with_ids(found, COORDINATES, &[COORDINATES_JSON, COORDINATE_ROWS]))
    }

    /// Reads the ledger, if its folder exists and is not a link.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn ledger(&self) -> Result<Option<Ledger>> {
        let folder = ledger::folder(&self.root);
        let is_there = folder.is_dir() && self.link_in(&folder, &[]).is_none();
        is_there.then(|| Ledger::read(&self.root)).transpose()
    }

    /// Pairs each path with its id: the part after `kind`.
    fn with_ids(&self, found: Vec<PathBuf>, kind: &str, files: &[&str]) -> Vec<(String, PathBuf)> {
        let above = self.root.join(kind);
        let id = |path: &Path| Some(path.strip_prefix(&above).ok()?.to_str()?.to_owned());
        let is_own = |path: &PathBuf| self.link_in(path, files).is_none();
        found.into_iter().filter(is_own).filter_map(|path| Some((id(&path)?, path))).collect()
    }

    /// Returns the first link among the folders from `path` up to the results folder, and the files in
    /// `path`.
    fn link_in(&self, path: &Path, files: &[&str]) -> Option<PathBuf> {
        let is_link = |path: &PathBuf| path.is_symlink();
        let folders = path.ancestors().take_while(|folder| *folder != self.root).map(Path::to_owned);
        folders.chain(files.iter().map(|file| path.join(file))).find(is_link)
    }
}

/// Reads a file of a run, stored or kept. Returns `None` if it does not exist.
///
/// # Errors
/// If the file is a link, is not a regular file, is too large, or does not match the manifest it was kept
/// with.
pub fn read(run: &Path, file: &str) -> Result<Option<Vec<u8>>> {
    let path = run.join(file);
    if regular::is_file(&run.join(MANIFEST)) && !path.is_symlink() {
        return if stored::is_file(&path) { stored::read(&path).map(Some) } else { Ok(None) };
    }
    match path.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => regular::read(&path, regular::MAX_TEXT).map(Some),
    }
}

/// Reads a file as [`read`] does, as text. Bytes that are not UTF-8 become `�`.
///
/// # Errors
/// If [`read`] fails.
pub fn read_text(run: &Path, file: &str) -> Result<Option<String>> {
    Ok(read(run, file)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Reads a JSON file of a run. Returns `None` if it is missing or cannot be parsed, for example because it is
/// damaged.
///
/// # Errors
/// If [`read`] fails.
pub fn read_valid_json(run: &Path, file: &str) -> Result<Option<Value>> {
    Ok(read(run, file)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Reads a JSON file of a comparison, a sweep or coordinates.
///
/// # Errors
/// If the file is a link, is not a regular file, is too large, or cannot be parsed.
pub fn read_json<T: serde::de::DeserializeOwned>(folder: &Path, file: &str) -> Result<T> {
    let path = folder.join(file);
    let bytes = regular::read(&path, regular::MAX_TEXT)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::failed(format!("{}:{}: unexpected format: {e}", path.display(), e.line())))
}

/// Returns a text that changes whenever one of these files does, judging by sizes and modification times.
pub fn version<'a>(folder: &Path, files: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let stamp = folder.join(file).symlink_metadata().ok().map(|data| {
            let written = data.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            (data.len(), written.map(|since| since.as_nanos()))
        });
        hasher.update(format!("{stamp:?}\n").as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Returns the folders inside a folder, except links and hidden ones; none if it does not exist.
fn own_subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = find::subfolders(folder)?;
    found.retain(|one| !one.is_symlink() && !find::is_hidden(one));
    Ok(found)
}
