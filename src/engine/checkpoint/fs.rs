//! The file-system operations of a save, behind a trait so that a test can make each one fail or stop
//! halfway.
//!
//! Only operations that change the disk are here; reads use `std::fs` directly.

use crate::interrupts::{self, Repeated};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The disk operations of a save.
pub trait Fs: Send + Sync {
    /// Creates a folder, which must not exist.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Creates a file, which must not exist, for writing.
    fn create_file(&self, path: &Path) -> io::Result<Box<dyn SyncWrite>>;
    /// Renames `from` to `to` atomically. A file at `to` is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes entries created, renamed or removed directly in this folder durable: they survive a power loss.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file, or a folder with its content.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// A file being written that can be made durable.
pub trait SyncWrite: Write {
    /// Makes everything written so far durable: it survives a power loss.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFs;

impl Fs for DiskFs {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn SyncWrite>> {
        Ok(Box::new(Repeated(OpenOptions::new().write(true).create_new(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        interrupts::sync_folder(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }
}

impl SyncWrite for Repeated<File> {
    fn sync(&mut self) -> io::Result<()> {
        interrupts::sync_all(&self.0)
    }
}

/// Writes a small file and makes its content durable (but not its name, which needs [`Fs::sync_dir`]).
pub fn write_synced(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs.create_file(path)?;
    file.write_all(bytes)?;
    file.sync()
}
