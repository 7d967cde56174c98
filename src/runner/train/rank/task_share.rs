//! The share of a rank in scoring tasks: which items it scores, and its answers as bytes for the others.

use crate::scoring::{Scorer, Usage};
use crate::tasks::{Answer, Prepared, PreparedItem, Score};
use std::sync::Arc;

/// The tasks of a run, and what scores them.
#[derive(Debug)]
pub(super) struct Scoring {
    pub tasks: Arc<Vec<Prepared>>,
    pub scorer: Scorer,
}

/// Returns the items of a task that a rank scores.
pub(super) fn share_of_items(
    task: &Prepared,
    rank: usize,
    world: usize,
) -> impl Iterator<Item = &PreparedItem> {
    task.items.iter().skip(rank).step_by(world)
}

/// Bytes of a score: its log-probability, and whether it is greedy.
const SCORE_BYTES: usize = 9;

/// Numbers in [`Usage`].
const USAGE_NUMBERS: usize = 5;

/// The first byte of an answer: what kind it is.
const SCORES: u8 = 0;
const TEXT: u8 = 1;

/// Returns answers as bytes that keep every bit.
pub(super) fn encode(answers: &[Answer], usage: Usage) -> Vec<u8> {
    let Usage { batches, rows, inputs, head_rows, scored } = usage;
    let usage: [usize; USAGE_NUMBERS] = [batches, rows, inputs, head_rows, scored];
    let mut bytes: Vec<u8> = usage.iter().flat_map(|&number| (number as u64).to_le_bytes()).collect();
    let begin = |bytes: &mut Vec<u8>, kind: u8, length: usize| {
        bytes.push(kind);
        bytes.extend((length as u64).to_le_bytes());
    };
    for answer in answers {
        match answer {
            Answer::Scores(scores) => {
                begin(&mut bytes, SCORES, scores.len());
                for score in scores {
                    bytes.extend(score.log_prob.to_le_bytes());
                    bytes.push(score.is_greedy.into());
                }
            }
            Answer::Text(text) => {
                begin(&mut bytes, TEXT, text.len());
                bytes.extend(text.as_bytes());
            }
        }
    }
    bytes
}

/// Returns what [`encode`] made bytes of; `None` if they are others.
pub(super) fn decode(mut bytes: &[u8]) -> Option<(Vec<Answer>, Usage)> {
    let mut usage = [0; USAGE_NUMBERS];
    for number in &mut usage {
        *number = take_number(&mut bytes)?;
    }
    let [batches, rows, inputs, head_rows, scored] = usage;
    let mut answers = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        let length = take_number(&mut bytes)?;
        answers.push(match kind {
            SCORES => {
                let (scores, rest) = bytes.split_at_checked(length.checked_mul(SCORE_BYTES)?)?;
                bytes = rest;
                let scores = scores.as_chunks::<SCORE_BYTES>().0.iter().map(score);
                Answer::Scores(scores.collect::<Option<_>>()?)
            }
            TEXT => {
                let (text, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Answer::Text(String::from_utf8(text.to_vec()).ok()?)
            }
            _ => return None,
        });
    }
    Some((answers, Usage { batches, rows, inputs, head_rows, scored }))
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    usize::try_from(u64::from_le_bytes(*number)).ok()
}

fn score(bytes: &[u8; SCORE_BYTES]) -> Option<Score> {
    let (log_prob, greedy) = bytes.split_first_chunk()?;
    Some(Score { log_prob: f64::from_le_bytes(*log_prob), is_greedy: greedy == [1] })
}

/// Joins the answers of all ranks, given in rank order, in the order of the task's items. `None` if they are
/// not as many as the task has.
pub(super) fn joined(
    task: &Prepared,
    parts: impl Iterator<Item = Option<(Vec<Answer>, Usage)>>,
) -> Option<(Vec<Answer>, Usage)> {
    let mut usage = Usage::default();
    let mut ranks = Vec::new();
    for part in parts {
        let (answers, used) = part?;
        usage += used;
        ranks.push(answers.into_iter());
    }
    let world = ranks.len();
    let all = (0..task.items.len()).map(|item| ranks.get_mut(item % world.max(1))?.next());
    let all: Vec<Answer> = all.collect::<Option<_>>()?;
    ranks.iter_mut().all(|left| left.next().is_none()).then_some((all, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_keep_every_bit_and_damaged_ones_are_noticed() {
        let scores =
            [-0.0, -1.5e-310, -700.25].map(|log_prob: f64| Score { log_prob, is_greedy: log_prob < -1.0 });
        let answers =
            [Answer::Scores(scores.to_vec()), Answer::Text("né\n".to_owned()), Answer::Scores(Vec::new())];
        let usage = Usage { batches: 1, rows: 2, inputs: 3, head_rows: 4, scored: 5 };
        let bytes = encode(&answers, usage);
        let (found, found_usage) = decode(&bytes).unwrap();
        assert_eq!((&found[..], found_usage), (&answers[..], usage));
        assert_eq!(found[0].scores()[0].log_prob.to_bits(), (-0.0f64).to_bits());
        for (place, len) in [(39, 0), (bytes.len() - 1, 0), (bytes.len(), 1)] {
            let damaged = [&bytes[..place], &vec![0; len]].concat();
            assert!(decode(&damaged).is_none(), "{place} {len}");
        }
        let mut not_utf8 = bytes.clone();
        let text = bytes.len() - 9 - 3;
        not_utf8[text] = 0xff;
        assert!(decode(&not_utf8).is_none());
    }
}
