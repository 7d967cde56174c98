//! Removes runs.

use crate::error::{Error, IoContext, Result};
use crate::results::folder::{holder, lock};
use crate::results::stored::MANIFEST;
use crate::results::{atomic, find};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Prefix of the folder of a run that is being removed. Lists skip hidden folders.
const REMOVED: &str = ".removed-";

/// A run to be removed, locked so that no process can continue it.
#[derive(Debug)]
pub struct LockedRun {
    /// The run's folder.
    pub run: PathBuf,
    lock: File,
}

impl LockedRun {
    /// Locks a run, or the folder of a run that has lost its summary.
    ///
    /// # Errors
    /// If a process works on the run, if the run is kept, or if the folder is not a run.
    pub fn lock(run: &Path) -> Result<Self> {
        if run.join(MANIFEST).symlink_metadata().is_ok() {
            return Err(Error::usage(format!(
                "{} is a kept run, from which pages are made; `xrun keep --prune` removes kept runs that no page names",
                run.display()
            )));
        }
        if !find::has_summary(run) && !find::has_lost_summary(run) && holder(run)?.is_none() {
            return Err(Error::usage(format!("{} is not a run folder", run.display())));
        }
        let lock = lock(run).map_err(|e| e.context("it cannot be removed while it runs"))?;
        Ok(Self { run: run.to_owned(), lock })
    }
}

/// Removes a run: renames its folder, which hides it from every list at once, and then deletes it. After a
/// crash either the whole run is left, or part of it in a hidden folder, which the next removal of a run of
/// the same recipe deletes.
///
/// # Errors
/// If the folder cannot be renamed, and the run stays. If its files cannot be deleted, which the message
/// says.
pub fn remove(doomed: LockedRun) -> Result<()> {
    let LockedRun { run, lock } = doomed;
    let (Some(recipe), Some(name)) = (run.parent(), run.file_name()) else {
        return Err(Error::usage(format!("{} is not a run folder", run.display())));
    };
    let removed = recipe.join(format!("{REMOVED}{}", name.to_string_lossy()));
    std::fs::rename(&run, &removed).at("remove", &run)?;
    atomic::sync_folder(recipe)?;
    let remains = |e: Error| e.context(format!("{} is removed, but some of its files remain", run.display()));
    let deleted = delete(&removed);
    drop(lock);
    if deleted.is_err() {
        // File systems such as NFS keep the lock's file, and so its folder, until it is closed.
        delete(&removed).map_err(remains)?;
    }
    delete_leftovers(recipe)?;
    // This fails, as it should, while the recipe has other runs.
    let _ = std::fs::remove_dir(recipe);
    Ok(())
}

/// Deletes what killed processes left of the runs that they were removing.
fn delete_leftovers(recipe: &Path) -> Result<()> {
    for entry in std::fs::read_dir(recipe).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(REMOVED) && holder(&path)?.is_none() {
            delete(&path)?;
        }
    }
    Ok(())
}

/// Deletes a folder; another process may delete it at the same time.
fn delete(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted.at("delete", folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::names::SUMMARY;
    use crate::results::{RunFolder, Summary};

    fn create(results: &Path) -> RunFolder {
        let started = "2026-11-02T03:04:05Z".parse().unwrap();
        let folder = RunFolder::create(results, "r", "0123abcd", started).unwrap();
        folder.write_summary(&Summary::started("r", &folder.name(), "0123abcd", 1)).unwrap();
        std::fs::create_dir_all(folder.checkpoints().unwrap().join("step-000001")).unwrap();
        folder
    }

    #[test]
    fn a_removed_run_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = [create(dir.path()), create(dir.path())].map(|run| run.path().to_owned());
        remove(LockedRun::lock(&first).unwrap()).unwrap();
        assert_eq!(find::runs(dir.path()).unwrap(), std::slice::from_ref(&second));
        assert_eq!(std::fs::read_dir(dir.path().join("r")).unwrap().count(), 1);
        // A run that has lost its summary can also be removed.
        std::fs::write(second.join("resolved.toml"), "").unwrap();
        std::fs::remove_file(second.join(SUMMARY)).unwrap();
        remove(LockedRun::lock(&second).unwrap()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn running_and_kept_runs_and_other_folders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let held = create(dir.path());
        let error = LockedRun::lock(held.path()).unwrap_err();
        assert!(error.message().contains("in use by process"), "{error}");
        let run = held.path().to_owned();
        drop(held);
        std::fs::write(run.join(MANIFEST), "{}").unwrap();
        assert!(LockedRun::lock(&run).unwrap_err().message().contains("keep --prune"));
        assert!(run.join(SUMMARY).is_file());
        std::fs::write(dir.path().join("precious"), "precious").unwrap();
        for folder in [dir.path().to_owned(), dir.path().join("r"), dir.path().join("none")] {
            let error = LockedRun::lock(&folder).unwrap_err();
            assert!(error.message().contains("not a run folder"), "{error}");
            assert!(!folder.join("lock").exists());
        }
    }

    #[test]
    fn a_crash_leaves_a_whole_run_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = [create(dir.path()), create(dir.path())].map(|run| run.path().to_owned());
        // As if the process died after the rename, before or during the deletion.
        let name = format!("{REMOVED}{}", first.file_name().unwrap().to_str().unwrap());
        std::fs::rename(&first, first.with_file_name(name)).unwrap();
        assert_eq!(find::runs(dir.path()).unwrap(), std::slice::from_ref(&second));
        assert_eq!(find::without_summary(dir.path()).unwrap(), [] as [PathBuf; 0]);
        remove(LockedRun::lock(&second).unwrap()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the rest of the first is gone too");
        // Many removals at once, all of one recipe.
        let runs: Vec<PathBuf> = (0..16).map(|_| create(dir.path()).path().to_owned()).collect();
        std::thread::scope(|scope| {
            for run in &runs {
                scope.spawn(|| remove(LockedRun::lock(run).unwrap()));
            }
        });
        assert_eq!(find::runs(dir.path()).unwrap(), [] as [PathBuf; 0]);
    }
}
