//! What a file holds once it is unpacked, as bytes at offsets.

use crate::data::file::CorpusFile;
use crate::error::Result;
use std::fmt::Debug;

/// The content of a file: its bytes as they lie, or unpacked.
pub(in crate::data) trait Content: Debug + Send + Sync {
    /// The file itself, for its name, its size on disk and whether it has changed.
    fn file(&self) -> &CorpusFile;

    /// The most bytes that the content may have. A read says where it really ends.
    fn bound(&self) -> u64;

    /// Fills `out` with the content from `offset` on, and returns the bytes filled: fewer than `out` has only
    /// at the end.
    ///
    /// # Errors
    /// A file that cannot be read, was written to since it was opened, or is damaged.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// Returns about `bytes` of the content near byte `at` of the file, to estimate the whole from.
    ///
    /// # Errors
    /// As [`Content::read_at`].
    fn sample(&self, at: u64, bytes: usize) -> Result<Sample>;
}

/// A piece of a file's content.
#[derive(Debug)]
pub(in crate::data) struct Sample {
    pub content: Vec<u8>,
    /// Bytes of the file that the piece takes there.
    pub file_bytes: u64,
}

impl Content for CorpusFile {
    fn file(&self) -> &CorpusFile {
        self
    }

    fn bound(&self) -> u64 {
        self.bytes()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let read = self.bytes().saturating_sub(offset).min(out.len() as u64) as usize;
        self.read_exact_at(offset, &mut out[..read])?;
        Ok(read)
    }

    fn sample(&self, at: u64, bytes: usize) -> Result<Sample> {
        let mut content = vec![0; bytes];
        let read = self.read_at(at, &mut content)?;
        content.truncate(read);
        Ok(Sample { file_bytes: content.len() as u64, content })
    }
}
