//! Statistics of verdicts on quality, as pure functions of numbers.
//!
//! A *pair* is one run of each arm with the same seed; its *difference* is candidate - baseline. For the
//! meaning of verdicts, the formulas with their sources, and simulated error rates, see `docs/verdicts.md`.

mod best;
mod clusters;
mod counts;
mod crossed;
mod interval;
mod numeric;
mod power;
mod ranks;
mod sample;
mod sequential;
mod student;
mod unseen;
mod verdict;
mod visible;

pub use best::{CellComparison, CellEstimate, Chosen, NotComparable, compare_cells};
pub use clusters::{clustered_error, clustered_interval, deviations};
pub use counts::{DivergedPairs, sign_test};
pub use crossed::{
    CrossedDifference, ErrorParts, ModelFigure, Pairing, TaskItems, VariancePart, crossed_difference,
};
pub use interval::{Interval, PairedDifference, p_of_difference, paired_difference};
pub use power::{
    Deviation, GivenPairs, Looks, POWER, PowerPlan, effect_seen, pairs_to_see, pairs_to_show_equivalence,
    power_to_see, power_to_show_equivalence,
};
pub use ranks::{RankTest, TimeComparison, TimePair, compare_times, smallest_rank_p};
pub use sample::{mean, variance};
pub use sequential::{FIRST_LOOK, SequentialDecision, SequentialDesign, SequentialStop, StopReason};
pub use student::two_sided_quantile;
pub use unseen::unseen_rate;
pub use verdict::{Direction, Verdict, bonferroni, no_worse, verdict};
pub use visible::{PlannedScores, PlannedSeeds, USUAL_CORRELATION, VISIBLE_POWER};
