//! Finds held-out text that is also trained on: a loss on it says how well the model remembers it.

use super::stream::Stream;
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::collections::HashSet;

/// Passages of a held-out set that are looked up.
const PASSAGES: usize = 64;

/// Tokens per passage: long enough that only copied text has them in common.
const PASSAGE_TOKENS: usize = 64;

/// A set is said to be trained on if one of this many of its passages is.
const SAID: usize = 8;

/// Tokens looked through at a time.
const CHUNK: usize = 1 << 20;

/// An odd factor, whose powers are the weights of a window's tokens.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The set of `data.validation` in a warning.
pub(super) const HELD_OUT: &str = "the held-out text";

/// Names a further held-out set in a warning.
pub(super) fn set_name(name: &str) -> String {
    format!("the held-out set {name}")
}

/// Warns if passages of a held-out set occur in the tokens to train on. `name` says whose passages they are.
///
/// # Errors
/// If a token file cannot be read.
pub(super) fn warning(train: &Stream, held_out: &Stream, name: &str) -> Result<Option<String>> {
    let length = PASSAGE_TOKENS;
    if held_out.len() < length || train.len() < length {
        return Ok(None);
    }
    let last = held_out.len() - length;
    let count = PASSAGES.min(last + 1);
    let passage = |i: usize| {
        let start = last * i / (count - 1).max(1);
        Ok(hash(&held_out.tokens(start..start + length)?))
    };
    let passages = (0..count).map(passage).collect::<Result<HashSet<u64>>>()?;
    let found = occurring(train, &passages, length)?.len();
    Ok((found * SAID >= passages.len()).then(|| {
        format!(
            "{name} is also in the training text: of {} passages of {length} tokens, {found} occur there. A loss on text \
             that was trained on says how well a model remembers it, not how well it predicts; hold out other text",
            passages.len()
        )
    }))
}

/// Returns the hashes that belong to windows of `length` tokens of a stream.
fn occurring(stream: &Stream, wanted: &HashSet<u64>, length: usize) -> Result<HashSet<u64>> {
    let starts = stream.len() + 1 - length;
    let chunks = (0..starts.div_ceil(CHUNK)).into_par_iter().map(|i| {
        let end = starts.min((i + 1) * CHUNK) + length - 1;
        let tokens = stream.tokens(i * CHUNK..end)?;
        report_progress();
        Ok(windows(&tokens, length).filter(|hash| wanted.contains(hash)).collect())
    });
    let found: Vec<HashSet<u64>> = chunks.collect::<Result<_>>()?;
    Ok(found.into_iter().flatten().collect())
}

/// Spreads a token over all bits.
fn spread(token: u32) -> u64 {
    let mixed = (u64::from(token) + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0, |hash, token| hash.wrapping_mul(FACTOR).wrapping_add(spread(*token)))
}

/// Returns the hashes of all windows of `length` tokens, each from the one before it.
fn windows(tokens: &[u32], length: usize) -> impl Iterator<Item = u64> + '_ {
    let first_weight = FACTOR.wrapping_pow(length as u32);
    let mut now = hash(&tokens[..length]);
    let next = tokens.iter().zip(&tokens[length..]).map(move |(old, new)| {
        now = now.wrapping_mul(FACTOR).wrapping_add(spread(*new));
        now = now.wrapping_sub(spread(*old).wrapping_mul(first_weight));
        now
    });
    std::iter::once(hash(&tokens[..length])).chain(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64, tokens: usize) -> Vec<u32> {
        (0..tokens as u64).map(|i| (hash(&[seed as u32, i as u32]) >> 33) as u32 % 300).collect()
    }

    fn found(train: &[u32], held_out: &[u32]) -> Option<String> {
        let [train, held_out] = [train, held_out].map(|tokens| Stream::from_tokens(tokens.to_vec()));
        warning(&train, &held_out, "the held-out text").unwrap()
    }

    #[test]
    fn copied_text_is_found_wherever_it_is() {
        let (own, other) = (random(1, 5000), random(2, 5000));
        let says = |found: Option<String>, n: &str| {
            assert!(found.as_ref().is_some_and(|f| f.contains(n)), "{found:?}")
        };
        assert_eq!(found(&own, &other), None);
        says(found(&own, &own), "of 64 passages of 64 tokens, 64 occur");
        says(
            found(&[&other[..], &own[100..200], &other[..]].concat(), &own[110..180]),
            "of 7 passages of 64 tokens, 7 occur",
        );
        says(found(&[&other[..], &own[..2500]].concat(), &own), "32 occur");
        // A shared notice of licence is not a copy.
        assert_eq!(found(&[&other[..], &own[..300]].concat(), &own), None);
        for short in [0, 1, 63] {
            assert_eq!(found(&own, &own[..short]), None);
            assert_eq!(found(&own[..short], &own), None);
        }
        says(found(&own[..64], &own[..64]), "of 1 passages");
    }

    #[test]
    fn windows_are_found_across_chunks() {
        let mut train = random(3, 2 * CHUNK + 300);
        let own = random(4, 300);
        for at in [0, CHUNK - 1, CHUNK - 40, 2 * CHUNK - 64, train.len() - 300] {
            let before = train[at..at + 300].to_vec();
            train[at..at + 300].copy_from_slice(&own);
            assert!(found(&train, &own).unwrap().contains("64 occur"), "{at}");
            train[at..at + 300].copy_from_slice(&before);
        }
    }
}
