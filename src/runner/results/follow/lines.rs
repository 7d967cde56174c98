//! Reads the lines that were appended to a file since the last poll.

use crate::error::{Error, IoContext, Result};
use crate::regular;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The most bytes that one poll reads. No line that xrun writes is longer.
pub const MAX_READ: usize = 1 << 20;

/// How many bytes before the position each poll compares with the file. This is longer than a line of rows.
const MAX_ANCHOR: usize = 512;

/// Reads the lines of a file as they are appended.
#[derive(Debug)]
pub struct AppendedLines {
    path: PathBuf,
    /// Number of bytes that were returned, or skipped at the beginning.
    position: u64,
    /// The last bytes before the position. If the file now has other bytes there, it was cut back and has
    /// grown again, perhaps to the same length.
    anchor: Vec<u8>,
    /// How far before the end the first poll begins; `None` to begin with the whole file.
    tail: Option<u64>,
}

/// Lines that were appended to a file since the last poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewLines {
    /// Complete lines, each with its newline.
    pub bytes: Vec<u8>,
    /// True if the file was cut back, as a resume does, or removed. All earlier lines are then void, and
    /// these start at the file's beginning.
    pub is_restarted: bool,
    /// True if complete lines may be left for the next poll.
    pub has_more: bool,
}

impl AppendedLines {
    /// Creates a reader for all lines of a file that need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), position: 0, anchor: Vec::new(), tail: None }
    }

    /// Creates a reader for the complete lines in the last `bytes` bytes of a file, and for those that
    /// follow.
    pub fn from_tail(path: &Path, bytes: u64) -> Self {
        Self { tail: Some(bytes), ..Self::new(path) }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the new lines. An incomplete last line waits until it is complete.
    ///
    /// # Errors
    /// If the path is not a regular file, the file cannot be read, or a line has more than [`MAX_READ`]
    /// bytes.
    pub fn poll(&mut self) -> Result<NewLines> {
        let mut file = match regular::open(&self.path) {
            Err(_) if regular::is_missing(&self.path) => return Ok(self.restart()),
            file => file?,
        };
        let length = file.metadata().at("read", &self.path)?.len();
        let mut is_restarted = false;
        if length < self.position {
            is_restarted = self.restart().is_restarted;
        }
        let skipped = self.tail.take().map_or(0, |tail| length.saturating_sub(tail));
        if skipped > 0 {
            // The line in which the tail begins is skipped too.
            self.position = skipped;
        }
        let mut bytes = self.read_on(&mut file)?;
        if !bytes.starts_with(&self.anchor) {
            is_restarted = self.restart().is_restarted;
            bytes = self.read_on(&mut file)?;
        }
        let read = bytes.split_off(self.anchor.len());
        self.take(read, skipped > 0, is_restarted)
    }

    /// Forgets everything that was read, so the next poll begins with the whole file.
    pub(super) fn restart(&mut self) -> NewLines {
        let is_restarted = self.position > 0;
        (self.position, self.anchor) = (0, Vec::new());
        NewLines { is_restarted, ..NewLines::default() }
    }

    /// Reads the anchor and at most [`MAX_READ`] bytes after it.
    fn read_on(&self, file: &mut File) -> Result<Vec<u8>> {
        let from = self.position - self.anchor.len() as u64;
        file.seek(SeekFrom::Start(from)).at("seek in", &self.path)?;
        let mut bytes = Vec::new();
        let most = self.anchor.len() + MAX_READ;
        file.take(most as u64).read_to_end(&mut bytes).at("read", &self.path)?;
        Ok(bytes)
    }

    /// Takes the complete lines out of what was read at the position, and moves the position past them.
    fn take(&mut self, mut read: Vec<u8>, begins_within: bool, is_restarted: bool) -> Result<NewLines> {
        let is_full = read.len() == MAX_READ;
        let Some(end) = read.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1) else {
            if is_full {
                return Err(Error::failed(format!(
                    "{} has a line of more than {MAX_READ} bytes at byte {}, which xrun did not write",
                    self.path.display(),
                    self.position
                )));
            }
            return Ok(NewLines { is_restarted, ..NewLines::default() });
        };
        read.truncate(end);
        self.position += end as u64;
        self.anchor = read[end.saturating_sub(MAX_ANCHOR)..].to_vec();
        if begins_within {
            let first = read.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            read.drain(..first);
        }
        Ok(NewLines { bytes: read, is_restarted, has_more: is_full })
    }
}
