//! The content of a file after unpacking, as bytes at offsets.

use crate::data::file::CorpusFile;
use crate::error::Result;
use std::fmt::Debug;

/// The content of a file: its own bytes, or what they unpack to.
pub(in crate::data) trait Content: Debug + Send + Sync {
    /// Returns the file itself, for its name, its size on disk and whether it has changed.
    fn file(&self) -> &CorpusFile;

    /// Returns an upper bound of the content's bytes. Only a read finds the real end.
    fn max_bytes(&self) -> u64;

    /// Fills `out` with the content from `offset` on and returns the number of bytes filled. It is less than
    /// the length of `out` only at the end.
    ///
    /// # Errors
    /// If the file cannot be read, was written to since it was opened, or is damaged.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize>;
}

impl Content for CorpusFile {
    fn file(&self) -> &CorpusFile {
        self
    }

    fn max_bytes(&self) -> u64 {
        self.bytes()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let read = self.bytes().saturating_sub(offset).min(out.len() as u64) as usize;
        self.read_exact_at(offset, &mut out[..read])?;
        Ok(read)
    }
}
