//! `confirmation.json` in a sweep's folder: its best and second-best configurations, run again with seeds
//! that no cell used.

use super::configurations::{Settings, settings_in_words};
use crate::statistics::{Direction, PairedDifference, Verdict};
use serde::{Deserialize, Serialize};

/// The file's name.
pub const CONFIRMATION: &str = "confirmation.json";

/// Two configurations, run with fresh seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    /// The measure's name.
    pub measure: String,
    /// The measure's unit.
    pub unit: String,
    /// Which values of the measure are better.
    pub direction: Direction,
    /// Probability with which the interval holds.
    pub confidence: f64,
    /// Settings of the best and the second-best configuration, judged by the sweep's cells.
    pub configurations: [Settings; 2],
    pub seeds: Vec<u64>,
    /// The measure for each configuration and seed; `None` if that run did not train to the end.
    pub values: [Vec<Option<f64>>; 2],
    /// Number of diverged runs for each configuration.
    pub diverged: [usize; 2],
    /// The first minus the second, paired by seed; `None` with fewer than two pairs or with an incomplete
    /// one.
    pub difference: Option<PairedDifference>,
    /// What the interval says about the first configuration.
    pub verdict: Option<Verdict>,
}

impl Confirmation {
    /// Describes the result in a sentence, naming configurations by the values of `keys`.
    pub fn in_words(&self, keys: &[String], decimals: usize) -> String {
        let [best, second] = self.configurations.each_ref().map(|one| settings_in_words(one, keys));
        let seeds = self.seeds.len();
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        match (&self.difference, self.diverged) {
            (Some(difference), _) => {
                let interval = difference.interval;
                let judged = match self.verdict {
                    Some(Verdict::Better) => "confirmed",
                    Some(Verdict::Worse) => "refuted",
                    _ => "not confirmed",
                };
                format!(
                    "{judged} with {seeds} fresh seeds: {}, ({best}) minus ({second}), is {:+.*}{unit}, \
                     {} % interval {:+.*} to {:+.*}, p {:.3}",
                    self.measure,
                    decimals,
                    difference.mean,
                    100.0 * self.confidence,
                    decimals,
                    interval.low,
                    decimals,
                    interval.high,
                    difference.p
                )
            }
            (None, [0, 0]) if seeds < 2 => {
                format!("({best}) and ({second}) ran with one fresh seed, which has no interval")
            }
            (None, [ours, theirs]) => format!(
                "not confirmed: of {seeds} fresh seeds, {ours} diverged of ({best}) and {theirs} of ({second})"
            ),
        }
    }
}
