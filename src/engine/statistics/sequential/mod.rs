//! Sequential comparisons: a look after every pair, up to a fixed maximum, with the error of a single look.

mod boundary;
pub mod power;

use super::interval::Interval;
use super::numeric::normal_cdf;
use super::sample::{mean, variance};
use super::verdict::{Direction, Verdict, verdict};
use crate::lock::lock;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;

/// Pairs at the first look. With fewer pairs, t depends too much on the differences being normal, and it
/// could not cross the boundary anyway.
pub const FIRST_LOOK: usize = 4;

/// Larger maximums are rejected: the time to compute the boundary grows with them, and no comparison has that
/// many pairs.
pub const MAX_PAIRS: usize = 2000;

/// Exponent of the boundary, O'Brien and Fleming's. A lower exponent stops earlier but finds less of what the
/// full number of pairs would find; it was chosen by the simulation in `docs/verdicts.md`.
const EXPONENT: f64 = 0.5;

/// A comparison is futile if no verdict has at least this probability of being reached.
const FUTILITY_PROBABILITY: f64 = 0.05;

/// The looks of a sequential comparison, and how far from 0 the mean must be at each.
///
/// After every pair from [`FIRST_LOOK`] on, the interval is mean ± b s / √n. The boundary b of |t| has
/// O'Brien and Fleming's shape. Its size makes the intervals of *all* looks contain the true mean of normal
/// differences with probability `confidence` (repeated confidence intervals: Jennison and Turnbull, "Interim
/// Analyses: The Repeated Confidence Interval Approach", 1989). So these intervals give verdicts by the same
/// rule as in any other comparison, and the interval at the stop is right whatever the reason for stopping.
#[derive(Clone, Debug, PartialEq)]
pub struct SequentialDesign {
    /// Boundary of |t| at each look, from [`FIRST_LOOK`] pairs to the maximum.
    boundary: Vec<f64>,
}

/// What a look decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SequentialDecision {
    /// Run another pair.
    Continue,
    /// Run no more pairs.
    Stop(SequentialStop),
}

/// The conclusion of a sequential comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequentialStop {
    /// The verdict from `interval`, by the rule of every comparison.
    pub verdict: Verdict,
    /// Why there are no more pairs.
    pub reason: StopReason,
    /// Number of pairs that were used, the first of those given.
    pub pairs: usize,
    /// Standard deviation of the differences of these pairs.
    pub deviation: f64,
    /// The mean, and the interval adjusted for all looks. At an early stop the mean is, on average, too far
    /// from 0; the interval is not affected.
    pub interval: Interval,
    /// The interval is mean ± `boundary` · `deviation` / √`pairs`.
    pub boundary: f64,
}

/// Why a sequential comparison stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The interval gives a verdict.
    Verdict,
    /// No verdict is likely by the last pair.
    Futility,
    /// The maximum is reached.
    LastPair,
}

/// The figures of one look.
struct Look {
    deviation: f64,
    interval: Interval,
    boundary: f64,
}

impl SequentialDesign {
    /// Returns the design with at most `max_pairs` pairs. `None` unless `max_pairs` is from 4 to 2000 and the
    /// confidence at least 0.8 and below 1.
    pub fn new(max_pairs: usize, confidence: f64) -> Option<Self> {
        // Computing a boundary takes up to a second, and following a comparison needs the same one
        // repeatedly.
        static LAST: Mutex<Option<(usize, f64, SequentialDesign)>> = Mutex::new(None);
        let mut last = lock(&LAST);
        if let Some((pairs, of, design)) = &*last
            && (*pairs, *of) == (max_pairs, confidence)
        {
            return Some(design.clone());
        }
        let design = Self::with_exponent(max_pairs, confidence, EXPONENT)?;
        *last = Some((max_pairs, confidence, design.clone()));
        Some(design)
    }

    /// Returns the design with another boundary from Wang and Tsiatis's family. Exponent 0.5 is O'Brien and
    /// Fleming's, as in [`SequentialDesign::new`], and 0 is Pocock's. `None` under the same conditions as
    /// there.
    pub fn with_exponent(max_pairs: usize, confidence: f64, exponent: f64) -> Option<Self> {
        if !(FIRST_LOOK..=MAX_PAIRS).contains(&max_pairs) || !(0.8..1.0).contains(&confidence) {
            return None;
        }
        Some(Self::from_boundary(boundary::boundary(FIRST_LOOK, max_pairs, 1.0 - confidence, exponent)))
    }

    /// Returns the design that stops where |t| crosses this boundary, which has one value per look, from
    /// [`FIRST_LOOK`] pairs to the maximum.
    pub fn from_boundary(boundary: Vec<f64>) -> Self {
        Self { boundary }
    }

    /// Returns the largest number of pairs.
    pub fn max_pairs(&self) -> usize {
        FIRST_LOOK + self.boundary.len() - 1
    }

    /// Returns the boundary of |t| after `pairs` pairs; `None` if there is no look.
    pub fn boundary(&self, pairs: usize) -> Option<f64> {
        self.boundary.get(pairs.checked_sub(FIRST_LOOK)?).copied()
    }

    /// Returns the interval after the given differences, adjusted for all looks. `None` if there is no look,
    /// or if a difference is not finite.
    pub fn interval(&self, differences: &[f64]) -> Option<Interval> {
        Some(self.look(differences)?.interval)
    }

    /// Decides from the differences so far, which must be in the order fixed beforehand (by seed, not by
    /// which run ended first).
    ///
    /// Goes through all looks; the first that stops decides. Later differences change nothing, so several
    /// pairs may come in at once. A look that includes a difference that is not finite decides nothing, so
    /// the result is `Continue` until that value is replaced.
    ///
    /// Futility (Lan, Simon and Halperin, "Stochastically curtailed tests in long-term clinical trials",
    /// 1982): stop if neither a true difference of ± `min_effect` would probably be seen at the last pair,
    /// nor a true difference of 0 shown not to matter. Futility is not binding; going on regardless keeps the
    /// confidence.
    pub fn decide(&self, differences: &[f64], min_effect: f64, direction: Direction) -> SequentialDecision {
        for pairs in FIRST_LOOK..=differences.len().min(self.max_pairs()) {
            let Some(look) = self.look(&differences[..pairs]) else { continue };
            if let Some(stop) = self.stop(pairs, &look, min_effect, direction) {
                return SequentialDecision::Stop(stop);
            }
        }
        SequentialDecision::Continue
    }

    /// Returns the stop at a look; `None` if another pair runs.
    fn stop(
        &self,
        pairs: usize,
        look: &Look,
        min_effect: f64,
        direction: Direction,
    ) -> Option<SequentialStop> {
        let &Look { deviation, interval, boundary } = look;
        let verdict = verdict(&interval, min_effect, direction);
        let reason = match verdict {
            Verdict::Inconclusive if pairs == self.max_pairs() => StopReason::LastPair,
            Verdict::Inconclusive if self.is_futile(pairs, look, min_effect) => StopReason::Futility,
            Verdict::Inconclusive => return None,
            _ => StopReason::Verdict,
        };
        Some(SequentialStop { verdict, reason, pairs, deviation, interval, boundary })
    }

    /// Computes the figures of a look; `None` if there is no look or no finite interval.
    fn look(&self, differences: &[f64]) -> Option<Look> {
        self.look_at(differences.len(), mean(differences), variance(differences).sqrt())
    }

    /// Computes the figures of a look from the mean and the deviation of its pairs.
    fn look_at(&self, pairs: usize, mean: f64, deviation: f64) -> Option<Look> {
        let boundary = self.boundary(pairs)?;
        let reach = boundary * deviation / (pairs as f64).sqrt();
        let interval = Interval::symmetric(mean, reach);
        (interval.low.is_finite() && interval.high.is_finite()).then_some(Look {
            deviation,
            interval,
            boundary,
        })
    }

    /// Returns true if no verdict is likely at the last pair, given the deviation so far.
    fn is_futile(&self, pairs: usize, look: &Look, min_effect: f64) -> bool {
        let (seen, all) = (pairs as f64, self.max_pairs() as f64);
        let remaining = all - seen;
        // The mean over all pairs: its expectation if the remaining pairs have a true mean of `effect`, and
        // its deviation.
        let expected = |effect: f64| (seen * look.interval.estimate + remaining * effect) / all;
        let spread = look.deviation * remaining.sqrt() / all;
        let within = |effect: f64, bound: f64| {
            let below = |x: f64| normal_cdf((x - expected(effect)) / spread);
            if bound > 0.0 { below(bound) - below(-bound) } else { 0.0 }
        };
        let last = self.boundary.last().copied().unwrap_or(f64::INFINITY);
        let reach = last * look.deviation / all.sqrt();
        let difference = |effect: f64| 1.0 - within(effect, reach);
        let equivalence = within(0.0, min_effect - reach);
        difference(min_effect).max(difference(-min_effect)).max(equivalence) < FUTILITY_PROBABILITY
    }
}

#[cfg(test)]
mod tests;
