//! Statistics of a tokenized corpus.

use super::corpus::CorpusSummary;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use serde::Serialize;
use std::fmt;

/// Counts of the tokens of one split, updated as the tokens are delivered.
#[derive(Clone, Debug)]
pub struct Counts {
    end: u32,
    /// The token that only opens a document, if there is one.
    opening: Option<u32>,
    tokens: u64,
    documents: u64,
    longest: u64,
    open: u64,
    used: Vec<bool>,
}

impl Counts {
    /// Starts with all counts at zero.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let used = vec![false; tokenizer.vocab_size()];
        let (end, opening) = (tokenizer.end_token(), tokenizer.opening_after_end());
        Self { end, opening, tokens: 0, documents: 0, longest: 0, open: 0, used }
    }

    /// Counts the next tokens of the stream.
    ///
    /// # Errors
    /// If a token is outside the vocabulary.
    pub fn add(&mut self, tokens: &[u32]) -> Result<()> {
        self.tokens += tokens.len() as u64;
        for &t in tokens {
            let vocab = self.used.len();
            let seen = self.used.get_mut(t as usize).ok_or_else(|| {
                Error::usage(format!("token {t} is outside the tokenizer's vocabulary of {vocab} entries"))
            })?;
            *seen = true;
            if t == self.end {
                self.close();
            } else if Some(t) != self.opening {
                self.open += 1;
            }
        }
        Ok(())
    }

    /// Ends the current document; two end tokens in a row enclose none.
    fn close(&mut self) {
        self.documents += u64::from(self.open > 0);
        self.longest = self.longest.max(self.open);
        self.open = 0;
    }
}

/// The statistics that `xrun data` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Tokens to train on, end tokens included.
    pub train_tokens: u64,
    /// Held-out tokens, end tokens included.
    pub validation_tokens: u64,
    /// Documents to train on.
    pub train_documents: u64,
    /// Held-out documents; a tail cut off a document counts as one.
    pub validation_documents: u64,
    /// Tokens of the longest document, its end token not included.
    pub longest_document_tokens: u64,
    /// UTF-8 bytes of text per token; `None` if the corpus was already tokens.
    pub bytes_per_token: Option<f64>,
    /// The lowest possible loss on the held-out tokens in nats per token, if known.
    pub floor: Option<f64>,
    /// Number of tokenizer entries.
    pub vocab_size: u64,
    /// Number of entries that occur in the corpus.
    pub vocab_used: u64,
    /// Number of token files written.
    pub shards: u64,
}

impl Statistics {
    /// Sums up both splits of a corpus that [`feed`](super::feed) delivered and that was written to `shards`
    /// shards.
    pub fn new(train: &Counts, validation: &Counts, fed: &CorpusSummary, shards: usize) -> Self {
        let close = |c: &Counts| {
            let mut c = c.clone();
            c.close();
            c
        };
        let (train, held) = (close(train), close(validation));
        let tokens = train.tokens + held.tokens;
        Self {
            train_tokens: train.tokens,
            validation_tokens: held.tokens,
            train_documents: train.documents,
            validation_documents: held.documents,
            longest_document_tokens: train.longest.max(held.longest),
            bytes_per_token: fed.text_bytes.map(|b| b as f64 / tokens as f64),
            floor: fed.floor,
            vocab_size: train.used.len() as u64,
            vocab_used: train.used.iter().zip(&held.used).filter(|(a, b)| **a || **b).count() as u64,
            shards: shards as u64,
        }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.vocab_used as f64 / self.vocab_size as f64;
        writeln!(f, "train tokens       {}", self.train_tokens)?;
        writeln!(f, "validation tokens  {}", self.validation_tokens)?;
        writeln!(f, "documents          {} + {} held out", self.train_documents, self.validation_documents)?;
        writeln!(f, "longest document   {} tokens", self.longest_document_tokens)?;
        if let Some(ratio) = self.bytes_per_token {
            writeln!(f, "bytes per token    {ratio:.3}")?;
        }
        if let Some(floor) = self.floor {
            writeln!(f, "floor              {floor:.4} nats per held-out token")?;
        }
        writeln!(f, "vocabulary used    {} of {} ({share:.1} %)", self.vocab_used, self.vocab_size)?;
        writeln!(f, "shards             {}", self.shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_what_stands_between_end_tokens() {
        let tokenizer = Tokenizer::open("byte").unwrap();
        let count = |parts: &[&[u32]]| {
            let mut c = Counts::new(&tokenizer);
            parts.iter().for_each(|p| c.add(p).unwrap());
            c
        };
        let train = count(&[&[256, 1, 2], &[3, 256], &[256, 1, 256]]);
        let held = count(&[&[2, 9]]);
        let s = Statistics::new(
            &train,
            &held,
            &CorpusSummary { text_bytes: Some(20), ..CorpusSummary::default() },
            2,
        );
        assert_eq!((s.train_tokens, s.validation_tokens), (8, 2));
        assert_eq!((s.train_documents, s.validation_documents), (2, 1));
        assert_eq!((s.longest_document_tokens, s.vocab_used, s.vocab_size), (3, 5, 257));
        assert_eq!(s.bytes_per_token, Some(2.0));
        assert!(Counts::new(&tokenizer).add(&[257]).is_err());
    }
}
