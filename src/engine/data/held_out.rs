//! Held-out sets: their tokens, and the bytes of text behind them.

use super::IGNORED;
use super::stream::Stream;
use crate::error::Result;
use std::sync::Arc;

/// A held-out set.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// Name of the set; empty for the one that `data.validation` holds out.
    pub name: String,
    /// Tokens of the set; the first is context only.
    pub tokens: Stream,
    /// BLAKE3 hash of the tokens, in hexadecimal: equal for equal tokens of one vocabulary.
    pub hash: String,
    /// What is known about the bytes of its text.
    pub text: TextBytes,
    /// The share of its text that is also trained on, from 0 to 1; `None` if hardly any is, or in generated
    /// corpora. Estimated from windows of 64 tokens.
    pub in_training: Option<f64>,
}

impl HeldOut {
    /// Returns the positions where documents begin, which tell the document that each token belongs to. A
    /// document begins at an `opening_token`, and a conversation where it is marked; one after the last
    /// document opens none. If the set begins within a document, that document begins at position 0.
    ///
    /// # Errors
    /// If a token file cannot be read or was written to.
    pub fn document_starts(&self, opening_token: u32) -> Result<Vec<usize>> {
        let mut starts = vec![0];
        let mut from = 1;
        while let Some(at) = self.tokens.find(opening_token, from)? {
            starts.push(at);
            from = at + 1;
        }
        starts.pop_if(|start| *start > 0 && *start + 1 == self.tokens.len());
        Ok(starts)
    }
}

/// What is known about the bytes of text that tokens stand for. Document separators are not text, so end
/// tokens count no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextBytes {
    /// Nothing: the tokens are not text, or the number of bytes is unknown.
    Unknown,
    /// The bytes of the whole set, but not of a part: the same token may stand for different bytes in
    /// different places.
    Whole(u64),
    /// The bytes of each token, by token id.
    PerToken(Arc<Vec<u32>>),
}

impl TextBytes {
    /// Combines what is known: `bytes` per token, if the tokenizer's tokens always stand for the same bytes,
    /// or the bytes of the `whole` text, if it was read. Nothing is known if bytes of the text are lost, or
    /// may be: the model did not predict those.
    pub(super) fn new(bytes: Option<&Arc<Vec<u32>>>, whole: Option<u64>, loses_bytes: bool) -> Self {
        match (bytes, whole) {
            _ if loses_bytes => Self::Unknown,
            (Some(bytes), _) => Self::PerToken(Arc::clone(bytes)),
            (None, Some(whole)) => Self::Whole(whole),
            (None, None) => Self::Unknown,
        }
    }

    /// Returns what is known of two texts together.
    pub(super) fn joined(self, other: Self) -> Self {
        match (self, other) {
            (Self::PerToken(bytes), Self::PerToken(_)) => Self::PerToken(bytes),
            (Self::Whole(one), Self::Whole(other)) => Self::Whole(one + other),
            _ => Self::Unknown,
        }
    }

    /// Returns the bytes of text that targets stand for, without [`IGNORED`] ones; `None` unless the bytes of
    /// each token are known.
    pub fn target_bytes(&self, targets: &[u32]) -> Option<u64> {
        let Self::PerToken(bytes) = self else { return None };
        let targets = targets.iter().filter(|&&target| target != IGNORED);
        Some(targets.map(|&target| bytes.get(target as usize).map_or(0, |&bytes| u64::from(bytes))).sum())
    }

    /// Returns the bytes of the whole set's text, if they are known without its tokens.
    pub fn whole_bytes(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(*bytes),
            Self::Unknown | Self::PerToken(_) => None,
        }
    }
}
