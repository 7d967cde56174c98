//! `confirmation.json` in the folder of a sweep: its best configuration and the second best, run again with
//! seeds that no cell had.

use super::configurations::Settings;
use crate::statistics::{Direction, PairedDifference, Verdict};
use serde::{Deserialize, Serialize};

/// The file's name.
pub const CONFIRMATION: &str = "confirmation.json";

/// Two configurations, run with fresh seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    /// The measure's name.
    pub measure: String,
    /// Its unit.
    pub unit: String,
    /// Which of its values are the better ones.
    pub direction: Direction,
    /// Probability with which the interval holds.
    pub confidence: f64,
    /// Settings of the best configuration and of the second best, by the cells of the sweep.
    pub configurations: [Settings; 2],
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The measure of both, by seed; blank for one that did not train to the end.
    pub values: [Vec<Option<f64>>; 2],
    /// Number of cells of both that diverged.
    pub diverged: [usize; 2],
    /// The first minus the second, paired by seed; blank with fewer than two pairs, or with one that is not
    /// complete.
    pub difference: Option<PairedDifference>,
    /// What the interval says of the first.
    pub verdict: Option<Verdict>,
}

impl Confirmation {
    /// Returns the result as a sentence; `keys` name the configurations.
    pub fn in_words(&self, keys: &[String], decimals: usize) -> String {
        let name = |settings: &Settings| {
            let shown: Vec<String> =
                keys.iter().filter_map(|key| Some(format!("{key}={}", settings.get(key)?))).collect();
            shown.join(" ")
        };
        let [best, second] = [0, 1].map(|side| name(&self.configurations[side]));
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
                    "{judged} with {seeds} fresh seeds: {} of ({best}) minus that of ({second}) is {:+.*}{unit}, \
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
