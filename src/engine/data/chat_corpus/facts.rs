//! What a plan shows of conversations.

use super::super::marked;
use super::super::packing::Packed;
use super::encoder::Encoder;
use super::examples::{DroppedExamples, Example, Examples};
use crate::error::Result;
use crate::format::{plural, thousands};
use serde::Serialize;

/// Examples that are shown.
const SHOWN: usize = 3;

/// What is known about a corpus of conversations, held-out ones included.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatFacts {
    /// The file of the chat template.
    pub template: String,
    /// True if they are pairs of answers, of which each counts as one.
    pub pairs: bool,
    /// Number of conversations that are trained on or held out.
    pub examples: usize,
    /// Number of their tokens.
    pub tokens: usize,
    /// Number of their tokens that are trained on.
    pub trained_tokens: usize,
    /// Conversations that are left out.
    pub dropped: Vec<DroppedExamples>,
    /// Number of conversations of which the last answer alone is trained on, because the template changes
    /// earlier ones.
    pub last_alone: usize,
    /// Number of conversations whose last turns are cut off, because they do not fit a row.
    pub cut: usize,
    /// Tokens of the longest conversation.
    pub longest: usize,
    /// File and line of the longest conversation.
    pub longest_at: String,
    /// Some conversations with what is trained on.
    pub shown: Vec<ShownExample>,
    /// The rows that the conversations to train on are laid into.
    pub packed: Packed,
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownExample {
    /// File and line.
    pub place: String,
    /// Its parts: whether each is trained on, and its text, special tokens by their names.
    pub parts: Vec<(bool, String)>,
}

impl ChatFacts {
    pub(super) fn new(found: &Examples, pairs: bool, packed: Packed, encoder: &Encoder) -> Result<Self> {
        let longest = found.examples.iter().max_by_key(|example| example.words.len());
        let trained =
            |example: &Example| example.words.iter().filter(|&&word| marked::is_trained(word)).count();
        let apart = found.examples.len().div_ceil(SHOWN).max(1);
        let shown = found.examples.iter().step_by(apart).map(|example| shown(example, encoder));
        Ok(Self {
            template: encoder.file.clone(),
            pairs,
            examples: found.examples.len(),
            tokens: found.examples.iter().map(|example| example.words.len()).sum(),
            trained_tokens: found.examples.iter().map(trained).sum(),
            dropped: found.dropped.values().cloned().collect(),
            last_alone: found.last_alone,
            cut: found.cut,
            longest: longest.map_or(0, |example| example.words.len()),
            longest_at: longest.map_or(String::new(), |example| example.place.clone()),
            shown: shown.collect::<Result<_>>()?,
            packed,
        })
    }
}

/// Decodes an example, each run of tokens that are trained on or not as one part.
fn shown(example: &Example, encoder: &Encoder) -> Result<ShownExample> {
    let runs = example.words.chunk_by(|a, b| marked::is_trained(*a) == marked::is_trained(*b));
    let part = |run: &[u32]| {
        let ids: Vec<u32> = run.iter().map(|&word| marked::id(word)).collect();
        Ok((marked::is_trained(run[0]), encoder.tokenizer().decode(&ids)?))
    };
    Ok(ShownExample { place: example.place.clone(), parts: runs.map(part).collect::<Result<_>>()? })
}

/// Warns of conversations of which not everything is trained on.
pub(super) fn warnings(found: &Examples) -> Vec<String> {
    let count = |n: usize| format!("{} conversation{}", thousands(n), plural(n));
    let dropped = found.dropped_in_words().into_iter().map(|line| format!("left out: {line}"));
    let last_alone = (found.last_alone > 0).then(|| {
        format!(
            "the chat template changes earlier answers when messages follow, so of {} the last answer alone is trained on",
            count(found.last_alone)
        )
    });
    let cut = (found.cut > 0).then(|| {
        format!("{} longer than training.seq_len end with the last answer that fits", count(found.cut))
    });
    dropped.chain(last_alone).chain(cut).collect()
}
