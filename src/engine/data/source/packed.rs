//! Packed files: reads the content of one at any offset.
//!
//! A packed stream can only be decoded from its beginning. So every thread keeps the decoder that it used
//! last, which makes reads in order cheap, and every file keeps places along the way from which other reads
//! start. Nothing else is kept in memory, however long the content is.

use super::content::Content;
use crate::data::file::CorpusFile;
use crate::error::{Error, Result};
use crate::lock::lock;
use std::cell::RefCell;
use std::fmt;
use std::sync::Mutex;
use std::thread::LocalKey;

/// How many times the length of its file content may be, beyond [`ALWAYS_ALLOWED`]. Packed text is a third to
/// a tenth of its length; files that expand much further are made to fill memory or a disk.
const ALLOWED_EXPANSION: u64 = 200;

/// Content up to this length is allowed whatever the file's size.
pub(super) const ALWAYS_ALLOWED: u64 = 64 << 20;

/// Bytes of content between the first places kept; longer content spaces them further apart.
pub(super) const FIRST_SPACING: u64 = 4 << 20;

/// Bytes of content decoded at a time on the way to an offset.
const SKIP_BYTES: u64 = 1 << 20;

/// The decoder that a thread used last, and the id of its file.
pub(super) type LastDecoder<D> = LocalKey<RefCell<Option<(u64, D)>>>;

/// Decodes a packing. The default begins at the start of a file.
pub(super) trait Decoder: Default + 'static {
    /// A place from which decoding can begin.
    type Checkpoint: Send;

    /// The most checkpoints kept per file.
    const MAX_CHECKPOINTS: usize;

    /// The most bytes that the packing can make of one byte, to bound the content.
    const MAX_EXPANSION: u64;

    /// Returns the decoder that this thread used last.
    fn last() -> &'static LastDecoder<Self>;

    /// Returns the bytes of content decoded so far.
    fn position(&self) -> u64;

    /// Returns true after the end of the content.
    fn is_done(&self) -> bool;

    /// Returns the offset in the file of the byte that is decoded next.
    fn next_byte(&self) -> u64;

    /// Fills `out` with the next content and returns the number of bytes filled. It is less than the length
    /// of `out` only at the end.
    ///
    /// # Errors
    /// If the file cannot be read, was written to since it was opened, or is damaged.
    fn read(&mut self, file: &CorpusFile, out: &mut [u8]) -> Result<usize>;

    /// Returns the position of the place that [`Decoder::checkpoint`] returns. It is at most the decoder's.
    fn checkpoint_position(&self) -> u64;

    /// Returns the last place that decoding can begin from.
    fn checkpoint(&self) -> Self::Checkpoint;

    /// Returns a decoder that begins at a checkpoint.
    fn resume(checkpoint: &Self::Checkpoint) -> Self;
}

/// A packed file.
pub(super) struct Packed<D: Decoder> {
    file: CorpusFile,
    checkpoints: Mutex<Checkpoints<D::Checkpoint>>,
}

impl<D: Decoder> Packed<D> {
    /// Opens a packed file. Nothing is decoded yet.
    pub fn open(file: CorpusFile) -> Box<dyn Content> {
        Box::new(Self { file, checkpoints: Mutex::new(Checkpoints::new(D::MAX_CHECKPOINTS)) })
    }

    /// Returns a decoder at the last checkpoint at or before `offset`, if it is beyond `reached`.
    fn resume_between(&self, reached: u64, offset: u64) -> Option<D> {
        lock(&self.checkpoints)
            .last_before(offset)
            .filter(|(at, _)| *at > reached)
            .map(|(_, at)| D::resume(at))
    }

    /// Keeps a checkpoint if it is far enough beyond the last kept one. The files of a large corpus keep
    /// none: there are enough of them to read in parallel.
    fn store_checkpoint(&self, decoder: &D) {
        if self.file.is_held() && !decoder.is_done() {
            lock(&self.checkpoints).add(decoder.checkpoint_position(), || decoder.checkpoint());
        }
    }
}

impl<D: Decoder> fmt::Debug for Packed<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("file", &self.file).finish_non_exhaustive()
    }
}

impl<D: Decoder> Content for Packed<D> {
    fn file(&self) -> &CorpusFile {
        &self.file
    }

    fn max_bytes(&self) -> u64 {
        self.file.bytes().saturating_mul(D::MAX_EXPANSION)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let last = D::last().take().filter(|(id, last)| *id == self.file.id() && last.position() <= offset);
        let last = last.map(|(_, last)| last);
        let reached = last.as_ref().map_or(0, D::position);
        let mut decoder = self.resume_between(reached, offset).or(last).unwrap_or_default();
        let mut scratch = Vec::new();
        while decoder.position() < offset && !decoder.is_done() {
            scratch.resize((offset - decoder.position()).min(SKIP_BYTES) as usize, 0);
            decoder.read(&self.file, &mut scratch)?;
            self.store_checkpoint(&decoder);
        }
        let read = decoder.read(&self.file, out)?;
        self.store_checkpoint(&decoder);
        if !decoder.is_done() {
            D::last().set(Some((self.file.id(), decoder)));
        }
        Ok(read)
    }
}

/// Places that reads may start from, in order of position and evenly spaced.
pub(super) struct Checkpoints<T> {
    spacing: u64,
    most: usize,
    kept: Vec<(u64, T)>,
}

impl<T> Checkpoints<T> {
    fn new(most: usize) -> Self {
        Self { spacing: FIRST_SPACING, most, kept: Vec::new() }
    }

    fn last_before(&self, offset: u64) -> Option<&(u64, T)> {
        self.kept.iter().rfind(|(at, _)| *at <= offset)
    }

    fn add(&mut self, position: u64, make: impl FnOnce() -> T) {
        let last = self.kept.last().map_or(0, |(at, _)| *at);
        if position < last + self.spacing {
            return;
        }
        self.kept.push((position, make()));
        if self.kept.len() == self.most {
            self.spacing *= 2;
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }
    }
}

/// Bytes of a packed file on their way to a decoder.
#[derive(Clone, Default)]
pub(super) struct Input {
    /// Bytes of the file that were read; those from `used` on are not decoded yet.
    bytes: Vec<u8>,
    used: usize,
    /// The byte of the file after `bytes`.
    read_to: u64,
}

impl Input {
    /// Returns an input that begins at a byte of the file.
    pub fn from(read_to: u64) -> Self {
        Self { bytes: Vec::new(), used: 0, read_to }
    }

    /// Returns the bytes that are read and not decoded yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Returns true if the file ends after [`Input::rest`].
    pub fn is_last(&self, file: &CorpusFile) -> bool {
        self.read_to == file.bytes()
    }

    /// Takes bytes off the front, of which the file may have more than were read.
    pub fn consume(&mut self, bytes: u64) {
        let read = bytes.min(self.rest().len() as u64);
        self.used += read as usize;
        self.read_to += bytes - read;
    }

    /// Reads a block of `block` bytes unless `wanted` bytes are ready or the file ends.
    pub fn refill(&mut self, file: &CorpusFile, wanted: usize, block: usize) -> Result<()> {
        if self.rest().len() < wanted && self.read_to < file.bytes() {
            self.bytes.drain(..self.used);
            self.used = 0;
            let held = self.bytes.len();
            self.bytes.resize(block.min(held + (file.bytes() - self.read_to) as usize), 0);
            file.read_exact_at(self.read_to, &mut self.bytes[held..])?;
            self.read_to += (self.bytes.len() - held) as u64;
        }
        Ok(())
    }

    /// Returns the offset in the file of the byte that is decoded next.
    pub fn next_byte(&self) -> u64 {
        self.read_to - self.rest().len() as u64
    }
}

/// Refuses content of `made` bytes from `used` bytes of a file if text never packs so tightly. `unpack` says
/// how the file is unpacked.
pub(super) fn check_expansion(file: &CorpusFile, made: u64, used: u64, unpack: &str) -> Result<()> {
    if made <= ALWAYS_ALLOWED.max(ALLOWED_EXPANSION.saturating_mul(used)) {
        return Ok(());
    }
    let times = made / used.max(1);
    Err(error(
        file,
        &format!(
            "becomes {times} times as long when it is unpacked, which text never does; if you do want to train on it, \
             {unpack} first"
        ),
    ))
}

/// Makes an error that begins with the name of a file.
pub(super) fn error(file: &CorpusFile, what: &str) -> Error {
    Error::usage(format!("{} {what}", file.path().display()))
}

/// Makes the error for a file that ends too early.
pub(super) fn truncated(file: &CorpusFile) -> Error {
    error(
        file,
        &format!(
            "is cut off: its packed text does not end within its {} bytes. Copy or download it again",
            file.bytes()
        ),
    )
}

/// Makes the error for a file whose bytes are wrong. `check` is the command that checks it.
pub(super) fn damaged(file: &CorpusFile, what: &str, check: &str) -> Error {
    error(file, &format!("is damaged: {what}. Copy or download it again; `{check}` checks it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_stay_few_and_evenly_spaced() {
        const MOST: usize = 32;
        let mut kept = Checkpoints { spacing: 10, most: MOST, kept: Vec::new() };
        for position in 0..100_000 {
            kept.add(position, || ());
        }
        let positions: Vec<u64> = kept.kept.iter().map(|(position, ())| *position).collect();
        assert!(positions.len() >= MOST / 2 && positions.len() < MOST, "{positions:?}");
        let gaps: Vec<u64> = positions.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap == kept.spacing), "{gaps:?}");
        assert_eq!(kept.last_before(positions[1] - 1), Some(&(positions[0], ())));
    }
}

/// What the tests of every packing need.
#[cfg(test)]
pub(super) mod testing {
    use super::super::content::Content;
    use crate::error::Result;

    /// Reads all of a content in pieces.
    pub fn read_in_pieces(content: &dyn Content, piece: usize) -> Result<Vec<u8>> {
        let (mut all, mut out) = (Vec::new(), vec![0; piece]);
        loop {
            let read = content.read_at(all.len() as u64, &mut out)?;
            all.extend_from_slice(&out[..read]);
            if read < piece {
                return Ok(all);
            }
        }
    }

    /// Returns lines with numbers that do not repeat for long.
    pub fn numbers(count: usize) -> Vec<u8> {
        (0..count).flat_map(|n| format!("line {n} of {}\n", n * n % 7919).into_bytes()).collect()
    }
}
