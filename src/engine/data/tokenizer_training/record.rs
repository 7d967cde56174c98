//! What a tokenizer was trained on, and how: stored beside its `tokenizer.json`.

use super::count::{MAX_PRETOKEN_BYTES, Totals};
use super::merges::Learned;
use super::settings::Training;
use crate::data::tokenizer::Tokenizer;
use crate::format::{plural, thousands};
use serde::Serialize;
use std::fmt;

/// The text of one source that was trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceRecord {
    /// Path of the source, as it was given.
    pub path: String,
    /// Documents of the source.
    pub documents: usize,
    /// Bytes of text that were taken.
    pub text_bytes: u64,
    /// BLAKE3 hash of the text that was taken, with a byte 0xff before each document.
    pub text_hash: String,
}

/// How a tokenizer was trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Version of xrun.
    pub xrun: String,
    /// Name of the pattern, if it has one.
    pub pattern: Option<&'static str>,
    /// The regular expression.
    pub expression: String,
    /// Special tokens, by id.
    pub special_tokens: Vec<String>,
    /// Entries that were asked for.
    pub vocab_asked: usize,
    /// Entries of the vocabulary.
    pub vocab: usize,
    /// The least count of a pair that is merged.
    pub least_count: u64,
    /// The most bytes to train on, if there was a limit.
    pub bytes_limit: Option<u64>,
    /// The most distinct pre-tokens that were held.
    pub most_distinct: usize,
    /// The text.
    pub sources: Vec<SourceRecord>,
    /// What was counted and dropped.
    pub pretokens: Totals,
    /// Texts that were cut because they had no place to cut within 64 MiB.
    pub texts_cut: u64,
    /// Merges that were learned.
    pub merges: usize,
    /// The smallest count of a merge; `None` without merges.
    pub smallest_count: Option<u64>,
    /// Merges left out because they would spell a special token.
    pub merges_forbidden: u64,
    /// The hash of the tokenizer, as runs record it.
    pub tokenizer_hash: String,
}

impl Record {
    pub(super) fn new(
        training: &Training,
        sources: Vec<SourceRecord>,
        pretokens: Totals,
        texts_cut: u64,
        learned: &Learned,
        tokenizer: &Tokenizer,
    ) -> Self {
        Self {
            xrun: env!("CARGO_PKG_VERSION").to_owned(),
            pattern: training.pattern.name(),
            expression: training.pattern.expression().to_owned(),
            special_tokens: training.special.clone(),
            vocab_asked: training.vocab,
            vocab: learned.entries.len(),
            least_count: training.least_count,
            bytes_limit: training.bytes,
            most_distinct: training.most_distinct,
            sources,
            pretokens,
            texts_cut,
            merges: learned.merges.len(),
            smallest_count: learned.merges.iter().map(|merge| merge.count).min(),
            merges_forbidden: learned.forbidden,
            tokenizer_hash: tokenizer.hash(),
        }
    }

    /// Returns what the user should know: a vocabulary that is smaller than asked, and what bounds changed.
    pub fn warnings(&self) -> Vec<String> {
        let Totals { prunings, dropped, undercount, cut, .. } = self.pretokens;
        let mut warnings = Vec::new();
        if self.vocab < self.vocab_asked {
            warnings.push(format!(
                "the vocabulary has {} entries, not {}: no further pair of tokens occurs {} times in this \
                 text",
                self.vocab, self.vocab_asked, self.least_count
            ));
        }
        if prunings > 0 {
            warnings.push(format!(
                "there were more than {} distinct pre-tokens, so the rarest were dropped {prunings} time{}: \
                 {dropped} of {} occurrences, and any count may be too low by up to {undercount}. --distinct \
                 holds more, in more memory",
                self.most_distinct,
                plural(prunings as usize),
                self.pretokens.pretokens
            ));
        }
        if cut > 0 {
            warnings.push(format!(
                "{cut} pre-token{} of more than {} bytes cut",
                if cut == 1 { " was" } else { "s were" },
                MAX_PRETOKEN_BYTES
            ));
        }
        if self.texts_cut > 0 {
            warnings.push(format!(
                "{} text{} without a place to cut within 64 MiB cut anywhere: their pre-tokens may differ \
                 there",
                self.texts_cut,
                if self.texts_cut == 1 { " was" } else { "s were" }
            ));
        }
        if self.merges_forbidden > 0 {
            warnings.push(format!(
                "{} merge{} left out, because the result would be spelled like a special token",
                self.merges_forbidden,
                if self.merges_forbidden == 1 { " was" } else { "s were" }
            ));
        }
        warnings
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.sources.iter().map(|source| source.text_bytes).sum();
        let count = |n: u64| thousands(n as usize);
        writeln!(f, "text trained on      {} bytes", count(bytes))?;
        writeln!(f, "pre-tokens           {}", count(self.pretokens.pretokens))?;
        writeln!(f, "distinct ones        {}", count(self.pretokens.distinct))?;
        writeln!(f, "entries              {}", thousands(self.vocab))?;
        writeln!(f, "merges               {}", thousands(self.merges))?;
        match self.smallest_count {
            Some(smallest) => writeln!(f, "smallest count       {}", count(smallest)),
            None => Ok(()),
        }
    }
}
