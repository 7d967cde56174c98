//! The built-in corpus: simple English stories drawn from a grammar whose probabilities are known, so the
//! lowest possible loss, the floor, is known too.
//!
//! Story `index` of a split is a pure function of (seed, split, index). Weights are integers and every draw
//! is exactly uniform, so the stories are the same on every machine, and a story's log-probability is exact.

mod draw;
mod grammar;
mod questions;
#[cfg(test)]
mod tests;

pub(super) use draw::key;
pub use draw::{Split, grammar, story};
pub use grammar::{Derivation, FIRST_WORD, Grammar, Parse};
pub use questions::{Question, QuestionStories, StoryQuestions, questions};

use super::END_OF_TEXT;

/// The chat template of conversations about stories.
pub const CHAT_TEMPLATE_OF_QUESTIONS: &str = include_str!("chat.jinja");

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
