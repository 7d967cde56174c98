//! A file of cached tokens.
//!
//! ```text
//! "xrun tokens\n"   length of the header (u32)   header (JSON)
//! tokens to train on, held-out tokens (u16 or u32 each)
//! BLAKE3 of all bytes before it
//! ```
//!
//! Numbers are little-endian. A file is used only after its hash is verified.

use super::super::stream::decode_ids;
use super::super::tokenizer::LostBytes;
use crate::atomic;
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use crate::regular;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Error as IoError, Read};
use std::path::Path;

const MAGIC: &[u8; 12] = b"xrun tokens\n";

/// Bytes of the hash at the end of the file.
const HASH_BYTES: u64 = 32;

/// The longest header that is read, in bytes.
const MAX_HEADER: u32 = 64 << 10;

/// Tokens read, written and hashed at a time.
const BLOCK_TOKENS: usize = 1 << 20;

/// The header of cached tokens: a description for people, and the facts about the text that are known without
/// reading it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Header {
    /// Path of the text when it was tokenized.
    pub text: String,
    /// Name of the tokenizer.
    pub tokenizer: String,
    /// Number of documents and files in the text, in words.
    pub contents: String,
    /// True if there is something to warn about in the text.
    pub warned: bool,
    /// Bytes of the text in UTF-8, without document separators.
    pub text_bytes: Option<u64>,
    /// Bytes of the held-out text, if known.
    pub held_out_bytes: Option<u64>,
    /// Bytes of all text that the tokens lost.
    pub lost: LostBytes,
    /// Bytes of the held-out text that the tokens lost, or more.
    pub held_out_lost: LostBytes,
    /// Tokens to train on.
    pub train: u64,
    /// Held-out tokens.
    pub held_out: u64,
    /// Bytes per token in the file: 2 or 4.
    pub width: u8,
}

/// An opened file of cached tokens; its hash is not verified yet.
#[derive(Debug)]
pub(in super::super) struct Entry {
    pub header: Header,
    file: File,
    hasher: blake3::Hasher,
}

impl Entry {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// `NotFound` if the file does not exist; another error if it is damaged or cannot be read.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let damaged = || IoError::from(std::io::ErrorKind::InvalidData);
        path.symlink_metadata()?;
        let mut file = regular::open(path).map_err(|_| damaged())?;
        let mut head = [0; MAGIC.len() + 4];
        file.read_exact(&mut head)?;
        let (magic, length) = head.split_at(MAGIC.len());
        let length = u32::from_le_bytes(length.try_into().map_err(|_| damaged())?);
        if magic != MAGIC || length > MAX_HEADER {
            return Err(damaged());
        }
        let mut json = vec![0; length as usize];
        file.read_exact(&mut json)?;
        let header: Header = serde_json::from_slice(&json)?;
        let tokens = header.train.checked_add(header.held_out).ok_or_else(damaged)?;
        let tokens = tokens.checked_mul(header.width.into()).ok_or_else(damaged)?;
        let around = (head.len() + json.len()) as u64 + HASH_BYTES;
        let bytes = file.metadata()?.len();
        if ![2, 4].contains(&header.width) || bytes.checked_sub(around) != Some(tokens) {
            return Err(damaged());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head).update(&json);
        Ok(Self { header, file, hasher })
    }

    /// Reads the tokens into two vectors with reserved memory. Returns false if the hash does not match; the
    /// vectors then hold arbitrary tokens.
    pub fn read(mut self, train: &mut Vec<u32>, held_out: &mut Vec<u32>) -> std::io::Result<bool> {
        for (tokens, count) in [(train, self.header.train), (held_out, self.header.held_out)] {
            self.read_tokens(tokens, count as usize)?;
        }
        let mut hash = [0; HASH_BYTES as usize];
        self.file.read_exact(&mut hash)?;
        if self.hasher.finalize() != blake3::Hash::from_bytes(hash) {
            return Ok(false);
        }
        // Entries are removed in order of last use, so reading one updates its time.
        let _ = self.file.set_modified(std::time::SystemTime::now());
        Ok(true)
    }

    fn read_tokens(&mut self, tokens: &mut Vec<u32>, count: usize) -> std::io::Result<()> {
        let width = usize::from(self.header.width);
        let mut block = vec![0; BLOCK_TOKENS.min(count) * width];
        for start in (0..count).step_by(BLOCK_TOKENS) {
            let block = &mut block[..BLOCK_TOKENS.min(count - start) * width];
            self.file.read_exact(block)?;
            self.hasher.update_rayon(block);
            tokens.resize(start + block.len() / width, 0);
            decode_ids(block, width, &mut tokens[start..]);
            report_progress();
        }
        Ok(())
    }
}

/// Returns the size in bytes of a file with this header, at most, and the width of an id in bytes. `vocab` is
/// the number of vocabulary entries.
pub(super) fn size(header: &Header, vocab: usize) -> (u64, u8) {
    let width = if vocab > 1 << 16 { 4 } else { 2 };
    let tokens = header.train.saturating_add(header.held_out);
    (tokens.saturating_mul(u64::from(width)).saturating_add(u64::from(MAX_HEADER)), width)
}

/// Writes tokens as a file that appears whole or not at all. If the header's width is 2, all ids must be
/// below 65,536.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(path: &Path, header: &Header, train: &[u32], held_out: &[u32]) -> Result<()> {
    let json = serde_json::to_vec(header).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
    let length = u32::try_from(json.len()).ok().filter(|length| *length <= MAX_HEADER);
    let length = length.ok_or_else(|| Error::failed("the header of cached tokens is too long"))?;
    atomic::write_with(path, |out| {
        let mut hasher = blake3::Hasher::new();
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            out.write_all(bytes)
        };
        put(MAGIC)?;
        put(&length.to_le_bytes())?;
        put(&json)?;
        let mut block = Vec::new();
        for tokens in train.chunks(BLOCK_TOKENS).chain(held_out.chunks(BLOCK_TOKENS)) {
            block.clear();
            match header.width {
                2 => block.extend(tokens.iter().flat_map(|&id| (id as u16).to_le_bytes())),
                _ => block.extend(tokens.iter().flat_map(|id| id.to_le_bytes())),
            }
            put(&block)?;
        }
        let hash = hasher.finalize();
        out.write_all(hash.as_bytes())
    })
}
