//! The file-system operations that a save makes, behind a trait, so that a test can fail or cut each one.
//!
//! Only what changes the disk is here; reading goes straight to `std::fs`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// What a save may do to the disk.
pub trait Fs: Send + Sync {
    /// Makes a folder that is not there yet.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file that is not there yet, for writing.
    fn create_file(&self, path: &Path) -> io::Result<Box<dyn SyncWrite>>;
    /// Gives `from` the name `to`, in one step. A file at `to` is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes what was created, renamed or removed directly in this folder survive a power loss.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file, or a folder with all that is in it.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// A file being written that can be made durable.
pub trait SyncWrite: Write {
    /// Returns once all that was written would survive a power loss.
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
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }
}

impl SyncWrite for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Writes a small file and makes its content durable (not yet its name: that takes [`Fs::sync_dir`]).
pub(crate) fn write_synced(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs.create_file(path)?;
    file.write_all(bytes)?;
    file.sync()
}
