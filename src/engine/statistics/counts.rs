//! Exact tests of paired counts of diverged runs.

use super::verdict::Verdict;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

/// Pairs, counted by which of their runs diverged. A run diverges if its loss or gradient is not finite.
///
/// Repeating a diverged run gives the same bits, so it is a result and counts. A run that the machine ended
/// (memory, disk, a signal) is not counted, because its seed runs again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivergedPairs {
    /// Pairs in which only the baseline diverged.
    pub baseline_only: usize,
    /// Pairs in which only the candidate diverged.
    pub candidate_only: usize,
    /// Pairs in which both diverged.
    pub both: usize,
}

impl DivergedPairs {
    /// Counts pairs `(baseline diverged, candidate diverged)`.
    pub fn count(pairs: impl IntoIterator<Item = (bool, bool)>) -> Self {
        let mut counts = Self::default();
        for pair in pairs {
            match pair {
                (true, false) => counts.baseline_only += 1,
                (false, true) => counts.candidate_only += 1,
                (true, true) => counts.both += 1,
                (false, false) => {}
            }
        }
        counts
    }

    /// Returns the two-sided p of "both arms diverge equally often". Only pairs in which exactly one run
    /// diverged matter: this is the exact form of McNemar's test ("Note on the sampling error of the
    /// difference between correlated proportions or percentages", 1947), which is the sign test.
    pub fn p(&self) -> f64 {
        sign_test(self.baseline_only, self.candidate_only)
    }

    /// Returns the verdict on divergence alone: the arm that diverges less often is better, if the counts are
    /// significant at this confidence.
    pub fn verdict(&self, confidence: f64) -> Verdict {
        if self.p() > 1.0 - confidence {
            Verdict::Inconclusive
        } else if self.candidate_only < self.baseline_only {
            Verdict::Better
        } else {
            Verdict::Worse
        }
    }

    /// Limits a verdict that was made from the pairs in which neither run diverged.
    ///
    /// Those pairs leave out the failures of an arm, so an arm with a diverged run cannot win. If the
    /// candidate has one, better becomes inconclusive; if the baseline has one, worse does. No difference
    /// becomes inconclusive if exactly one run of any pair diverged.
    pub fn limit(&self, verdict: Verdict) -> Verdict {
        let baseline = self.baseline_only + self.both > 0;
        let candidate = self.candidate_only + self.both > 0;
        let discordant = self.baseline_only + self.candidate_only > 0;
        match verdict {
            Verdict::Better if candidate => Verdict::Inconclusive,
            Verdict::Worse if baseline => Verdict::Inconclusive,
            Verdict::NoDifference if discordant => Verdict::Inconclusive,
            other => other,
        }
    }
}

/// Returns the exact two-sided p of "both outcomes are equally likely" for the two counts: the probability of
/// a split at least as uneven. It is 1 if both counts are 0.
pub fn sign_test(one: usize, other: usize) -> f64 {
    let Ok(binomial) = Binomial::new(0.5, (one + other) as u64) else { return 1.0 };
    (2.0 * binomial.cdf(one.min(other) as u64)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Better, Inconclusive, NoDifference, SameBits, Worse};

    #[test]
    fn the_sign_test_counts_splits() {
        assert_eq!(sign_test(0, 0), 1.0);
        assert_eq!(sign_test(3, 3), 1.0);
        for (one, other, p) in [(0, 5, 2.0 / 32.0), (0, 6, 2.0 / 64.0), (1, 7, 18.0 / 256.0), (2, 3, 1.0)] {
            assert!((sign_test(one, other) - p).abs() < 1e-12, "{one} {other}");
            assert_eq!(sign_test(one, other), sign_test(other, one));
        }
        assert!((sign_test(40, 60) - 0.056_887_9).abs() < 1e-6, "R: binom.test(40, 100)");
    }

    #[test]
    fn pairs_are_counted_by_who_diverged() {
        let pairs = [(true, false), (false, true), (false, true), (true, true), (false, false)];
        let counts = DivergedPairs::count(pairs);
        assert_eq!(counts, DivergedPairs { baseline_only: 1, candidate_only: 2, both: 1 });
    }

    #[test]
    fn six_of_six_tell_and_five_do_not() {
        let counts = |baseline_only, candidate_only| DivergedPairs { baseline_only, candidate_only, both: 9 };
        assert_eq!(counts(0, 5).verdict(0.95), Inconclusive);
        assert_eq!(counts(0, 6).verdict(0.95), Worse);
        assert_eq!(counts(6, 0).verdict(0.95), Better);
        assert_eq!(counts(6, 0).verdict(0.99), Inconclusive);
        assert_eq!(counts(0, 0).verdict(0.95), Inconclusive);
    }

    #[test]
    fn a_side_that_diverged_is_not_better() {
        let limits = |baseline_only, candidate_only, both| {
            let counts = DivergedPairs { baseline_only, candidate_only, both };
            [Better, Worse, NoDifference, Inconclusive, SameBits].map(|verdict| counts.limit(verdict))
        };
        assert_eq!(limits(0, 0, 0), [Better, Worse, NoDifference, Inconclusive, SameBits]);
        assert_eq!(limits(0, 1, 0), [Inconclusive, Worse, Inconclusive, Inconclusive, SameBits]);
        assert_eq!(limits(1, 0, 0), [Better, Inconclusive, Inconclusive, Inconclusive, SameBits]);
        assert_eq!(limits(0, 0, 1), [Inconclusive, Inconclusive, NoDifference, Inconclusive, SameBits]);
    }
}
