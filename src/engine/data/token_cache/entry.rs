//! A file of cached tokens.
//!
//! ```text
//! "xrun tokens 3.\n"   (16 bytes)
//! tokens to train on and held-out tokens, one behind the other (u16 or u32 each)
//! header (JSON)   length of the header (u32)
//! BLAKE3 of all bytes before it
//! ```
//!
//! Numbers are little-endian. The header is behind the tokens, so tokens are written while they are made. A
//! file is used only after its hash is verified.

use super::super::file::CorpusFile;
use super::super::split::TokenSink;
use super::super::stories::Split;
use super::super::stream::{Store, Stream, TokenFile, encode_ids};
use super::super::tokenizer::LostBytes;
use super::journal::{Journal, Unfinished};
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

pub(super) const MAGIC: &[u8; 16] = b"xrun tokens 3.\n\0";

/// Bytes of the hash at the end of the file.
const HASH_BYTES: u64 = 32;

/// Bytes of the header's length before the hash.
const LENGTH_BYTES: u64 = 4;

/// The longest header that is read, in bytes.
const MAX_HEADER: u64 = 64 << 10;

/// Bytes read, written and hashed at a time. Tests have several blocks of little text.
const BLOCK_BYTES: usize = if cfg!(test) { 64 << 10 } else { 4 << 20 };

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
    /// Number of documents that `data.drop` lists and the text lacks.
    #[serde(default)]
    pub absent_drops: usize,
    /// Tokens to train on.
    pub train: u64,
    /// Held-out tokens.
    pub held_out: u64,
    /// True if the held-out tokens stand before those to train on.
    pub held_out_first: bool,
    /// Bytes per token in the file: 2 or 4.
    pub width: u8,
}

/// The tokens of a text, read from its entry.
#[derive(Debug)]
pub(in super::super) struct TextTokens {
    pub train: Stream,
    pub held_out: Stream,
    /// Facts about the text.
    pub header: Header,
}

/// An opened file of cached tokens; its hash is not verified yet.
#[derive(Debug)]
pub(in super::super) struct Entry {
    pub header: Header,
    file: CorpusFile,
}

impl Entry {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file does not exist, is damaged, or cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let damaged = || Error::failed(format!("{} is damaged", path.display()));
        let file = CorpusFile::open_cached(path)?;
        let mut magic = [0; MAGIC.len()];
        let length_at = file.bytes().checked_sub(HASH_BYTES + LENGTH_BYTES).ok_or_else(damaged)?;
        file.read_exact_at(0, &mut magic)?;
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact_at(length_at, &mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        let header_at = length_at.checked_sub(length).filter(|at| *at >= MAGIC.len() as u64);
        let header_at = header_at.filter(|_| &magic == MAGIC && length <= MAX_HEADER).ok_or_else(damaged)?;
        let mut json = vec![0; length as usize];
        file.read_exact_at(header_at, &mut json)?;
        let header: Header = serde_json::from_slice(&json).map_err(|_| damaged())?;
        let tokens = header.train.checked_add(header.held_out);
        let bytes = tokens.and_then(|tokens| tokens.checked_mul(header.width.into()));
        if ![2, 4].contains(&header.width) || bytes != Some(header_at - MAGIC.len() as u64) {
            return Err(damaged());
        }
        Ok(Self { header, file })
    }

    /// Verifies the hash of the whole file, and returns the tokens as streams that read them from it; `None`
    /// if the hash does not match.
    ///
    /// # Errors
    /// If the file cannot be read, or was written to meanwhile.
    pub fn verified(self) -> Result<Option<TextTokens>> {
        let Self { header, file } = self;
        let hashed = file.bytes() - HASH_BYTES;
        let mut hasher = blake3::Hasher::new();
        let mut block = Vec::new();
        let mut at = 0;
        while at < hashed {
            block.resize((hashed - at).min(BLOCK_BYTES as u64) as usize, 0);
            file.read_exact_at(at, &mut block)?;
            hasher.update_rayon(&block);
            at += block.len() as u64;
            report_progress();
        }
        let mut hash = [0; HASH_BYTES as usize];
        file.read_exact_at(hashed, &mut hash)?;
        if hasher.finalize() != blake3::Hash::from_bytes(hash) {
            return Ok(None);
        }
        // Entries are removed in order of last use. The time of the last write would tell other readers that
        // the tokens have changed.
        file.set_read_now();
        let tokens = (header.train + header.held_out) as usize;
        let (offset, width) = (MAGIC.len() as u64, usize::from(header.width));
        let all = Stream::new([Store::File(TokenFile { file, offset, width, tokens })]);
        let (train, held_out) = match header.held_out_first {
            true => (header.held_out as usize..tokens, 0..header.held_out as usize),
            false => (0..header.train as usize, header.train as usize..tokens),
        };
        Ok(Some(TextTokens { train: all.slice(train), held_out: all.slice(held_out), header }))
    }
}

/// Returns the bytes per token of a vocabulary of `vocab` entries.
pub(super) fn width(vocab: usize) -> u8 {
    if vocab > 1 << 16 { 4 } else { 2 }
}

/// What became of an entry that was to be written.
pub(super) enum Written {
    /// It was written.
    Whole,
    /// The disk refused it; the tokens are not stored.
    Refused,
}

/// Writes the tokens that `make` hands to its sink, one split behind the other, as a file that appears whole
/// or not at all. `make` records groups of them in the journal, and takes those from it that an interrupted
/// process made. It returns the header; its counts and width are filled in here. `vocab` is the number of
/// vocabulary entries.
///
/// # Errors
/// If `make` fails for another reason than the sink.
pub(super) fn write(
    path: &Path,
    vocab: usize,
    make: impl FnOnce(&mut TokenSink<'_>, &mut Journal) -> Result<Header>,
) -> Result<Written> {
    let width = width(vocab);
    let Ok(mut unfinished) = Unfinished::open(path, MAGIC, width) else { return Ok(Written::Refused) };
    let mut writer = Writer {
        file: unfinished.file.clone(),
        at: 0,
        hasher: blake3::Hasher::new(),
        width,
        block: MAGIC.to_vec(),
        counts: [0; 2],
        held_out_first: false,
        error: None,
    };
    let made = make(&mut |split, tokens| writer.tokens(split, tokens), &mut unfinished.journal);
    let written = match (writer.error.take(), made) {
        (Some(e), _) => Err(e),
        (None, Ok(header)) => writer.finish(header),
        (None, Err(e)) => return Err(e),
    };
    if written.and_then(|()| unfinished.finish(path)).is_ok() {
        return Ok(Written::Whole);
    }
    unfinished.remove();
    Ok(Written::Refused)
}

/// Writes and hashes an entry piece by piece.
struct Writer {
    file: Arc<File>,
    /// Bytes that were hashed, and are in the file.
    at: u64,
    hasher: blake3::Hasher,
    width: u8,
    /// Bytes that are not hashed yet.
    block: Vec<u8>,
    /// Tokens to train on and held-out tokens so far.
    counts: [u64; 2],
    /// True if held-out tokens came first.
    held_out_first: bool,
    /// The first error of the disk.
    error: Option<std::io::Error>,
}

impl Writer {
    fn flush(&mut self) -> std::io::Result<()> {
        self.hasher.update_rayon(&self.block);
        self.write_block()
    }

    fn write_block(&mut self) -> std::io::Result<()> {
        self.file.write_all_at(&self.block, self.at)?;
        self.at += self.block.len() as u64;
        self.block.clear();
        Ok(())
    }

    fn tokens(&mut self, split: Split, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let is_held_out = split == Split::Validation;
        if self.counts == [0; 2] {
            self.held_out_first = is_held_out;
        }
        // The split that came first may not come behind the other one.
        if is_held_out == self.held_out_first && self.counts[usize::from(!is_held_out)] > 0 {
            return Err(Error::failed("tokens of one split came between those of the other"));
        }
        self.counts[usize::from(is_held_out)] += tokens.len() as u64;
        self.append(tokens).map_err(|e| {
            let message = Error::failed(format!("cannot write cached tokens: {e}"));
            self.error = Some(e);
            message
        })
    }

    fn append(&mut self, tokens: &[u32]) -> std::io::Result<()> {
        for tokens in tokens.chunks(BLOCK_BYTES / size_of::<u32>()) {
            let ids = encode_ids(tokens, self.width.into()).ok_or(std::io::ErrorKind::InvalidData)?;
            self.block.extend(ids);
            if self.block.len() >= BLOCK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn finish(mut self, header: Header) -> std::io::Result<()> {
        let [train, held_out] = self.counts;
        let (held_out_first, width) = (self.held_out_first, self.width);
        let json = serde_json::to_vec(&Header { train, held_out, held_out_first, width, ..header })?;
        if json.len() as u64 > MAX_HEADER {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        self.block.extend_from_slice(&json);
        self.block.extend((json.len() as u32).to_le_bytes());
        self.flush()?;
        self.block.extend(self.hasher.finalize().as_bytes());
        self.write_block()?;
        self.file.set_len(self.at)
    }
}
