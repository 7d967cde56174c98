//! The content of a file that is replaced as a whole, each time it was.

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
    /// The file whose content was returned last.
    seen: Option<Stamp>,
}

/// What tells two files of one name from each other: number, size and time of the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, u64, Option<SystemTime>);

impl Stamp {
    fn from_metadata(file: &Metadata) -> Self {
        Self(file.ino(), file.len(), file.modified().ok())
    }
}

impl ReplacedFile {
    /// Creates a reader of a file, which need not be there yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: None }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the next look return the content again.
    pub fn forget(&mut self) {
        self.seen = None;
    }

    /// Returns the content where it is another file than at the last look, or was written to since; `None`
    /// also without a file.
    ///
    /// # Errors
    /// When it is a link or no regular file, cannot be read, or has more than [`MAX_TEXT`] bytes.
    pub fn poll(&mut self) -> Result<Option<Vec<u8>>> {
        let stamp = match std::fs::symlink_metadata(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => Stamp::from_metadata(&file.at("read", &self.path)?),
        };
        if self.seen == Some(stamp) {
            return Ok(None);
        }
        // Replaced between stamp and content, it is read once more at the next look.
        let bytes = regular::read(&self.path, MAX_TEXT)?;
        self.seen = Some(stamp);
        Ok(Some(bytes))
    }
}
