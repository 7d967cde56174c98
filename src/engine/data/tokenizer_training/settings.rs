//! What tokenizer to train.

use super::document::FirstEntries;
use super::pattern::Pattern;
use crate::error::{Error, Result};

/// Most entries of a vocabulary. The largest in use have 260,000.
pub const MAX_VOCAB: usize = 1 << 20;

/// The most distinct pre-tokens that are held, unless another number is chosen. With it, training takes at
/// most 2 GiB, whatever the size of the text.
pub const MOST_DISTINCT: usize = 8_000_000;

/// What tokenizer to train.
#[derive(Clone, Debug)]
pub struct Training {
    /// The expression that splits text into pre-tokens.
    pub pattern: Pattern,
    /// Number of entries: special tokens, 256 bytes and merges.
    pub vocab: usize,
    /// Special tokens, which get the first ids. The first one ends documents.
    pub special: Vec<String>,
    /// The least count of a pair that is merged, at least 1.
    pub least_count: u64,
    /// The most bytes of text to train on; `None` for all.
    pub bytes: Option<u64>,
    /// The most distinct pre-tokens that are held from one group of texts to the next.
    pub most_distinct: usize,
}

impl Training {
    /// Checks the vocabulary's size and the special tokens.
    ///
    /// # Errors
    /// If the vocabulary is too small for the bytes and the special tokens, or too large, or a special token
    /// cannot be one.
    pub fn check(&self) -> Result<()> {
        self.first_entries().map(drop)
    }

    /// Returns the entries before the first merge.
    ///
    /// # Errors
    /// If [`Training::check`] fails.
    pub(super) fn first_entries(&self) -> Result<FirstEntries> {
        let first = FirstEntries::new(&self.special)?;
        if self.vocab < first.len() || self.vocab > MAX_VOCAB {
            return Err(Error::usage(format!(
                "a vocabulary of {} entries: give {} (256 bytes and {} special) to {MAX_VOCAB}",
                self.vocab,
                first.len(),
                self.special.len()
            )));
        }
        Ok(first)
    }
}
