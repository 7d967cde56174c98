//! The share of a rank in scoring tasks: which items it scores, and its scores as bytes for the others.

use crate::scoring::{Scorer, Usage};
use crate::tasks::{Prepared, PreparedItem, Score};
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

/// Returns scores as bytes that keep every bit.
pub(super) fn encode(scores: &[Score], usage: Usage) -> Vec<u8> {
    let Usage { batches, rows, inputs, head_rows, scored } = usage;
    let usage: [usize; USAGE_NUMBERS] = [batches, rows, inputs, head_rows, scored];
    let mut bytes: Vec<u8> = usage.iter().flat_map(|&number| (number as u64).to_le_bytes()).collect();
    for score in scores {
        bytes.extend(score.log_prob.to_le_bytes());
        bytes.push(score.is_greedy.into());
    }
    bytes
}

/// Returns what [`encode`] made bytes of; `None` if they are others.
pub(super) fn decode(bytes: &[u8]) -> Option<(Vec<Score>, Usage)> {
    let (usage, scores) = bytes.split_at_checked(8 * USAGE_NUMBERS)?;
    let numbers =
        usage.chunks_exact(8).map(|number| usize::try_from(u64::from_le_bytes(number.try_into().ok()?)).ok());
    let numbers: Vec<usize> = numbers.collect::<Option<_>>()?;
    let &[batches, rows, inputs, head_rows, scored] = numbers.as_slice() else { return None };
    let score = |bytes: &[u8]| {
        let (log_prob, greedy) = bytes.split_first_chunk()?;
        Some(Score { log_prob: f64::from_le_bytes(*log_prob), is_greedy: greedy == [1] })
    };
    let (scores, rest) = scores.as_chunks::<SCORE_BYTES>();
    let scores = scores.iter().map(|bytes| score(bytes)).collect::<Option<_>>()?;
    rest.is_empty().then_some((scores, Usage { batches, rows, inputs, head_rows, scored }))
}

/// Joins the scores of all ranks' items, given in rank order, in the order of the task's requests. `None` if
/// they are not as many as the task has.
pub(super) fn joined(
    task: &Prepared,
    parts: impl Iterator<Item = Option<(Vec<Score>, Usage)>>,
) -> Option<(Vec<Score>, Usage)> {
    let mut usage = Usage::default();
    let mut ranks = Vec::new();
    for part in parts {
        let (scores, used) = part?;
        usage += used;
        ranks.push(scores.into_iter());
    }
    let world = ranks.len();
    let mut all = Vec::new();
    for (index, item) in task.items.iter().enumerate() {
        let scores = &mut ranks[index % world];
        for _ in &item.requests {
            all.push(scores.next()?);
        }
    }
    ranks.iter_mut().all(|left| left.next().is_none()).then_some((all, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_keep_every_bit_and_damaged_ones_are_noticed() {
        let scores =
            [-0.0, -1.5e-310, -700.25].map(|log_prob: f64| Score { log_prob, is_greedy: log_prob < -1.0 });
        let usage = Usage { batches: 1, rows: 2, inputs: 3, head_rows: 4, scored: 5 };
        let bytes = encode(&scores, usage);
        let (found, found_usage) = decode(&bytes).unwrap();
        let bits = |scores: &[Score]| -> Vec<_> {
            scores.iter().map(|score| (score.log_prob.to_bits(), score.is_greedy)).collect()
        };
        assert_eq!((bits(&found), found_usage), (bits(&scores), usage));
        assert!(decode(&bytes[..bytes.len() - 1]).is_none());
        assert!(decode(&bytes[..39]).is_none());
    }
}
