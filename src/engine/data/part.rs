//! A source of tokens to train on.

use super::corpus::CorpusSummary;
use super::growing::Growing;
use super::packing::Rows;
use super::stream::Stream;
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;

/// A source of tokens to train on, with an order of its own.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Name of the source; empty if the whole corpus is one source.
    pub name: String,
    pub tokens: PartTokens,
    /// The rows that its documents are packed into; `None` if it is cut into windows.
    pub rows: Option<Arc<Rows>>,
}

/// The tokens of a part.
#[derive(Clone, Debug)]
pub(super) enum PartTokens {
    /// All of them.
    Whole(Stream),
    /// Those of a text that is being tokenized.
    Growing {
        corpus: Arc<Growing>,
        /// An estimate of their number.
        expected: usize,
    },
}

impl PartTokens {
    /// Returns the number of tokens, or an estimate while they are made.
    pub fn expected(&self) -> usize {
        match self {
            Self::Whole(stream) => stream.len(),
            Self::Growing { expected, .. } => *expected,
        }
    }

    /// Returns the tokens if all of them were there when the corpus was opened.
    pub fn whole(&self) -> Option<&Stream> {
        match self {
            Self::Whole(stream) => Some(stream),
            Self::Growing { .. } => None,
        }
    }

    /// Returns true if the tokens are words of conversations.
    pub fn is_marked(&self) -> bool {
        self.whole().is_some_and(Stream::is_marked)
    }

    /// Returns what is known about a text that was tokenized after the corpus was opened.
    pub fn late(&self) -> Option<&CorpusSummary> {
        match self {
            Self::Whole(_) => None,
            Self::Growing { corpus, .. } => corpus.loaded().ok().flatten().map(|loaded| &loaded.summary),
        }
    }

    /// Waits until `tokens` tokens have arrived, or all. Returns the number of all tokens if it is known.
    ///
    /// # Errors
    /// If the text cannot be tokenized.
    pub fn wait_for(&self, tokens: usize) -> Result<Option<usize>> {
        match self {
            Self::Whole(stream) => Ok(Some(stream.len())),
            Self::Growing { corpus, .. } => corpus.wait_for(tokens),
        }
    }

    /// Reads tokens that have arrived, and checks each against a vocabulary of `vocab` entries.
    ///
    /// # Errors
    /// If they cannot be read, or one is outside the vocabulary.
    pub fn read(&self, range: Range<usize>, vocab: usize) -> Result<Vec<u32>> {
        match self {
            Self::Whole(stream) => stream.tokens_in_vocab(range, vocab),
            Self::Growing { corpus, .. } => corpus.read(range, vocab),
        }
    }

    /// Checks that no file of the tokens was written to since it was opened.
    ///
    /// # Errors
    /// If a file was written to, replaced or removed, or the text cannot be tokenized.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Whole(stream) => stream.check(),
            Self::Growing { corpus, .. } => corpus.loaded()?.map_or(Ok(()), |loaded| loaded.train.check()),
        }
    }
}
