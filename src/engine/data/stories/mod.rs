//! The built-in corpus: simple English stories drawn from a grammar whose probabilities are known, so the
//! lowest possible loss, the floor, is known too.
//!
//! Story `index` of a split is a pure function of (seed, split, index). Weights are integers and every draw
//! is exactly uniform, so the stories are the same on every machine, and a story's log-probability is exact.

mod grammar;
#[cfg(test)]
mod tests;

pub use grammar::{Derivation, FIRST_WORD, Grammar, Parse};

use super::END_OF_TEXT;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// One of the two independent streams of stories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Stories to train on.
    Train = 0,
    /// Held-out stories, whose log-probability gives the floor.
    Validation = 1,
}

/// The grammar of the built-in stories.
pub fn grammar() -> &'static Grammar {
    static GRAMMAR: OnceLock<Grammar> = OnceLock::new();
    GRAMMAR.get_or_init(|| {
        Grammar::compile(include_str!("grammar.txt"))
            .expect("the grammar in the binary compiles, as tests check")
    })
}

/// Returns the ChaCha key of block `index`, for one purpose, split and seed.
pub(super) fn key(purpose: [u8; 8], seed: u64, split: Split, index: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&index.to_le_bytes());
    key[16] = split as u8;
    key[24..].copy_from_slice(&purpose);
    key
}

/// Draws story `index` of a split with ChaCha8, keyed by seed, split and index.
pub fn story(seed: u64, split: Split, index: u64) -> Derivation {
    let key = key(*b"stories\0", seed, split, index);
    let mut rng = ChaCha8Rng::from_seed(key);
    grammar().draw(|total| {
        // Rejection makes every number below the total exactly equally likely.
        let limit = u32::MAX - u32::MAX % total;
        loop {
            let x = rng.next_u32();
            if x < limit {
                return x % total;
            }
        }
    })
}

/// Returns true if `text` is one sentence that the grammar can make, with pronouns that agree within it.
pub fn parse_sentence(text: &str) -> bool {
    grammar().is_sentence(text)
}

/// How many sentences of a generated sample the grammar accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Number of complete sentences; an unfinished one at the very end is not counted.
    pub sentences: usize,
    /// Number of sentences that [`parse_sentence`] accepts.
    pub parsed: usize,
}

/// Splits a sample into stories at the end token and into sentences, and parses each sentence.
pub fn judge(sample: &str) -> Judgement {
    let mut judgement = Judgement::default();
    let mut documents = sample.split(END_OF_TEXT).peekable();
    while let Some(document) = documents.next() {
        let (sentences, unfinished) = split_sentences(document);
        judgement.sentences += sentences.len();
        judgement.parsed += sentences.into_iter().filter(|s| parse_sentence(s)).count();
        // Only the end of the sample may cut a sentence off. A story that ends inside a sentence is wrong.
        if !unfinished.is_empty() && documents.peek().is_some() {
            judgement.sentences += 1;
        }
    }
    judgement
}

/// Returns the complete sentences of a text, and the text after the last one. A sentence ends at `.`, `!` or
/// `?` outside quotes, or at a closing quote right after one of them, unless a lowercase word ("said")
/// follows.
fn split_sentences(text: &str) -> (Vec<&str>, &str) {
    let (mut sentences, mut start, mut quoted, mut stopped) = (Vec::new(), 0, false, false);
    for (i, c) in text.char_indices() {
        if c == '"' {
            quoted = !quoted;
        }
        let after = &text[i + c.len_utf8()..];
        let ends = match c {
            '.' | '!' | '?' => !quoted,
            '"' => !quoted && stopped && !after.trim_start().starts_with(char::is_lowercase),
            _ => false,
        };
        stopped = matches!(c, '.' | '!' | '?');
        if ends {
            sentences.push(text[start..text.len() - after.len()].trim());
            start = text.len() - after.len();
        }
    }
    (sentences, text[start..].trim())
}
