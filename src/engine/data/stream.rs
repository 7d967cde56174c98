//! A stream of token ids, in memory or in files, read by range.

use super::file::CorpusFile;
use super::marked;
use super::parallel::collect_in_order;
use crate::error::{Error, IoContext, Result};
use crate::interrupts;
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Tokens hashed and checked at a time.
const CHUNK: usize = 1 << 20;

/// A file of little-endian token ids.
#[derive(Debug)]
pub(super) struct TokenFile {
    pub file: CorpusFile,
    /// Byte at which the ids begin.
    pub offset: u64,
    /// Bytes per id: 2 or 4.
    pub width: usize,
    pub tokens: usize,
}

impl TokenFile {
    fn read(&self, from: usize, out: &mut [u32]) -> Result<()> {
        let mut bytes = vec![0; out.len() * self.width];
        self.file.read_exact_at(self.offset + (from * self.width) as u64, &mut bytes)?;
        decode_ids(&bytes, self.width, out);
        Ok(())
    }
}

/// Little-endian token ids in a file that is still appended to.
#[derive(Debug)]
pub(super) struct UnfinishedTokens {
    pub file: Arc<File>,
    /// Path of the file when it was opened, for messages.
    pub path: PathBuf,
    /// Byte at which the ids begin.
    pub offset: u64,
    /// Bytes per id: 2 or 4.
    pub width: usize,
    /// Number of ids that are there.
    pub tokens: usize,
}

impl UnfinishedTokens {
    fn read(&self, from: usize, out: &mut [u32]) -> Result<()> {
        let mut bytes = vec![0; out.len() * self.width];
        let at = self.offset + (from * self.width) as u64;
        interrupts::read_exact_at(&self.file, &mut bytes, at).at("read", &self.path)?;
        decode_ids(&bytes, self.width, out);
        Ok(())
    }
}

/// Decodes little-endian ids of `width` bytes each, which is 2 or 4.
pub(super) fn decode_ids(bytes: &[u8], width: usize, ids: &mut [u32]) {
    if width == 2 {
        let words = bytes.as_chunks::<2>().0;
        ids.iter_mut().zip(words).for_each(|(id, word)| *id = u32::from(u16::from_le_bytes(*word)));
    } else {
        let words = bytes.as_chunks::<4>().0;
        ids.iter_mut().zip(words).for_each(|(id, word)| *id = u32::from_le_bytes(*word));
    }
}

/// Encodes ids as little-endian numbers of `width` bytes each, which is 2 or 4; `None` if one does not fit.
pub(super) fn encode_ids(ids: &[u32], width: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ids.len() * width);
    for &id in ids {
        match width {
            2 => bytes.extend(u16::try_from(id).ok()?.to_le_bytes()),
            _ => bytes.extend(id.to_le_bytes()),
        }
    }
    Some(bytes)
}

/// Where consecutive tokens are kept.
#[derive(Debug)]
pub(super) enum Store {
    /// In memory.
    Memory(Vec<u32>),
    /// In a file.
    File(TokenFile),
    /// In a file that is still written.
    Unfinished(UnfinishedTokens),
}

impl Store {
    fn len(&self) -> usize {
        match self {
            Store::Memory(tokens) => tokens.len(),
            Store::File(file) => file.tokens,
            Store::Unfinished(file) => file.tokens,
        }
    }

    fn read(&self, from: usize, out: &mut [u32]) -> Result<()> {
        match self {
            Store::Memory(tokens) => out.copy_from_slice(&tokens[from..from + out.len()]),
            Store::File(file) => file.read(from, out)?,
            Store::Unfinished(file) => file.read(from, out)?,
        }
        Ok(())
    }

    /// Describes the position of a token in messages.
    fn place(&self, at: usize) -> String {
        match self {
            Store::Memory(_) => format!("position {at}"),
            Store::File(file) => format!("position {at} of {}", file.file.path().display()),
            Store::Unfinished(file) => format!("position {at} of {}", file.path.display()),
        }
    }
}

/// Part of a store: tokens `from..from + len` of it, at position `at` of the stream.
#[derive(Clone, Debug)]
struct Segment {
    store: Arc<Store>,
    from: usize,
    at: usize,
    len: usize,
}

/// A sequence of token ids from one or several stores. Cheap to clone and to slice.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    segments: Vec<Segment>,
    len: usize,
    /// True if the words are those of conversations ([`marked`]), in a part of the stream at least.
    is_marked: bool,
}

impl Stream {
    pub(super) fn new(stores: impl IntoIterator<Item = Store>) -> Self {
        let mut stream = Self::default();
        for store in stores {
            let len = store.len();
            stream.push(Segment { store: Arc::new(store), from: 0, at: 0, len });
        }
        stream
    }

    /// Makes a stream of tokens in memory.
    pub fn from_tokens(tokens: Vec<u32>) -> Self {
        Self::new([Store::Memory(tokens)])
    }

    /// Makes a stream of the words of conversations in memory.
    pub(super) fn from_words(words: Vec<u32>) -> Self {
        Self { is_marked: true, ..Self::from_tokens(words) }
    }

    /// Returns true if words of the stream are those of conversations.
    pub(super) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Joins streams, one behind the other. Shares their stores.
    pub(super) fn join<'s>(streams: impl IntoIterator<Item = &'s Self>) -> Self {
        let mut joined = Self::default();
        for stream in streams {
            joined.is_marked |= stream.is_marked;
            stream.segments.iter().for_each(|segment| joined.push(segment.clone()));
        }
        joined
    }

    fn push(&mut self, segment: Segment) {
        if segment.len > 0 {
            let len = segment.len;
            self.segments.push(Segment { at: self.len, ..segment });
            self.len += len;
        }
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the segments from token `start` on.
    fn segments_from(&self, start: usize) -> &[Segment] {
        &self.segments[self.segments.partition_point(|s| s.at + s.len <= start)..]
    }

    /// Copies the tokens from `start` on into `out`.
    ///
    /// # Errors
    /// If a token file cannot be read, or was written to since it was opened.
    ///
    /// # Panics
    /// If the range exceeds the stream.
    pub fn read(&self, start: usize, out: &mut [u32]) -> Result<()> {
        let end = start + out.len();
        assert!(end <= self.len, "tokens {start}..{end} of a stream of {}", self.len);
        for s in self.segments_from(start).iter().take_while(|s| s.at < end) {
            let (from, to) = (start.max(s.at), end.min(s.at + s.len));
            s.store.read(s.from + from - s.at, &mut out[from - start..to - start])?;
        }
        Ok(())
    }

    /// Copies the tokens of a range.
    ///
    /// # Errors
    /// If [`Stream::read`] fails.
    pub fn tokens(&self, range: Range<usize>) -> Result<Vec<u32>> {
        let mut out = vec![0; range.len()];
        self.read(range.start, &mut out)?;
        Ok(out)
    }

    /// Copies the tokens of a range, or the words of conversations, and checks each against a vocabulary of
    /// `vocab` entries.
    ///
    /// # Errors
    /// If [`Stream::read`] fails, or a token is outside the vocabulary; the message has the first such token,
    /// its file and its position there.
    pub(super) fn tokens_in_vocab(&self, range: Range<usize>, vocab: usize) -> Result<Vec<u32>> {
        let tokens = self.tokens(range.clone())?;
        // A mark in another stream is a wrong id.
        let id = |word: u32| if self.is_marked { marked::id(word) } else { word };
        let Some(bad) = tokens.iter().position(|&word| id(word) as usize >= vocab) else { return Ok(tokens) };
        let at = range.start + bad;
        let place = self.segments_from(at).first().map(|s| s.store.place(s.from + at - s.at));
        Err(Error::usage(format!(
            "token {} at {} is outside the tokenizer's vocabulary of {vocab} entries; name the tokenizer that made these \
             tokens",
            id(tokens[bad]),
            place.unwrap_or_default()
        )))
    }

    /// Checks that no file of the stream was written to since it was opened. Reads check the same.
    ///
    /// # Errors
    /// If a file was written to, replaced or removed.
    pub(super) fn check(&self) -> Result<()> {
        let check = |s: &Segment| match s.store.as_ref() {
            Store::Memory(_) | Store::Unfinished(_) => Ok(()),
            Store::File(tokens) => tokens.file.check(),
        };
        collect_in_order(self.segments.par_iter().map(check)).map(drop)
    }

    /// Returns the bytes of memory that the tokens take.
    pub(super) fn memory_bytes(&self) -> usize {
        let held = self.segments.iter().filter(|s| matches!(*s.store, Store::Memory(_)));
        held.map(|s| s.len * size_of::<u32>()).sum()
    }

    /// Returns the part of the stream within `range`. It shares the stores.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut part = Self { is_marked: self.is_marked, ..Self::default() };
        for s in &self.segments {
            let from = range.start.max(s.at);
            let to = range.end.min(s.at + s.len);
            if from < to {
                part.push(Segment {
                    store: s.store.clone(),
                    from: s.from + from - s.at,
                    at: 0,
                    len: to - from,
                });
            }
        }
        part
    }

    /// Returns the position of the first `token` at or after `start`; of conversations, that of the first one
    /// that begins there, whatever its first token is.
    ///
    /// # Errors
    /// If [`Stream::read`] fails.
    pub(super) fn find(&self, token: u32, start: usize) -> Result<Option<usize>> {
        let mut at = start;
        while at < self.len {
            let chunk = self.tokens(at..self.len.min(at + 4096))?;
            // A mixture may hold out conversations beside text.
            let is_it = |&word: &u32| match self.is_marked && marked::is_marked(word) {
                true => marked::is_first(word),
                false => word == token,
            };
            if let Some(i) = chunk.iter().position(is_it) {
                return Ok(Some(at + i));
            }
            at += chunk.len();
        }
        Ok(None)
    }

    /// Hashes the tokens with BLAKE3, independently of how they are stored, and checks every id against the
    /// vocabulary in the same pass.
    ///
    /// # Errors
    /// If [`Stream::read`] fails, or a token is outside the vocabulary; the message has its file and its
    /// position there.
    pub(super) fn digest(&self, vocab: usize) -> Result<blake3::Hash> {
        let hash = |i| {
            let tokens = self.tokens_in_vocab(i * CHUNK..self.len.min((i + 1) * CHUNK), vocab)?;
            let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
            report_progress();
            Ok(*blake3::hash(&bytes).as_bytes())
        };
        let parts = collect_in_order((0..self.len.div_ceil(CHUNK)).into_par_iter().map(hash))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.len as u64).to_le_bytes());
        parts.iter().for_each(|p| {
            hasher.update(p);
        });
        Ok(hasher.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Stream {
        Stream::new([vec![0, 1, 2], vec![], vec![3], vec![4, 5, 6, 7]].map(Store::Memory))
    }

    #[test]
    fn every_range_reads_across_segments() {
        let s = three();
        for a in 0..=8usize {
            for b in a..=8 {
                let expected: Vec<u32> = (a as u32..b as u32).collect();
                assert_eq!(s.tokens(a..b).unwrap(), expected);
                let slice = s.slice(a..b);
                assert_eq!(slice.len(), b - a);
                assert_eq!(slice.tokens(0..b - a).unwrap(), expected);
            }
        }
    }

    #[test]
    fn the_digest_is_of_the_tokens_not_of_their_storage() {
        let whole = Stream::from_tokens((0..8).collect());
        assert_eq!(three().digest(8).unwrap(), whole.digest(8).unwrap());
        assert_ne!(three().digest(8).unwrap(), whole.slice(0..7).digest(8).unwrap());
        let error = whole.digest(7).unwrap_err();
        assert!(error.message().contains("token 7 at position 7"), "{error}");
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let ids = [0, 1, 258, 65_535, 65_536, u32::MAX];
        for (width, ids) in [(2, &ids[..4]), (4, &ids[..])] {
            let bytes = encode_ids(ids, width).unwrap();
            let mut read = vec![0; ids.len()];
            decode_ids(&bytes, width, &mut read);
            assert_eq!((bytes.len(), read.as_slice()), (ids.len() * width, ids));
        }
        assert_eq!(encode_ids(&ids[..5], 2), None);
    }

    #[test]
    fn find_looks_from_its_start() {
        assert_eq!(three().find(4, 0).unwrap(), Some(4));
        assert_eq!(three().find(4, 5).unwrap(), None);
    }
}
