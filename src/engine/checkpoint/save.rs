//! Writes checkpoints so that a crash at any moment leaves the old one or the new one complete.

use super::fs::{DiskFs, Fs, write_synced};
use super::load::{best, candidates, next_serial, steps_as_saved, verify};
use super::manifest::{Manifest, Meta};
use super::pace::Pace;
use super::tensors::{Snapshot, TensorView};
use super::{
    BEST, LATEST, MANIFEST, MODEL, OPTIMIZER, REPLACED, TEMPORARY, folder_name, step_of, tensor_file,
};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::lock::lock;
use crate::regular;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The checkpoint folder of a run, open for writing. The caller holds the run's lock.
pub struct Store {
    dir: PathBuf,
    keep: usize,
    /// Steps whose checkpoints are kept in addition to the newest.
    pub kept_steps: Vec<u64>,
    /// True if the checkpoint with the lowest validation loss is kept in addition to the newest.
    pub keeps_best: bool,
    fs: Box<dyn Fs>,
    /// What could not be removed and was reported. It is tried again at every save, but reported once.
    reported: Mutex<BTreeSet<PathBuf>>,
}

/// A save that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The new checkpoint's folder.
    pub path: PathBuf,
    /// Bytes written, over all its files.
    pub bytes: u64,
    /// Steps whose checkpoints were removed.
    pub pruned: Vec<u64>,
    /// Problems that did not affect the new checkpoint.
    pub warnings: Vec<String>,
}

impl Store {
    /// Opens the checkpoint folder `dir`, creates it if needed, and removes the leftovers of an interrupted
    /// save. Leftovers that cannot be removed stay, and the next save reports them.
    ///
    /// Each save keeps the newest `keep` checkpoints (at least one).
    pub fn open(dir: &Path, keep: usize) -> Result<Self> {
        Self::open_on(Box::new(DiskFs), dir, keep)
    }

    /// Opens the folder like [`Store::open`], on the given file system.
    pub fn open_on(fs: Box<dyn Fs>, dir: &Path, keep: usize) -> Result<Self> {
        let (keep, kept_steps) = (keep.max(1), Vec::new());
        let (dir_path, reported) = (dir.to_path_buf(), Mutex::default());
        let store = Self { dir: dir_path, keep, kept_steps, keeps_best: false, fs, reported };
        if !dir.is_dir() {
            store.fs.create_dir(dir).at("create", dir)?;
            let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            store.fs.sync_dir(parent).at("sync", parent)?;
        }
        let _ = store.clear_leftovers();
        Ok(store)
    }

    /// Returns the lowest validation loss of the checkpoints up to a step; `None` if none is known.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn best_loss(&self, until: u64) -> Result<Option<f32>> {
        Ok(best(&self.dir, until)?.map(|(_, loss)| loss))
    }

    /// Writes and removes a small file, so that a read-only, full or forbidden disk is found before the first
    /// step.
    pub fn probe(&self) -> Result<()> {
        let path = self.unused("probe");
        let written = write_synced(self.fs.as_ref(), &path, b"probe").at("write", &path);
        // Saves work although nothing can be removed; they report what stays.
        let _ = self.fs.remove(&path);
        written.map_err(|e| {
            // A full disk is no mistake of the user's, and a sweep tries again when there is room.
            let kind = if e.kind() == ErrorKind::Unsaved { ErrorKind::Unsaved } else { ErrorKind::Usage };
            let advice = e.advice();
            Error::new(
                kind,
                format!(
                    "{e}: checkpoints are written there. {advice}, or choose another folder with --results"
                ),
            )
        })
    }

    /// Saves a state durably as the checkpoint of `meta.step`, then removes old checkpoints.
    ///
    /// After an error the earlier checkpoints are untouched and training can continue; the message says so.
    /// Checkpoints of later steps exist only if the run went back to an earlier state; they are removed too.
    pub fn save(&self, meta: &Meta, snapshot: &Snapshot) -> Result<Saved> {
        self.save_at(&Pace::default(), meta, snapshot)
    }

    /// Saves like [`Store::save`], at a pace.
    pub(super) fn save_at(&self, pace: &Pace, meta: &Meta, snapshot: &Snapshot) -> Result<Saved> {
        let path = self.dir.join(folder_name(meta.step));
        let mut warnings = self.clear_leftovers();
        let temporary = self.unused(&folder_name(meta.step));
        let bytes = self.write(pace, &temporary, meta, snapshot);
        let bytes = bytes.and_then(|bytes| self.publish(&temporary, &path).map(|()| bytes)).map_err(|e| {
            // Frees space on a full disk. What cannot be removed now is removed before the next save.
            let _ = self.fs.remove(&temporary);
            e.context(format_args!("checkpoint of step {} not saved, earlier ones are untouched", meta.step))
        })?;

        let (pruned, tidied) = self.tidy(pace, meta.step, |step| step > meta.step);
        warnings.extend(tidied);
        let warnings = warnings.into_iter().map(|w| format!("checkpoint saved, old ones not removed: {w}"));
        Ok(Saved { path, bytes, pruned, warnings: warnings.collect() })
    }

    /// Finishes what a killed process began: replaces pointers that name another checkpoint than the newest
    /// and the best one, and removes the checkpoints that are not kept. Returns sentences about what could
    /// not be done; training can continue with it.
    pub fn repair(&self) -> Vec<String> {
        let saved = match steps_as_saved(&self.dir) {
            Ok(saved) => saved,
            Err(e) => return vec![e.to_string()],
        };
        let Some(&newest) = saved.last() else { return Vec::new() };
        // Those of later steps are from before the run went back. One whose manifest cannot be read stays,
        // because a person may restore it.
        self.tidy(&Pace::default(), newest, |step| step > newest && saved.contains(&step)).1
    }

    /// Points to the checkpoint of a step, and removes those that are not kept and those that are `obsolete`.
    /// Returns the removed steps, and sentences about what could not be done.
    fn tidy(&self, pace: &Pace, step: u64, obsolete: impl Fn(u64) -> bool) -> (Vec<u64>, Vec<String>) {
        let (mut pruned, mut warnings) = (Vec::new(), Vec::new());
        let tidied =
            self.point(step).and_then(|()| self.prune(pace, step, obsolete, &mut pruned, &mut warnings));
        warnings.extend(tidied.err().map(|e| e.to_string()));
        (pruned, warnings)
    }

    /// Writes all files of a checkpoint to `temporary`, durably. Returns their size.
    fn write(&self, pace: &Pace, temporary: &Path, meta: &Meta, snapshot: &Snapshot) -> Result<u64> {
        let fs = self.fs.as_ref();
        fs.create_dir(temporary).at("create", temporary)?;
        let write = |name: &str, tensors: &[TensorView]| {
            tensor_file::write_at(pace, fs, &temporary.join(name), tensors)
        };
        let (model, optimizer) = (write(MODEL, &snapshot.model)?, write(OPTIMIZER, &snapshot.optimizer)?);
        let manifest =
            Manifest::new(next_serial(&self.dir)?, meta.clone(), [(MODEL, model), (OPTIMIZER, optimizer)])
                .encode()?;
        let at = temporary.join(MANIFEST);
        write_synced(fs, &at, manifest.as_bytes()).at("write", &at)?;
        fs.sync_dir(temporary).at("sync", temporary)?;
        Ok(model.bytes + optimizer.bytes + manifest.len() as u64)
    }

    /// Renames a complete folder to its final name, durably. First moves an existing folder of that name
    /// aside. If the process dies before the rename, a reader uses the old folder there, and the next save
    /// moves it back.
    fn publish(&self, temporary: &Path, path: &Path) -> Result<()> {
        let fs = self.fs.as_ref();
        if fs::symlink_metadata(path).is_ok() {
            let aside = self.replaced_path(path);
            if fs::symlink_metadata(&aside).is_ok() {
                // A replaced checkpoint that could not be removed.
                self.set_aside(&aside)?;
            }
            fs.rename(path, &aside).at("move aside", path)?;
        }
        fs.rename(temporary, path).at("rename", temporary)?;
        fs.sync_dir(&self.dir).at("sync", &self.dir)
    }

    /// Replaces the pointers `latest` and, if the best checkpoint is kept, `best`. They are for people and
    /// scripts; xrun itself reads the folder names and manifests.
    fn point(&self, step: u64) -> Result<()> {
        self.write_pointer(LATEST, step)?;
        match self.best_until(step)? {
            Some(best) => self.write_pointer(BEST, best),
            None => Ok(()),
        }
    }

    /// Returns the step of the best checkpoint up to `step`, if the best one is kept.
    fn best_until(&self, step: u64) -> Result<Option<u64>> {
        let best = if self.keeps_best { best(&self.dir, step)? } else { None };
        Ok(best.map(|(step, _)| step))
    }

    /// Replaces a pointer, unless it names the step already.
    fn write_pointer(&self, pointer: &str, step: u64) -> Result<()> {
        let (temporary, path) = (self.unused(pointer), self.dir.join(pointer));
        let text = format!("{}\n", folder_name(step));
        if names(&path, &text) {
            return Ok(());
        }
        write_synced(self.fs.as_ref(), &temporary, text.as_bytes()).at("write", &temporary)?;
        self.fs.rename(&temporary, &path).at("replace", &path)?;
        self.fs.sync_dir(&self.dir).at("sync", &self.dir)
    }

    /// Removes the checkpoints that are `obsolete`, and those up to `step` except the newest `keep`, the best
    /// one and the steps to keep. What cannot be removed is added to `warnings`.
    ///
    /// Reads back and verifies the checkpoint of `step` before it removes anything.
    fn prune(
        &self,
        pace: &Pace,
        step: u64,
        obsolete: impl Fn(u64) -> bool,
        pruned: &mut Vec<u64>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let steps = candidates(&self.dir)?;
        let surplus = self.surplus(&steps, step)?;
        let pruned_folders: Vec<_> =
            steps.iter().filter(|(s, _)| obsolete(**s) || surplus.contains(*s)).collect();
        let aside = self.replaced_path(&self.dir.join(folder_name(step)));
        let replaced = fs::symlink_metadata(&aside).is_ok().then_some(aside);
        if pruned_folders.is_empty() && replaced.is_none() {
            return Ok(());
        }
        verify(&self.dir.join(folder_name(step)), pace)?;
        // A half-removed folder must not look like a damaged checkpoint, so the folders are renamed durably
        // first.
        let mut to_remove = Vec::new();
        if let Some(aside) = replaced {
            to_remove.push(self.set_aside(&aside)?);
        }
        for (&step, path) in pruned_folders {
            to_remove.push(self.set_aside(path)?);
            pruned.push(step);
        }
        self.fs.sync_dir(&self.dir).at("sync", &self.dir)?;
        warnings.extend(to_remove.iter().filter_map(|path| self.remove_or_report(path)));
        Ok(())
    }

    /// Renames a folder, so that it no longer looks like a checkpoint. This works even where a folder with
    /// open files cannot be removed, as on NFS.
    fn set_aside(&self, path: &Path) -> Result<PathBuf> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.unused(&format!("pruned-{}", name.trim_start_matches('.')));
        self.fs.rename(path, &aside).at("rename", path)?;
        Ok(aside)
    }

    /// Removes a file or a folder. Returns a sentence if that fails, unless an earlier call returned it. File
    /// systems that keep a removed file while it is open, such as NFS, refuse to remove its folder.
    fn remove_or_report(&self, path: &Path) -> Option<String> {
        let error = self.fs.remove(path).at("remove", path).err()?;
        let is_new = lock(&self.reported).insert(path.to_owned());
        is_new.then(|| format!("{error}; it stays until a later save can remove it"))
    }

    /// Returns a path for a temporary file or folder at which there is nothing. A leftover that cannot be
    /// removed must not keep a save from its name.
    fn unused(&self, name: &str) -> PathBuf {
        let path = |suffix: String| self.dir.join(format!("{TEMPORARY}{name}{suffix}"));
        let mut paths = std::iter::once(String::new()).chain((2u64..).map(|n| format!("-{n}"))).map(path);
        let free = paths.find(|path| fs::symlink_metadata(path).is_err());
        free.unwrap_or_else(|| path(String::new()))
    }

    /// Returns the steps up to `step` whose checkpoints are not kept. A checkpoint without optimizer state
    /// never displaces one that training can resume from.
    fn surplus(&self, steps: &BTreeMap<u64, PathBuf>, step: u64) -> Result<Vec<u64>> {
        let best = self.best_until(step)?;
        let resumes =
            |path: &PathBuf| Manifest::read(&path.join(MANIFEST)).is_ok_and(|m| !m.meta.is_weights_only());
        let any_resumes = steps.range(..=step).any(|(_, path)| resumes(path));
        let (mut newest, mut surplus) = (0, Vec::new());
        for (&other, path) in steps.range(..=step).rev() {
            let stays = self.kept_steps.contains(&other) || Some(other) == best;
            if stays {
                continue;
            }
            let counts = other == step || !any_resumes || resumes(path);
            if counts && newest < self.keep {
                newest += 1;
            } else {
                surplus.push(other);
            }
        }
        Ok(surplus)
    }

    /// Removes the leftovers of an interrupted save, and restores a checkpoint that it moved aside but did
    /// not replace. Returns a sentence about each leftover that stays: no save depends on its removal.
    fn clear_leftovers(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        // A folder that cannot be read is an error of the save itself.
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            if name.starts_with(TEMPORARY) {
                warnings.extend(self.remove_or_report(&path));
            } else if let Some(original) = name.strip_prefix(REPLACED).filter(|n| step_of(n).is_some()) {
                let original = self.dir.join(original);
                if fs::symlink_metadata(&original).is_err() {
                    let restored = self.fs.rename(&path, &original).at("rename", &path);
                    warnings.extend(restored.err().map(|e| e.to_string()));
                } else {
                    let synced = self.fs.sync_dir(&self.dir).at("sync", &self.dir);
                    match synced.and_then(|()| self.set_aside(&path)) {
                        Ok(aside) => warnings.extend(self.remove_or_report(&aside)),
                        Err(e) => warnings.push(e.to_string()),
                    }
                }
            }
        }
        warnings
    }

    /// Returns the name of a checkpoint while it is being replaced.
    fn replaced_path(&self, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.dir.join(format!("{REPLACED}{name}"))
    }
}

/// Returns true if a pointer has this text.
fn names(pointer: &Path, text: &str) -> bool {
    let length = fs::symlink_metadata(pointer).ok().filter(fs::Metadata::is_file).map(|file| file.len());
    length == Some(text.len() as u64)
        && regular::read(pointer, text.len() as u64).is_ok_and(|found| found == text.as_bytes())
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("dir", &self.dir).field("keep", &self.keep).finish_non_exhaustive()
    }
}
