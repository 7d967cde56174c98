//! Error rates of verdicts in simulated comparisons, from fixed seeds, by the functions that judge real ones.
//!
//!     XRUN_CAMPAIGN_S=1 cargo test --release --test campaign verdicts -- --nocapture
//!
//! prints every figure of the tables in `docs/verdicts.md`, of 10,000 comparisons each; without the variable,
//! tests have 400 comparisons of the first source and the first plan alone. Differences are normal, or drawn
//! from differences between real runs (`tests/compare/paired-differences.csv`, written by
//! `scripts/paired_differences.py`).

mod cells;
mod errors;
mod load;
mod power;
mod random;
mod records;
mod scores;
mod sequential;

use crate::runner::long;
use random::{Normals, Source};
use xrun::statistics::{Direction, PairedDifference, Verdict, paired_difference, verdict};

/// Comparisons of each kind in a long campaign, and in a small one.
const TRIALS: [usize; 2] = [10_000, 400];

const CONFIDENCE: f64 = 0.95;

/// Planned effects in units of the deviation, and the pairs that they take.
const PLANS: [(f64, usize); 2] = [(1.0, 13), (0.5, 44)];

/// Returns the number of comparisons of each kind.
fn trials() -> usize {
    if long().is_some() { TRIALS[0] } else { TRIALS[1] }
}

/// Returns how often an event of this probability is seen, plus three standard errors of a binomial count:
/// more is seen once in 700 times.
fn most(probability: f64) -> usize {
    let n = trials() as f64;
    (n * probability + 3.0 * (n * probability * (1.0 - probability)).sqrt()).ceil() as usize
}

/// Returns how often an event of this probability is seen, less three standard errors.
fn least(probability: f64) -> usize {
    trials() - most(1.0 - probability)
}

/// Everything in a long campaign, and what comes first in a small one.
fn some<T>(all: &[T]) -> &[T] {
    if long().is_some() { all } else { &all[..1] }
}

/// Counts the trials for which something holds.
fn count(mut trial: impl FnMut() -> bool) -> usize {
    (0..trials()).filter(|_| trial()).count()
}

/// The verdict of a comparison of fixed size.
fn fixed(differences: &[f64], min_effect: f64) -> Verdict {
    let PairedDifference { interval, .. } = paired_difference(differences, CONFIDENCE).unwrap();
    verdict(&interval, min_effect, Direction::HigherIsBetter)
}

fn is_different(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}
