//! A stream of token ids, in memory or memory-mapped, read by range.

use crate::error::{Error, Result};
use crate::liveness::report_progress;
use memmap2::Mmap;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Tokens hashed and checked at a time.
const CHUNK: usize = 1 << 20;

/// Where a run of tokens is kept.
#[derive(Debug)]
pub(super) enum Store {
    /// In memory.
    Memory(Vec<u32>),
    /// Little-endian ids of `width` bytes (2 or 4) in a mapped file, from byte `offset` on.
    Mapped { map: Mmap, offset: usize, width: usize },
}

impl Store {
    fn len(&self) -> usize {
        match self {
            Store::Memory(tokens) => tokens.len(),
            Store::Mapped { map, offset, width } => (map.len() - offset) / width,
        }
    }

    fn read(&self, from: usize, out: &mut [u32]) {
        match self {
            Store::Memory(tokens) => out.copy_from_slice(&tokens[from..from + out.len()]),
            Store::Mapped { map, offset, width: 2 } => {
                let bytes = &map[offset + 2 * from..offset + 2 * (from + out.len())];
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *o = u32::from(u16::from_le_bytes(*b));
                }
            }
            Store::Mapped { map, offset, .. } => {
                let bytes = &map[offset + 4 * from..offset + 4 * (from + out.len())];
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *o = u32::from_le_bytes(*b);
                }
            }
        }
    }
}

/// Part of a store, at its place in the stream.
#[derive(Clone, Debug)]
struct Segment {
    store: Arc<Store>,
    from: usize,
    at: usize,
    len: usize,
}

/// Token ids 0..len, from one or several stores. Cheap to clone and to slice.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    segments: Vec<Segment>,
    len: usize,
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

    /// A stream of tokens in memory.
    pub fn from_tokens(tokens: Vec<u32>) -> Self {
        Self::new([Store::Memory(tokens)])
    }

    fn push(&mut self, segment: Segment) {
        if segment.len > 0 {
            let len = segment.len;
            self.segments.push(Segment { at: self.len, ..segment });
            self.len += len;
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the tokens from `start` on into `out`.
    ///
    /// # Panics
    /// When the range is not within the stream, as slices do.
    pub fn read(&self, start: usize, out: &mut [u32]) {
        let end = start + out.len();
        assert!(end <= self.len, "tokens {start}..{end} of a stream of {}", self.len);
        let first = self.segments.partition_point(|s| s.at + s.len <= start);
        for s in self.segments[first..].iter().take_while(|s| s.at < end) {
            let (from, to) = (start.max(s.at), end.min(s.at + s.len));
            s.store.read(s.from + from - s.at, &mut out[from - start..to - start]);
        }
    }

    /// The tokens of a range, copied.
    pub fn tokens(&self, range: Range<usize>) -> Vec<u32> {
        let mut out = vec![0; range.len()];
        self.read(range.start, &mut out);
        out
    }

    /// The part of the stream within `range`, sharing its stores.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut part = Self::default();
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

    /// The position of the first `token` at or after `start`.
    pub(super) fn find(&self, token: u32, start: usize) -> Option<usize> {
        let mut at = start;
        while at < self.len {
            let chunk = self.tokens(at..self.len.min(at + 4096));
            if let Some(i) = chunk.iter().position(|&t| t == token) {
                return Some(at + i);
            }
            at += chunk.len();
        }
        None
    }

    /// BLAKE3 over the tokens (not over how they are stored), with every id checked against the vocabulary in
    /// the same pass.
    ///
    /// # Errors
    /// The position and the id of a token outside the vocabulary.
    pub(super) fn digest(&self, vocab: usize) -> Result<blake3::Hash> {
        let parts: Vec<[u8; 32]> = (0..self.len.div_ceil(CHUNK))
            .into_par_iter()
            .map(|i| {
                let range = i * CHUNK..self.len.min((i + 1) * CHUNK);
                let tokens = self.tokens(range.clone());
                if let Some(bad) = tokens.iter().position(|&t| t as usize >= vocab) {
                    return Err(Error::usage(format!(
                        "token {} at position {} is outside the tokenizer's vocabulary of {vocab} entries; name \
                         the tokenizer that made these shards",
                        tokens[bad],
                        range.start + bad
                    )));
                }
                let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
                report_progress();
                Ok(*blake3::hash(&bytes).as_bytes())
            })
            .collect::<Result<_>>()?;
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
                assert_eq!(s.tokens(a..b), expected);
                let slice = s.slice(a..b);
                assert_eq!(slice.len(), b - a);
                assert_eq!(slice.tokens(0..b - a), expected);
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
    fn find_looks_from_its_start() {
        assert_eq!(three().find(4, 0), Some(4));
        assert_eq!(three().find(4, 5), None);
    }
}
