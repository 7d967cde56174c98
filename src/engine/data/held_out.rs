//! Held-out sets: their tokens, and the bytes of text that these stand for.

use super::IGNORED;
use super::stream::Stream;
use crate::error::Result;
use std::sync::Arc;

/// A held-out set.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// Its name; empty for the set that `data.validation` holds out.
    pub name: String,
    /// Its tokens; the first is context only.
    pub tokens: Stream,
    /// BLAKE3 hash of the tokens, in hexadecimal: equal for equal tokens of one vocabulary.
    pub hash: String,
    /// What is known of the bytes of its text.
    pub text: TextBytes,
}

impl HeldOut {
    /// Returns the number of the document that each token belongs to, as where the documents begin: the
    /// positions of the end tokens that open them, without that after the last. A set that begins within a
    /// document has this as its first, from position 0 on.
    ///
    /// # Errors
    /// A file of tokens that cannot be read or was written to.
    pub fn document_starts(&self, end_token: u32) -> Result<Vec<usize>> {
        let mut starts = vec![0];
        let mut from = 1;
        while let Some(at) = self.tokens.find(end_token, from)? {
            starts.push(at);
            from = at + 1;
        }
        starts.pop_if(|start| *start > 0 && *start + 1 == self.tokens.len());
        Ok(starts)
    }
}

/// What is known of the bytes of text that tokens stand for. Separators of documents, and so the end tokens
/// between them, are no text and count none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextBytes {
    /// Nothing: the tokens are no text, or it is not known how many bytes of it they stand for.
    Unknown,
    /// Those of the whole set, and not those of a part: a token may stand for other bytes from place to
    /// place.
    Whole(u64),
    /// Those of each token, by its id.
    OfTokens(Arc<Vec<u32>>),
}

impl TextBytes {
    /// Returns what is known of a text with a tokenizer whose tokens stand for these `bytes`, where they
    /// always stand for the same, and of which the `whole` has so many, where it was read.
    pub(super) fn new(bytes: Option<&Arc<Vec<u32>>>, whole: Option<u64>) -> Self {
        match (bytes, whole) {
            (Some(bytes), _) => Self::OfTokens(Arc::clone(bytes)),
            (None, Some(whole)) => Self::Whole(whole),
            (None, None) => Self::Unknown,
        }
    }

    /// Returns the bytes of text that targets stand for, [`IGNORED`] ones left out; `None` where only those
    /// of the whole set are known, if any.
    pub fn of_targets(&self, targets: &[u32]) -> Option<u64> {
        let Self::OfTokens(bytes) = self else { return None };
        let targets = targets.iter().filter(|&&target| target != IGNORED);
        Some(targets.map(|&target| bytes.get(target as usize).map_or(0, |&bytes| u64::from(bytes))).sum())
    }

    /// Returns the bytes of the text of the whole set, where they are known without its tokens.
    pub fn of_whole(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(*bytes),
            Self::Unknown | Self::OfTokens(_) => None,
        }
    }
}
