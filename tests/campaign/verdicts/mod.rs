//! Error rates of verdicts in simulated comparisons: 400 trials each, from fixed seeds.
//!
//!     XRUN_CAMPAIGN_S=1 cargo test --release --test campaign verdicts -- --nocapture
//!
//! prints every figure of the tables in `docs/verdicts.md`; without the variable, tests have the first source
//! and the first plan alone. Differences are normal, or drawn from differences between real runs
//! (`tests/compare/paired-differences.csv`, written by `scripts/paired_differences.py`).

mod cells;
mod errors;
mod power;
mod random;
mod sequential;

use crate::runner::long;
use random::{Normals, Source};
use xrun::statistics::{Direction, PairedDifference, Verdict, paired_difference, verdict};

/// Comparisons of each kind.
const TRIALS: usize = 400;

/// Of 400 trials of an event of probability 0.05, more than 30 are seen once in 80 times.
const MOST_WRONG: usize = 30;

/// Of 400 trials of an event of probability 0.9, less than 347 are seen once in 70 times.
const LEAST_FOUND: usize = 347;

const CONFIDENCE: f64 = 0.95;

/// Planned effects in units of the deviation, and the pairs that they take.
const PLANS: [(f64, usize); 2] = [(1.0, 13), (0.5, 44)];

/// Everything in a long campaign, and what comes first in a small one.
fn some<T>(all: &[T]) -> &[T] {
    if long().is_some() { all } else { &all[..1] }
}

/// Counts the trials for which something holds.
fn count(mut trial: impl FnMut() -> bool) -> usize {
    (0..TRIALS).filter(|_| trial()).count()
}

/// The verdict of a comparison of fixed size.
fn fixed(differences: &[f64], min_effect: f64) -> Verdict {
    let PairedDifference { interval, .. } = paired_difference(differences, CONFIDENCE).unwrap();
    verdict(&interval, min_effect, Direction::HigherIsBetter)
}

fn is_different(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}
