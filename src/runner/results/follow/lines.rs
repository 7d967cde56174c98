//! The lines that were appended to a file since the last look.

use crate::error::{Error, IoContext, Result};
use crate::results::regular;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The most bytes of a file that one look reads; a longer line is none that xrun writes.
pub const MAX_READ: usize = 1 << 20;

/// Bytes before the position that are held against the file at each look: more than the line of a row.
const MAX_ANCHOR: usize = 512;

/// Reads the lines of a file as they are appended.
#[derive(Debug)]
pub struct AppendedLines {
    path: PathBuf,
    /// Bytes of the file that were returned, or left out at its beginning.
    position: u64,
    /// The last of them. Where the file has others now, it was cut back and has grown again, perhaps to just
    /// its length.
    anchor: Vec<u8>,
    /// The first look begins so many bytes before the end.
    tail: Option<u64>,
}

/// Lines that were appended to a file since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewLines {
    /// Whole lines, each with its newline.
    pub bytes: Vec<u8>,
    /// True if the file does not begin as it did: it was cut back, as by a resume, or removed. What was read
    /// of it before is void, and these lines are from its beginning.
    pub is_restarted: bool,
    /// True if whole lines may be left for the next look.
    pub has_more: bool,
}

impl AppendedLines {
    /// Creates a reader of all lines of a file, which need not be there yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), position: 0, anchor: Vec::new(), tail: None }
    }

    /// Creates a reader of the whole lines among the last `bytes` bytes of a file, and of those that follow.
    pub fn of_tail(path: &Path, bytes: u64) -> Self {
        Self { tail: Some(bytes), ..Self::new(path) }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the lines that are new. An incomplete last line waits for its rest.
    ///
    /// # Errors
    /// When the file is a link or no regular file, cannot be read, or has a line of more than [`MAX_READ`]
    /// bytes.
    pub fn poll(&mut self) -> Result<NewLines> {
        let mut file = match regular::open(&self.path) {
            Err(_) if is_missing(&self.path) => return Ok(self.restart()),
            file => file?,
        };
        let length = file.metadata().at("read", &self.path)?.len();
        let mut is_restarted = false;
        if length < self.position {
            is_restarted = self.restart().is_restarted;
        }
        let leaves_out = self.tail.take().map_or(0, |tail| length.saturating_sub(tail));
        if leaves_out > 0 {
            // The line that is under way there is left out with what is before it.
            self.position = leaves_out;
        }
        let mut bytes = self.read_on(&mut file)?;
        if !bytes.starts_with(&self.anchor) {
            is_restarted = self.restart().is_restarted;
            bytes = self.read_on(&mut file)?;
        }
        let read = bytes.split_off(self.anchor.len());
        self.take(read, leaves_out > 0, is_restarted)
    }

    /// Forgets what was read: the next look begins with the whole file.
    pub(super) fn restart(&mut self) -> NewLines {
        let is_restarted = self.position > 0;
        (self.position, self.anchor) = (0, Vec::new());
        NewLines { is_restarted, ..NewLines::default() }
    }

    /// Reads the anchor and at most [`MAX_READ`] bytes behind it.
    fn read_on(&self, file: &mut File) -> Result<Vec<u8>> {
        let from = self.position - self.anchor.len() as u64;
        file.seek(SeekFrom::Start(from)).at("seek in", &self.path)?;
        let mut bytes = Vec::new();
        let most = self.anchor.len() + MAX_READ;
        file.take(most as u64).read_to_end(&mut bytes).at("read", &self.path)?;
        Ok(bytes)
    }

    /// Moves on over the whole lines of what was read at the position, and returns them.
    fn take(&mut self, mut read: Vec<u8>, begins_within: bool, is_restarted: bool) -> Result<NewLines> {
        let is_full = read.len() == MAX_READ;
        let Some(end) = read.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1) else {
            if is_full {
                return Err(Error::failed(format!(
                    "{} has a line of more than {MAX_READ} bytes at byte {}: xrun did not write it",
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

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
}
