//! Finds kept folders, shared files and figures that are no longer used.

use crate::error::{IoContext, Result};
use crate::results::experiment;
use crate::results::names::{COMPARISONS, PLOTS};
use crate::results::stored::{MANIFEST, Manifest, OBJECTS};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// An unused kept folder or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    pub path: PathBuf,
    /// Total size of its files.
    pub bytes: u64,
}

/// Returns the kept folders below `kept`, as relative paths with `/`. Runs come before the comparisons that
/// name them, which is the order in which they can be upgraded.
///
/// # Errors
/// If a folder cannot be read.
pub fn folders(kept: &Path) -> Result<Vec<String>> {
    let (mut found, mut open) = (Vec::new(), vec![kept.to_owned()]);
    while let Some(folder) = open.pop().filter(|folder| folder.is_dir()) {
        if folder.join(MANIFEST).is_file() {
            let inside = folder.strip_prefix(kept).unwrap_or(&folder);
            let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
            found.push(parts.join("/"));
            continue;
        }
        for entry in std::fs::read_dir(&folder).at("read", &folder)? {
            let entry = entry.at("read", &folder)?;
            // A link may lead back to a folder above it.
            if entry.file_type().at("read", &entry.path())?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    found.sort_by_key(|id| (id.starts_with(&format!("{COMPARISONS}/")), id.clone()));
    Ok(found)
}

/// Lists everything unused below `kept`: folders that are neither named nor part of a named comparison,
/// shared files that no other folder uses, and figures that no page shows.
///
/// # Errors
/// If a folder or a manifest cannot be read.
pub fn unused(
    kept: &Path,
    is_named: &dyn Fn(&str) -> bool,
    is_shown: &dyn Fn(&Path) -> bool,
) -> Result<Vec<Unused>> {
    let all = folders(kept)?;
    let mut used: BTreeSet<String> = all.iter().filter(|id| is_named(id)).cloned().collect();
    for id in used.clone() {
        let folder = kept.join(&id);
        used.extend(Manifest::read(&folder)?.runs.into_iter().map(|run| run.run));
        used.extend(experiment::compared_runs(&folder)?);
    }
    let mut found = Vec::new();
    let mut objects = BTreeSet::new();
    for id in &all {
        let folder = kept.join(id);
        if used.contains(id) {
            for file in Manifest::read(&folder)?.files.iter().filter(|file| file.shared.is_some()) {
                objects.insert(file.stored_at(&folder));
            }
            found.extend(unused_files(&folder.join(PLOTS), is_shown)?);
        } else {
            let bytes = size(&folder)?;
            found.push(Unused { path: folder, bytes });
        }
    }
    found.extend(unused_files(&kept.join(OBJECTS), &|path| objects.contains(path))?);
    found.extend(unused_files(&kept.join(COMPARISONS).join(PLOTS), is_shown)?);
    Ok(found)
}

impl Unused {
    /// Removes the folder or file, and then its parent folder if that is empty.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self) -> Result<()> {
        if self.path.is_dir() {
            std::fs::remove_dir_all(&self.path).at("remove", &self.path)?;
        } else {
            std::fs::remove_file(&self.path).at("remove", &self.path)?;
        }
        // This fails, as it should, while the parent contains other files.
        let _ = self.path.parent().map(std::fs::remove_dir);
        Ok(())
    }
}

/// Returns the unused files in a folder; empty if the folder is missing.
fn unused_files(folder: &Path, is_used: &dyn Fn(&Path) -> bool) -> Result<Vec<Unused>> {
    let mut found = Vec::new();
    for path in files(folder)? {
        if !is_used(&path) {
            let bytes = path.metadata().at("read", &path)?.len();
            found.push(Unused { path, bytes });
        }
    }
    Ok(found)
}

/// Returns the regular files in a folder, sorted; empty if the folder is missing.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).at("read", folder)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.at("read", folder)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the total size of all files below a folder.
fn size(folder: &Path) -> Result<u64> {
    let (mut bytes, mut open) = (0, vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).at("read", &folder)? {
            let entry = entry.at("read", &folder)?;
            let metadata = entry.metadata().at("read", &entry.path())?;
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                bytes += metadata.len();
            }
        }
    }
    Ok(bytes)
}
