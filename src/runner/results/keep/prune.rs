//! Finds kept folders, shared files and figures that are no longer used.

use crate::error::{IoContext, Result};
use crate::results::experiment;
use crate::results::names::{COMPARISONS, PLOTS};
use crate::results::stored::{MANIFEST, Manifest, OBJECTS};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Prefix of the names of folders that are being written or removed. A killed process leaves them.
pub(super) const UNFINISHED: &str = ".keeping-";

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
    Ok(walk(kept)?.0)
}

/// Returns the kept folders, as [`folders`] does, and the unfinished ones.
fn walk(kept: &Path) -> Result<(Vec<String>, Vec<PathBuf>)> {
    let (mut found, mut unfinished, mut open) = (Vec::new(), Vec::new(), vec![kept.to_owned()]);
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
                let is_unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
                if is_unfinished { &mut unfinished } else { &mut open }.push(entry.path());
            }
        }
    }
    found.sort_by_key(|id| (id.starts_with(&format!("{COMPARISONS}/")), id.clone()));
    unfinished.sort();
    Ok((found, unfinished))
}

/// Lists everything unused below `kept`: folders that are neither named nor part of a named comparison,
/// folders that a killed process left unfinished, shared files that no other folder uses, and figures that
/// no page shows.
///
/// # Errors
/// If a folder or a manifest cannot be read.
pub fn unused(
    kept: &Path,
    is_named: &dyn Fn(&str) -> bool,
    is_shown: &dyn Fn(&Path) -> bool,
) -> Result<Vec<Unused>> {
    let (all, unfinished) = walk(kept)?;
    let mut used: BTreeSet<String> = all.iter().filter(|id| is_named(id)).cloned().collect();
    for id in used.clone() {
        let folder = kept.join(&id);
        used.extend(Manifest::read(&folder)?.runs.into_iter().map(|run| run.run));
        used.extend(experiment::compared_runs(&folder)?);
    }
    let mut found = Vec::new();
    for path in unfinished {
        found.push(Unused { bytes: size(&path)?, path });
    }
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
    /// Removes the folder or file, and then its parent folder if that is empty. If the process is killed, the
    /// rest of a folder is unused as well.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self) -> Result<()> {
        if self.path.is_dir() {
            let name = self.path.file_name().unwrap_or_default().to_string_lossy();
            let doomed = match name.starts_with(UNFINISHED) {
                true => self.path.clone(),
                false => self.path.with_file_name(format!("{UNFINISHED}{name}")),
            };
            if doomed != self.path {
                std::fs::rename(&self.path, &doomed).at("rename", &self.path)?;
            }
            std::fs::remove_dir_all(&doomed).at("remove", &doomed)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A process may be killed before each operation of a removal.
    #[test]
    fn what_a_killed_process_left_is_unused() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path();
        let manifest = r#"{"recipe": "tiny", "run": "named", "files": []}"#;
        for folder in ["tiny/named", "tiny/.keeping-new", "comparisons/c/.keeping-new"] {
            std::fs::create_dir_all(kept.join(folder)).unwrap();
            std::fs::write(kept.join(folder).join("log"), "text").unwrap();
        }
        for folder in ["tiny/named", "tiny/.keeping-new"] {
            std::fs::write(kept.join(folder).join(MANIFEST), manifest).unwrap();
        }
        assert_eq!(folders(kept).unwrap(), ["tiny/named"]);
        let left = |named: bool| -> Vec<PathBuf> {
            let unused = unused(kept, &|_| named, &|_| true).unwrap();
            unused.iter().map(|one| one.path.strip_prefix(kept).unwrap().to_owned()).collect()
        };
        let unfinished = ["comparisons/c/.keeping-new", "tiny/.keeping-new"].map(PathBuf::from);
        assert_eq!(left(true), unfinished);
        std::fs::rename(kept.join("tiny/named"), kept.join("tiny/.keeping-named")).unwrap();
        for file in [MANIFEST, "log"] {
            std::fs::remove_file(kept.join("tiny/.keeping-named").join(file)).unwrap();
            assert!(left(true).contains(&PathBuf::from("tiny/.keeping-named")));
        }
        for one in unused(kept, &|_| true, &|_| true).unwrap() {
            one.remove().unwrap();
        }
        assert!(left(false).is_empty());
    }
}
