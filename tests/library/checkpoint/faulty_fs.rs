//! A file system that fails, or dies, at a chosen operation.
//!
//! It works in a real folder and keeps account of what would not have survived a power loss: file content
//! since the file's last sync, and names made, moved or removed since their folder's last sync.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use xrun::checkpoint::{Fs, SyncWrite};

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This operation fails with the OS error number; later ones work.
    Once(i32),
    /// This operation and all later ones fail with the OS error number.
    Always(i32),
    /// The process ends. A write is half done, a removal is half done.
    Kill,
    /// As `Kill`, then unsynced file contents are gone; every name is as it was.
    LoseContents,
    /// As `LoseContents`, and unsynced names are undone.
    LoseAll,
    /// As `LoseAll`, but what was removed stays removed.
    LoseAllButRemovals,
}

/// Disk full.
pub const ENOSPC: i32 = 28;
/// Read-only file system.
pub const EROFS: i32 = 30;
/// Input/output error.
pub const EIO: i32 = 5;

/// The folder is not empty.
const ENOTEMPTY: i32 = 39;

/// Shared by the store and the test.
#[derive(Clone)]
pub struct FaultyFs(Arc<Mutex<State>>);

struct State {
    operations: usize,
    fault: Option<(usize, Fault)>,
    dead: bool,
    broken: Option<i32>,
    /// Every write takes at most this many bytes.
    write_at_most: usize,
    /// Whether syncing does anything: off, a test can see that it matters.
    syncs: bool,
    corrupts: bool,
    /// Whether a folder keeps a file that another process has open, as on NFS, and cannot be removed.
    keeps_open_files: bool,
    effects: Vec<Effect>,
    unsynced: Vec<Option<File>>,
    graveyard: PathBuf,
    buried: usize,
}

#[derive(Debug)]
enum Effect {
    Created(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, replaced: Option<PathBuf> },
    Removed { path: PathBuf, grave: PathBuf },
}

impl FaultyFs {
    /// A file system without faults. `graveyard` is a folder for what is removed.
    pub fn calm(graveyard: &Path) -> Self {
        Self(Arc::new(Mutex::new(State {
            operations: 0,
            fault: None,
            dead: false,
            broken: None,
            write_at_most: usize::MAX,
            syncs: true,
            corrupts: false,
            keeps_open_files: false,
            effects: Vec::new(),
            unsynced: Vec::new(),
            graveyard: graveyard.to_path_buf(),
            buried: 0,
        })))
    }

    /// Lets the operation `at`, counted from now, meet the fault.
    pub fn arm(&self, at: usize, fault: Fault) {
        let mut state = self.0.lock().unwrap();
        state.operations = 0;
        state.fault = Some((at, fault));
    }

    /// A new process on the same machine: what the last one did not sync is still at risk.
    pub fn restart(&self) {
        let mut state = self.0.lock().unwrap();
        state.dead = false;
        state.fault = None;
    }

    /// Operations so far, or since [`FaultyFs::arm`].
    pub fn operations(&self) -> usize {
        self.0.lock().unwrap().operations
    }

    /// From now on a write takes at most `n` bytes, which is no error.
    pub fn write_at_most(&self, n: usize) {
        self.0.lock().unwrap().write_at_most = n;
    }

    /// From now on what is written is not what was asked for.
    pub fn corrupt_writes(&self) {
        self.0.lock().unwrap().corrupts = true;
    }

    /// Whether removing a folder leaves a renamed file in it from now on, as NFS does with open files.
    pub fn keep_open_files(&self, keeps: bool) {
        self.0.lock().unwrap().keeps_open_files = keeps;
    }

    /// From now on syncing does nothing.
    pub fn ignore_syncs(&self) {
        self.0.lock().unwrap().syncs = false;
    }

    /// The power goes now.
    pub fn power_loss(&self, fault: Fault) {
        self.0.lock().unwrap().die(fault);
    }
}

impl State {
    /// Counts an operation. `Err` when it must not happen; `partly` is what still happens of it in a crash.
    fn step(&mut self, partly: impl FnOnce(&mut Self)) -> io::Result<()> {
        if self.dead {
            return Err(io::Error::other("the process is dead"));
        }
        if let Some(errno) = self.broken {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let at = self.operations;
        self.operations += 1;
        match self.fault {
            Some((k, fault)) if k == at => match fault {
                Fault::Once(errno) => {
                    partly(self);
                    Err(io::Error::from_raw_os_error(errno))
                }
                Fault::Always(errno) => {
                    self.broken = Some(errno);
                    partly(self);
                    Err(io::Error::from_raw_os_error(errno))
                }
                crash => {
                    partly(self);
                    self.die(crash);
                    Err(io::Error::other("the process dies here"))
                }
            },
            _ => Ok(()),
        }
    }

    fn die(&mut self, fault: Fault) {
        self.dead = true;
        if fault == Fault::Kill {
            return;
        }
        for file in self.unsynced.drain(..).flatten() {
            file.set_len(0).unwrap();
        }
        if fault == Fault::LoseContents {
            return;
        }
        while let Some(effect) = self.effects.pop() {
            match effect {
                // Gone already when what was in it, or it itself, was removed for good.
                Effect::Created(path) => drop(bury(&mut self.buried, &self.graveyard, &path)),
                Effect::Renamed { from, to, replaced } => {
                    // Gone when it was removed after the renaming.
                    if fs::rename(&to, &from).is_ok() {
                        self.effects.iter_mut().for_each(|e| e.moved(&to, &from));
                    }
                    if let Some(grave) = replaced {
                        fs::rename(grave, to).unwrap();
                    }
                }
                Effect::Removed { .. } if fault == Fault::LoseAllButRemovals => {}
                Effect::Removed { path, grave } => fs::rename(grave, path).unwrap(),
            }
        }
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let grave = bury(&mut self.buried, &self.graveyard, path)?;
        self.effects.push(Effect::Removed { path: path.to_path_buf(), grave });
        Ok(())
    }
}

/// Moves something out of sight, from where an undone removal brings it back.
fn bury(buried: &mut usize, graveyard: &Path, path: &Path) -> io::Result<PathBuf> {
    let grave = graveyard.join(buried.to_string());
    *buried += 1;
    fs::rename(path, &grave)?;
    Ok(grave)
}

impl Effect {
    /// Whether syncing the folder makes this permanent.
    fn is_in(&self, dir: &Path) -> bool {
        match self {
            Effect::Created(path) | Effect::Removed { path, .. } => path.parent() == Some(dir),
            Effect::Renamed { from, to, .. } => {
                assert_eq!(from.parent(), to.parent(), "a save renames within one folder");
                to.parent() == Some(dir)
            }
        }
    }

    fn is_under(&self, dir: &Path) -> bool {
        let (Effect::Created(path) | Effect::Removed { path, .. } | Effect::Renamed { to: path, .. }) = self;
        path.starts_with(dir)
    }

    /// Follows a folder that was renamed.
    fn moved(&mut self, from: &Path, to: &Path) {
        let follow = |path: &mut PathBuf| {
            if let Ok(rest) = path.strip_prefix(from).map(Path::to_path_buf) {
                *path = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            }
        };
        match self {
            Effect::Created(path) | Effect::Removed { path, .. } => {
                if path.parent().is_some_and(|p| p.starts_with(from)) {
                    follow(path);
                }
            }
            Effect::Renamed { from: a, to: b, .. } => {
                if a.parent().is_some_and(|p| p.starts_with(from)) {
                    follow(a);
                    follow(b);
                }
            }
        }
    }
}

impl Fs for FaultyFs {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step(|_| ())?;
        fs::create_dir(path)?;
        state.effects.push(Effect::Created(path.to_path_buf()));
        Ok(())
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn SyncWrite>> {
        let mut state = self.0.lock().unwrap();
        state.step(|_| ())?;
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        state.effects.push(Effect::Created(path.to_path_buf()));
        let index = state.unsynced.len();
        state.unsynced.push(Some(file.try_clone()?));
        drop(state);
        Ok(Box::new(FaultyFile { file, fs: self.clone(), index }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step(|_| ())?;
        let state = &mut *state;
        let is_file = fs::symlink_metadata(to).is_ok_and(|m| m.is_file());
        let replaced = if is_file { Some(bury(&mut state.buried, &state.graveyard, to)?) } else { None };
        fs::rename(from, to)?;
        state.effects.iter_mut().for_each(|e| e.moved(from, to));
        state.effects.push(Effect::Renamed { from: from.to_path_buf(), to: to.to_path_buf(), replaced });
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step(|_| ())?;
        if state.syncs {
            let (durable, mut pending): (Vec<_>, Vec<_>) =
                state.effects.drain(..).partition(|e| e.is_in(path));
            // What happened inside a folder that is gone for good no longer matters.
            let gone = |e: &Effect| {
                durable.iter().any(|d| matches!(d, Effect::Removed { path, .. } if e.is_under(path)))
            };
            pending.retain(|e| !gone(e));
            state.effects = pending;
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.step(|state| {
            // One file of a folder is gone (of a checkpoint its manifest), the rest is still there.
            let children = fs::read_dir(path).into_iter().flatten().map(|e| e.unwrap().path());
            if let Some(child) = children.min() {
                state.remove(&child).unwrap();
            }
        })?;
        if state.keeps_open_files && path.is_dir() {
            for entry in fs::read_dir(path)? {
                fs::remove_file(entry?.path())?;
            }
            fs::write(path.join(".nfs0001"), "open")?;
            return Err(io::Error::from_raw_os_error(ENOTEMPTY));
        }
        state.remove(path)
    }
}

struct FaultyFile {
    file: File,
    fs: FaultyFs,
    index: usize,
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.fs.0.lock().unwrap();
        state.step(|_| self.file.write_all(&bytes[..bytes.len() / 2]).unwrap())?;
        let mut bytes = bytes[..bytes.len().min(state.write_at_most)].to_vec();
        if state.corrupts && !bytes.is_empty() {
            bytes[0] ^= 1;
        }
        self.file.write(&bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl SyncWrite for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.fs.0.lock().unwrap();
        state.step(|_| ())?;
        if state.syncs {
            state.unsynced[self.index] = None;
        }
        Ok(())
    }
}
