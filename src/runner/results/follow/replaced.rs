//! Reads a file each time it is replaced.

use crate::error::{IoContext, Result};
use crate::results::regular::{self, MAX_TEXT};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Reads a file again whenever it was replaced.
#[derive(Debug)]
pub struct ReplacedFile {
    path: PathBuf,
    /// Identifies the content that was returned last.
    seen: Option<Stamp>,
}

/// Distinguishes two files with the same name: inode number, size and time of the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, u64, Option<SystemTime>);

impl Stamp {
    fn from_metadata(file: &Metadata) -> Self {
        Self(file.ino(), file.len(), file.modified().ok())
    }
}

impl ReplacedFile {
    /// Creates a reader for a file that need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: None }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the next poll return the content again.
    pub fn forget(&mut self) {
        self.seen = None;
    }

    /// Returns the content if the file was replaced or written to since the last poll. Returns `None` if it
    /// was not, or if there is no file.
    ///
    /// # Errors
    /// If the path is not a regular file, the file cannot be read, or it has more than [`MAX_TEXT`] bytes.
    pub fn poll(&mut self) -> Result<Option<Vec<u8>>> {
        let stamp = match std::fs::symlink_metadata(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => Stamp::from_metadata(&file.at("read", &self.path)?),
        };
        if self.seen == Some(stamp) {
            return Ok(None);
        }
        // If the file is replaced between these two calls, the next poll reads it once more.
        let bytes = regular::read(&self.path, MAX_TEXT)?;
        self.seen = Some(stamp);
        Ok(Some(bytes))
    }
}
