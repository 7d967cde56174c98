//! Reads a file each time it is replaced.

use crate::error::{IoContext, Result};
use crate::regular::{self, MAX_TEXT};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Reads a file again whenever it was replaced.
#[derive(Debug)]
pub struct ReplacedFile {
    path: PathBuf,
    /// Identifies the content that was returned last: inode number, size and time of the last write.
    seen: Option<(u64, u64, Option<SystemTime>)>,
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
        let file = match std::fs::symlink_metadata(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.at("read", &self.path)?,
        };
        let stamp = Some((file.ino(), file.len(), file.modified().ok()));
        if self.seen == stamp {
            return Ok(None);
        }
        // If the file is replaced between these two calls, the next poll reads it once more.
        let bytes = regular::read(&self.path, MAX_TEXT)?;
        self.seen = stamp;
        Ok(Some(bytes))
    }
}
