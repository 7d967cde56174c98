//! Computes how many pairs it takes to see a difference, or to show that no difference matters.

use super::numeric::{normal_cdf, root};
use super::sample::variance;
use super::sequential::power::{ERROR, MANY_PATHS, PATHS, SequentialPower};
use super::sequential::{self, FIRST_LOOK, SequentialDesign};
use super::student::{mean_over_deviation, two_sided_quantile};
use crate::format::{decimal, plural, significant, thousands};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ChiSquared, ContinuousCDF};

/// Probability that the planned pairs reach the verdict they are planned for.
pub const POWER: f64 = 0.9;

/// Probability that the true deviation lies below the bound that plans use.
const UPPER_BOUND: f64 = 0.8;

/// Plans have at most this many pairs.
const MAX_PAIRS: usize = 100_000;

/// Longer sequential designs are planned by one of this many pairs: an effect of δ in n pairs is one of
/// δ √(n / 200) in 200.
const LONGEST_SIMULATED: usize = 200;

/// When a comparison is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Looks {
    /// Once, after its last pair.
    #[default]
    Once,
    /// After every pair, by a [`SequentialDesign`].
    EveryPair,
}

impl Looks {
    fn is_once(&self) -> bool {
        *self == Self::Once
    }
}

/// The standard deviation of paired differences, estimated from a sample of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deviation {
    /// The estimate, in the unit of the measure.
    pub estimate: f64,
    /// Degrees of freedom of the estimate: the number of differences less one, if all are of one kind.
    pub freedom: usize,
}

impl Deviation {
    /// Estimates the deviation from pilot differences. `None` for fewer than two, or if one is not finite.
    pub fn from_differences(differences: &[f64]) -> Option<Self> {
        let estimate = variance(differences).sqrt();
        estimate.is_finite().then(|| Self { estimate, freedom: differences.len() - 1 })
    }

    /// Returns a bound that the true deviation stays below with probability 0.8, for normal differences: s
    /// √(ν / χ²), where a χ² variable with ν degrees of freedom exceeds χ² with probability 0.8.
    ///
    /// A plan from the estimate itself has too few pairs about half of the time (Browne, "On the use of a
    /// pilot sample for sample size determination", 1995, who recommends such a bound).
    pub fn upper_bound(&self) -> f64 {
        let freedom = self.freedom as f64;
        let quantile = ChiSquared::new(freedom).map(|chi| chi.inverse_cdf(1.0 - UPPER_BOUND));
        quantile.map_or(f64::INFINITY, |quantile| self.estimate * (freedom / quantile).sqrt())
    }
}

/// Returns the degrees of freedom of `pairs` differences, the quantile of their interval and the
/// noncentrality, effect √n. `None` for fewer than two pairs.
fn noncentral(effect: f64, pairs: usize, confidence: f64) -> Option<(f64, f64, f64)> {
    let freedom = pairs.checked_sub(1).filter(|freedom| *freedom > 0)? as f64;
    Some((freedom, two_sided_quantile(freedom, confidence), effect.abs() * (pairs as f64).sqrt()))
}

/// Returns the probability that the interval of `pairs` differences excludes 0 on the side of the true
/// difference. `effect` is the true difference divided by the deviation. Returns 0 for fewer than two pairs.
///
/// It is P(T > t) for the noncentral t distribution with n - 1 degrees of freedom and noncentrality effect
/// √n, computed as the mean of Φ(effect √n - t s) over the distribution of s.
pub fn power_to_see(effect: f64, pairs: usize, confidence: f64) -> f64 {
    let Some((freedom, t, shift)) = noncentral(effect, pairs, confidence) else { return 0.0 };
    mean_over_deviation(freedom, f64::INFINITY, |s| normal_cdf(shift - t * s))
}

/// Returns the probability that the interval of `pairs` differences lies within ± `effect`, in units of the
/// deviation, if the true difference is 0. Returns 0 for fewer than two pairs.
///
/// Given s, the mean must lie within ± (effect - t s / √n). So this is the mean of 2 Φ(effect √n - t s) - 1
/// over those s for which that is positive (two one-sided tests, Schuirmann 1987; Phillips, "Power of the two
/// one-sided tests procedure in bioequivalence", 1990).
pub fn power_to_show_equivalence(effect: f64, pairs: usize, confidence: f64) -> f64 {
    let Some((freedom, t, shift)) = noncentral(effect, pairs, confidence) else { return 0.0 };
    mean_over_deviation(freedom, shift / t, |s| 2.0 * normal_cdf(shift - t * s) - 1.0)
}

/// Returns the smallest number of pairs that see `effect`, in units of the deviation, with probability
/// `power`. `None` if 100,000 pairs do not.
pub fn pairs_to_see(effect: f64, confidence: f64, power: f64) -> Option<usize> {
    smallest(|pairs| power_to_see(effect, pairs, confidence) >= power)
}

/// Returns the smallest number of pairs whose interval lies within ± `effect`, in units of the deviation,
/// with probability `power`, if the true difference is 0. `None` if 100,000 pairs do not suffice.
pub fn pairs_to_show_equivalence(effect: f64, confidence: f64, power: f64) -> Option<usize> {
    smallest(|pairs| power_to_show_equivalence(effect, pairs, confidence) >= power)
}

/// Returns the smallest true difference, in units of the deviation, that `pairs` see with probability
/// `power`. `None` for fewer than two pairs.
pub fn effect_seen(pairs: usize, confidence: f64, power: f64) -> Option<f64> {
    if pairs < 2 {
        return None;
    }
    let t = two_sided_quantile((pairs - 1) as f64, confidence);
    // Here the power is 1: even with 3 times the true deviation, the mean is 10 of its deviations beyond the
    // bound.
    let highest = (3.0 * t + 10.0) / (pairs as f64).sqrt();
    Some(root(0.0, highest, |effect| power_to_see(effect, pairs, confidence) - power))
}

/// Returns how often a sequential comparison of at most `pairs` pairs ends each way, by simulating its
/// decisions; `None` if there is no such design. Effects are in units of the deviation.
fn sequential_power(
    [effect, min_effect]: [f64; 2],
    pairs: usize,
    confidence: f64,
    paths: usize,
) -> Option<SequentialPower> {
    if pairs > sequential::MAX_PAIRS {
        return None;
    }
    let simulated = pairs.min(LONGEST_SIMULATED);
    let scale = (pairs as f64 / simulated as f64).sqrt();
    Some(SequentialDesign::new(simulated, confidence)?.power(effect * scale, min_effect * scale, paths))
}

/// Returns the smallest maximum of a sequential design that satisfies a condition on its power, from the
/// number of pairs that a single look takes on. `None` if 2000 pairs do not.
fn smallest_maximum(single_look: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    let mut low = single_look.max(FIRST_LOOK);
    if low > sequential::MAX_PAIRS || holds(low) {
        return Some(low).filter(|pairs| *pairs <= sequential::MAX_PAIRS);
    }
    let mut high = low;
    while !holds(high) {
        if high == sequential::MAX_PAIRS {
            return None;
        }
        (low, high) = (high, (high + high / 8 + 1).min(sequential::MAX_PAIRS));
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// Returns the smallest number of pairs, from 2 on, that satisfies a condition. The condition must also hold
/// for every larger number.
fn smallest(holds: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (1, 2);
    while !holds(high) {
        if high == MAX_PAIRS {
            return None;
        }
        (low, high) = (high, (2 * high).min(MAX_PAIRS));
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// How many pairs a comparison needs, and what a given number of pairs can see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerPlan {
    /// Confidence of the interval, two-sided.
    pub confidence: f64,
    /// When the pairs are judged; with a look after every pair, numbers of pairs are maximums.
    #[serde(default, skip_serializing_if = "Looks::is_once")]
    pub looks: Looks,
    /// Probability that the planned pairs reach their verdict.
    pub power: f64,
    /// The smallest difference that matters, in the unit of the measure.
    pub min_effect: f64,
    /// The estimated deviation of a paired difference.
    pub deviation: Deviation,
    /// The bound on the deviation that the plan uses.
    pub deviation_bound: f64,
    /// Pairs that see a true difference of `min_effect`; blank if that takes more than 100,000, or 2000 with
    /// a look after every pair.
    pub pairs_to_see: Option<usize>,
    /// Pairs that show no difference that matters if the true one is 0; blank if that takes more than
    /// 100,000, or 2000 with a look after every pair.
    pub pairs_to_show_equivalence: Option<usize>,
    /// What the given number of pairs can see; blank if no number was given.
    pub given: Option<GivenPairs>,
}

/// What a given number of pairs can see.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenPairs {
    /// Number of pairs.
    pub pairs: usize,
    /// The smallest true difference that the pairs see with the plan's power, in the unit of the measure.
    pub effect_seen: f64,
    /// Probability that the pairs see a true difference of `min_effect`.
    pub power_to_see: f64,
    /// Probability that the pairs show no difference that matters if the true one is 0.
    pub power_to_show_equivalence: f64,
}

impl GivenPairs {
    /// Computes what `pairs` can see. `effect` is the smallest one that matters over the deviation `bound`.
    fn new(pairs: usize, effect: f64, confidence: f64, bound: f64, looks: Looks) -> Option<Self> {
        let single = effect_seen(pairs, confidence, POWER)?;
        Some(match looks {
            Looks::Once => Self {
                pairs,
                effect_seen: bound * single,
                power_to_see: power_to_see(effect, pairs, confidence),
                power_to_show_equivalence: power_to_show_equivalence(effect, pairs, confidence),
            },
            Looks::EveryPair => {
                let power = |truth: f64| sequential_power([truth, effect], pairs, confidence, PATHS);
                let seen = |truth: f64| power(truth).map_or(0.0, |power| power.seen);
                // Twice what a single look sees has a power of almost 1, unless smaller differences do not
                // matter.
                let (mut low, mut high) = (0.0, (2.0 * single).max(2.0 * effect));
                for _ in 0..12 {
                    let middle = 0.5 * (low + high);
                    if seen(middle) >= POWER { high = middle } else { low = middle }
                }
                Self {
                    pairs,
                    effect_seen: bound * high,
                    power_to_see: power(effect)?.seen,
                    power_to_show_equivalence: power(0.0)?.no_difference,
                }
            }
        })
    }
}

impl PowerPlan {
    /// Plans with the upper bound of a deviation. `None` unless the deviation and `min_effect` are above 0,
    /// the deviation has degrees of freedom, the confidence lies in (0, 1), `pairs`, if given, is at least 2,
    /// and there is a design with these looks.
    pub fn new(
        deviation: Deviation,
        min_effect: f64,
        confidence: f64,
        pairs: Option<usize>,
        looks: Looks,
    ) -> Option<Self> {
        let bound = deviation.upper_bound();
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !(positive(bound) && positive(min_effect) && confidence > 0.0 && confidence < 1.0) {
            return None;
        }
        let effect = min_effect / bound;
        let given = match pairs {
            Some(pairs) => Some(GivenPairs::new(pairs, effect, confidence, bound, looks)?),
            None => None,
        };
        let single =
            [pairs_to_see(effect, confidence, POWER), pairs_to_show_equivalence(effect, confidence, POWER)];
        let [see, show] = match looks {
            Looks::Once => single,
            Looks::EveryPair => {
                let power = |truth: f64, pairs: usize| {
                    sequential_power([truth, effect], pairs, confidence, MANY_PATHS)
                };
                // A standard error more, so that the simulation's luck does not leave the power below.
                let enough = POWER + ERROR;
                let sees = |pairs: usize| power(effect, pairs).is_some_and(|power| power.seen >= enough);
                let shows =
                    |pairs: usize| power(0.0, pairs).is_some_and(|power| power.no_difference >= enough);
                [
                    single[0].and_then(|pairs| smallest_maximum(pairs, sees)),
                    single[1].and_then(|pairs| smallest_maximum(pairs, shows)),
                ]
            }
        };
        Some(Self {
            confidence,
            looks,
            power: POWER,
            min_effect,
            deviation,
            deviation_bound: bound,
            pairs_to_see: see,
            pairs_to_show_equivalence: show,
            given,
        })
    }

    /// Describes the plan, one line per fact, with `unit` after values of the measure.
    pub fn words(&self, unit: &str) -> Vec<String> {
        let value = |x: f64| format!("{} {unit}", significant(x)).trim_end().to_owned();
        let (at_most, largest) = match self.looks {
            Looks::Once => ("", MAX_PAIRS),
            Looks::EveryPair => ("at most ", sequential::MAX_PAIRS),
        };
        let count = |pairs: Option<usize>| match pairs {
            Some(pairs) => format!("{at_most}{} pairs", thousands(pairs)),
            None => format!("more than {} pairs", thousands(largest)),
        };
        let percent = |share: f64| format!("{} %", decimal(Some(100.0 * share), 0));
        let (power, freedom) = (percent(self.power), self.deviation.freedom);
        let mut lines = vec![
            format!(
                "deviation of a paired difference: {} from {freedom} degree{} of freedom, planned with its upper \
                 80 % bound, {}",
                value(self.deviation.estimate),
                plural(freedom),
                value(self.deviation_bound)
            ),
            format!(
                "to see a true difference of {} in {power} of cases: {}",
                value(self.min_effect),
                count(self.pairs_to_see)
            ),
            format!(
                "to show no difference that matters, where there is none, in {power} of cases: {}",
                count(self.pairs_to_show_equivalence)
            ),
        ];
        if let Some(given) = self.given {
            lines.push(format!(
                "{at_most}{} pairs see a true difference of {} in {power} of cases, one of {} in {}, and show none \
                 that matters in {}",
                thousands(given.pairs),
                value(given.effect_seen),
                value(self.min_effect),
                percent(given.power_to_see),
                percent(given.power_to_show_equivalence)
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests;
