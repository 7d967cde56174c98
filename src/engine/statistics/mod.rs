//! Statistics of verdicts on quality: pure functions of numbers.
//!
//! A *pair* is one run of each side under one seed, its *difference* candidate - baseline. What a verdict
//! means, with the formulas, their sources and simulated error rates, is told in `docs/verdicts.md`.

mod best;
mod counts;
mod interval;
mod numeric;
mod power;
mod ranks;
mod sample;
mod sequential;
mod student;
mod verdict;

pub use best::{CellComparison, CellEstimate, NotComparable, compare_cells};
pub use counts::{DivergedPairs, sign_test};
pub use interval::{Interval, PairedDifference, paired_difference};
pub use power::{
    Deviation, GivenPairs, POWER, PowerPlan, effect_seen, pairs_to_see, pairs_to_show_equivalence,
    power_to_see, power_to_show_equivalence,
};
pub use ranks::{RankTest, TimeComparison, TimePair, compare_times};
pub use sample::{mean, variance};
pub use sequential::{FIRST_LOOK, SequentialDecision, SequentialDesign, SequentialStop, StopReason};
pub use student::two_sided_quantile;
pub use verdict::{Direction, Verdict, bonferroni, no_worse, verdict};
