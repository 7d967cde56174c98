//! Sequential comparisons: a look after every pair, a maximum fixed beforehand, and the error of one look.

mod boundary;

use super::interval::Interval;
use super::numeric::normal_cdf;
use super::sample::{mean, variance};
use super::verdict::{Direction, Verdict, verdict};
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};

/// Pairs at the first look. A t of fewer pairs trusts the normal distribution more than differences of runs
/// deserve, and could not cross the boundary anyway.
pub const FIRST_LOOK: usize = 4;

/// More pairs at most are refused: the boundary takes time in proportion, and no comparison has them.
const MOST_PAIRS: usize = 2000;

/// Exponent of the boundary: O'Brien and Fleming's. Lower ones stop earlier and find less of what the maximum
/// would find; `docs/verdicts.md` has the simulation by which it was chosen.
const EXPONENT: f64 = 0.5;

/// A comparison is futile where no verdict has this probability of being reached.
const FUTILE: f64 = 0.05;

/// The looks of a sequential comparison, and how far from 0 the mean must be at each.
///
/// After every pair from [`FIRST_LOOK`] on, the interval is mean ± b s / √n. The boundary b of |t| has
/// O'Brien and Fleming's shape, and a size by which the intervals of *all* looks contain the true mean of
/// normal differences with probability `confidence` (repeated confidence intervals: Jennison and Turnbull,
/// "Interim Analyses: The Repeated Confidence Interval Approach", 1989). So verdicts follow from these
/// intervals by the rule of every other comparison, and whatever the reason for stopping, the interval at the
/// stop is right.
#[derive(Clone, Debug, PartialEq)]
pub struct SequentialDesign {
    /// Boundary of |t| at each look, from that at [`FIRST_LOOK`] pairs to that at the maximum.
    boundary: Vec<f64>,
}

/// What a look decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SequentialDecision {
    /// Another pair.
    Continue,
    /// No more pairs.
    Stop(SequentialStop),
}

/// The conclusion of a sequential comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequentialStop {
    /// The verdict, by the rule of every comparison, from `interval`.
    pub verdict: Verdict,
    /// Why there are no more pairs.
    pub reason: StopReason,
    /// Pairs that it is from: the first of those given.
    pub pairs: usize,
    /// Standard deviation of their differences.
    pub deviation: f64,
    /// Their mean, and the interval adjusted for all looks. The mean at an early stop is on average further
    /// from 0 than the true one; the interval is not affected.
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
    /// Returns the design of at most `max_pairs` pairs. `None` unless they are between 4 and 2000 and the
    /// confidence is at least 0.8 and below 1.
    pub fn new(max_pairs: usize, confidence: f64) -> Option<Self> {
        // A boundary takes up to a second, and who follows a comparison asks for one again and again.
        static LAST: Mutex<Option<(usize, f64, SequentialDesign)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((pairs, of, design)) = &*last
            && (*pairs, *of) == (max_pairs, confidence)
        {
            return Some(design.clone());
        }
        let design = Self::with_exponent(max_pairs, confidence, EXPONENT)?;
        *last = Some((max_pairs, confidence, design.clone()));
        Some(design)
    }

    /// Returns the design with another shape of boundary, in the family of Wang and Tsiatis: exponent 0.5 is
    /// O'Brien and Fleming's, which [`SequentialDesign::new`] has, and 0 Pocock's. `None` as there.
    pub fn with_exponent(max_pairs: usize, confidence: f64, exponent: f64) -> Option<Self> {
        if !(FIRST_LOOK..=MOST_PAIRS).contains(&max_pairs) || !(0.8..1.0).contains(&confidence) {
            return None;
        }
        Some(Self::from_boundary(boundary::boundary(FIRST_LOOK, max_pairs, 1.0 - confidence, exponent)))
    }

    /// Returns the design that stops where |t| crosses this boundary: a value per look, from [`FIRST_LOOK`]
    /// pairs to the maximum.
    pub fn from_boundary(boundary: Vec<f64>) -> Self {
        Self { boundary }
    }

    /// Returns the largest number of pairs.
    pub fn max_pairs(&self) -> usize {
        FIRST_LOOK + self.boundary.len() - 1
    }

    /// Returns the boundary of |t| after `pairs` pairs; `None` where there is no look.
    pub fn boundary(&self, pairs: usize) -> Option<f64> {
        self.boundary.get(pairs.checked_sub(FIRST_LOOK)?).copied()
    }

    /// Returns the interval after the given differences, adjusted for all looks. `None` where there is no
    /// look, and for differences that are not finite.
    pub fn interval(&self, differences: &[f64]) -> Option<Interval> {
        Some(self.look(differences)?.interval)
    }

    /// Decides from the differences so far, in the order fixed beforehand (of the seeds, not of the ends of
    /// runs).
    ///
    /// All looks are gone through, and the first that stops decides: differences after it change nothing, so
    /// several pairs may come in at once. A difference that is not finite is not a difference: `Continue`
    /// until it is replaced.
    ///
    /// Futility (Lan, Simon and Halperin, "Stochastically curtailed tests in long-term clinical trials",
    /// 1982): stop where neither a true difference of ± `min_effect` would probably be seen at the last pair,
    /// nor a true difference of 0 be shown not to matter. It is not binding: who goes on all the same keeps
    /// the confidence.
    pub fn decide(&self, differences: &[f64], min_effect: f64, direction: Direction) -> SequentialDecision {
        for pairs in FIRST_LOOK..=differences.len().min(self.max_pairs()) {
            let Some(look) = self.look(&differences[..pairs]) else { continue };
            let Look { deviation, interval, boundary } = look;
            let verdict = verdict(&interval, min_effect, direction);
            let reason = match verdict {
                Verdict::Inconclusive if pairs == self.max_pairs() => StopReason::LastPair,
                Verdict::Inconclusive if self.is_futile(pairs, &look, min_effect) => StopReason::Futility,
                Verdict::Inconclusive => continue,
                _ => StopReason::Verdict,
            };
            return SequentialDecision::Stop(SequentialStop {
                verdict,
                reason,
                pairs,
                deviation,
                interval,
                boundary,
            });
        }
        SequentialDecision::Continue
    }

    /// Returns the figures of a look; `None` where there is none, or no finite interval.
    fn look(&self, differences: &[f64]) -> Option<Look> {
        let boundary = self.boundary(differences.len())?;
        let deviation = variance(differences).sqrt();
        let reach = boundary * deviation / (differences.len() as f64).sqrt();
        let interval = Interval::symmetric(mean(differences), reach);
        (interval.low.is_finite() && interval.high.is_finite()).then_some(Look {
            deviation,
            interval,
            boundary,
        })
    }

    /// Returns true if no verdict is likely at the last pair, for the deviation so far.
    fn is_futile(&self, pairs: usize, look: &Look, min_effect: f64) -> bool {
        let (seen, all) = (pairs as f64, self.max_pairs() as f64);
        let remaining = all - seen;
        // The mean of all pairs: its expectation for a true mean of `effect` in the remaining ones, its
        // deviation.
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
        difference(min_effect).max(difference(-min_effect)).max(equivalence) < FUTILE
    }
}

#[cfg(test)]
mod tests;
