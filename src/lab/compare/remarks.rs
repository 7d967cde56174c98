//! Remarks on what the verdicts of pairs cannot tell.

use crate::format::{decimal, plural};
use crate::results::experiment::Experiment;
use crate::statistics::{Verdict, unseen_rate};

/// Adds the remarks on a finished comparison of pairs.
pub fn add(experiment: &mut Experiment) {
    let decided = experiment.findings.iter().filter(|finding| {
        matches!(finding.verdict, Verdict::NoDifference | Verdict::Better | Verdict::Worse)
    });
    let fewest = decided.map(|finding| finding.pairs).min();
    experiment.notes.extend(fewest.map(unseen));
}

/// Describes the events that this many pairs may not show: a divergence, or a loss far from the others, of
/// few seeds.
pub fn unseen(pairs: usize) -> String {
    format!(
        "{pairs} pair{} say nothing about rare events: one that strikes {} % of seeds strikes none of these in 1 \
         of 20 cases",
        plural(pairs),
        decimal(Some(100.0 * unseen_rate(pairs, 0.95)), 0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_few_pairs_cannot_show_is_said_in_numbers() {
        assert!(
            unseen(8).starts_with("8 pairs say nothing about rare events: one that strikes 31 % of seeds")
        );
        assert!(unseen(44).contains("7 % of seeds"), "{}", unseen(44));
    }
}
