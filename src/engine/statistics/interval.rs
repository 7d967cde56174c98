//! The mean of paired differences and its interval.

use super::sample::{mean, variance};
use super::student::{two_sided_quantile, upper_tail};
use serde::{Deserialize, Serialize};

/// An estimate and its interval, in the unit of the measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Returns `estimate` ± `reach`.
    pub fn symmetric(estimate: f64, reach: f64) -> Self {
        Self { estimate, low: estimate - reach, high: estimate + reach }
    }

    /// Returns true if the interval lies within ± `reach`, including the ends.
    pub fn is_within(&self, reach: f64) -> bool {
        self.low >= -reach && self.high <= reach
    }

    /// Returns true if 0 lies outside the interval.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// The mean of paired differences with Student's interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Number of pairs.
    pub pairs: usize,
    /// Mean difference, candidate - baseline.
    pub mean: f64,
    /// Standard deviation of the differences, with `pairs - 1` degrees of freedom.
    pub deviation: f64,
    /// The mean and its interval.
    pub interval: Interval,
    /// Two-sided p of "the true mean is 0".
    pub p: f64,
}

/// Returns the mean of differences and its two-sided interval, which contains the true mean with probability
/// `confidence`. `None` for fewer than two differences, a difference that is not finite, or a confidence
/// outside (0, 1).
///
/// The interval is mean ± t s / √n, where t is the quantile with n - 1 degrees of freedom and s the deviation
/// (Student, "The Probable Error of a Mean", 1908). If all differences are equal, both ends are that value.
pub fn paired_difference(differences: &[f64], confidence: f64) -> Option<PairedDifference> {
    let pairs = differences.len();
    if pairs < 2 || !differences.iter().all(|x| x.is_finite()) || !(confidence > 0.0 && confidence < 1.0) {
        return None;
    }
    let (mean, deviation) = (mean(differences), variance(differences).sqrt());
    let freedom = (pairs - 1) as f64;
    let error = deviation / (pairs as f64).sqrt();
    let interval = Interval::symmetric(mean, two_sided_quantile(freedom, confidence) * error);
    let p = p_of_difference(mean, error, pairs);
    // Differences around 1e300 have no finite deviation.
    (deviation.is_finite() && interval.low.is_finite()).then_some(PairedDifference {
        pairs,
        mean,
        deviation,
        interval,
        p,
    })
}

/// Returns the two-sided p of "the true mean is 0" by Student's distribution, from a mean and its standard
/// error over `pairs` independent differences.
pub fn p_of_difference(mean: f64, error: f64, pairs: usize) -> f64 {
    match (mean == 0.0, error == 0.0) {
        (true, _) => 1.0,
        (false, true) => 0.0,
        (false, false) => 2.0 * upper_tail((mean / error).abs(), pairs.saturating_sub(1) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hours of sleep that ten patients gained with the second soporific over the first, from Student 1908: t
    /// = 4.062, p = 0.002833, interval 0.70 to 2.46.
    #[test]
    fn students_own_example_comes_out() {
        let sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
        let found = paired_difference(&sleep, 0.95).unwrap();
        assert_eq!(found.pairs, 10);
        assert!((found.mean - 1.58).abs() < 1e-12 && (found.deviation - 1.229_995_5).abs() < 1e-6);
        assert!((found.p - 0.002_832_89).abs() < 1e-7, "{}", found.p);
        assert!(
            (found.interval.low - 0.700_114).abs() < 1e-5 && (found.interval.high - 2.459_886).abs() < 1e-5
        );
        let wider = paired_difference(&sleep, 0.99).unwrap();
        assert!(wider.interval.low < found.interval.low && wider.p == found.p);
        // p is below 1 - confidence exactly if the interval excludes 0.
        assert!(paired_difference(&sleep, 1.0 - 0.0029).unwrap().interval.excludes_zero());
        assert!(!paired_difference(&sleep, 1.0 - 0.0028).unwrap().interval.excludes_zero());
    }

    #[test]
    fn equal_differences_have_their_value_for_an_interval() {
        let none = paired_difference(&[0.0; 8], 0.95).unwrap();
        assert_eq!((none.interval, none.p), (Interval::symmetric(0.0, 0.0), 1.0));
        let some = paired_difference(&[0.5; 4], 0.95).unwrap();
        assert_eq!((some.interval.low, some.interval.high, some.p), (0.5, 0.5, 0.0));
    }

    #[test]
    fn what_has_no_interval_has_none() {
        assert_eq!(paired_difference(&[], 0.95), None);
        assert_eq!(paired_difference(&[1.0], 0.95), None);
        assert_eq!(paired_difference(&[1.0, f64::NAN, 2.0], 0.95), None);
        assert_eq!(paired_difference(&[1.0, f64::INFINITY], 0.95), None);
        assert_eq!(paired_difference(&[1e300, -1e300], 0.95), None);
        for confidence in [0.0, 1.0, f64::NAN, -1.0] {
            assert_eq!(paired_difference(&[1.0, 2.0], confidence), None, "{confidence}");
        }
    }
}
