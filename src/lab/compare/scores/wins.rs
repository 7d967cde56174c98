//! Counts items on which one of two models is right and the other is wrong.

use crate::statistics::sign_test;
use crate::task_evaluation::ItemRow;
use serde::Serialize;

/// The rule, as the text of a comparison states it.
pub(super) const RULE: &str = "an item is a win if the candidate's answer is right and the baseline's wrong, a loss the other way \
                               round, and else a tie; p is of the exact sign test on wins and losses, for items that share no passage";

/// Items by which of two models answers them better. Answers are right or wrong by the task's own rule: no
/// model judges them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WinCounts {
    /// Items that only the candidate has right.
    pub wins: usize,
    /// Items that both have right, or both wrong.
    pub ties: usize,
    /// Items that only the baseline has right.
    pub losses: usize,
    /// Two-sided p of "wins and losses are equally likely"; `None` if items share passages, since they are
    /// not independent then.
    pub p: Option<f64>,
}

impl WinCounts {
    /// Counts the items of the baseline and of the candidate, which are the same.
    pub fn of_items(baseline: &[ItemRow], candidate: &[ItemRow], share_passages: bool) -> Self {
        let right = |row: &ItemRow| row.adds.map_or(0.0, |[value, _]| value);
        let mut counts = Self { wins: 0, ties: 0, losses: 0, p: None };
        for (a, b) in baseline.iter().zip(candidate) {
            match right(b).total_cmp(&right(a)) {
                std::cmp::Ordering::Greater => counts.wins += 1,
                std::cmp::Ordering::Equal => counts.ties += 1,
                std::cmp::Ordering::Less => counts.losses += 1,
            }
        }
        counts.p = (!share_passages).then(|| sign_test(counts.wins, counts.losses));
        counts
    }
}
