//! Compares pairs by the steps, tokens or seconds they took to a target, which a run may never reach.

use super::counts::sign_test;
use super::verdict::Verdict;
use serde::{Deserialize, Serialize};

/// What both runs of a pair took to reach the target; blank for a run that ended without reaching it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimePair {
    /// The baseline's steps, tokens or seconds.
    pub baseline: Option<f64>,
    /// The candidate's steps, tokens or seconds.
    pub candidate: Option<f64>,
}

/// The test behind a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankTest {
    /// Every run reached the target, so the differences have signed ranks.
    SignedRank,
    /// Some runs did not, so only who of a pair was first counts.
    Sign,
}

/// A comparison of times to a target. Lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeComparison {
    /// Number of pairs.
    pub pairs: usize,
    /// Pairs in which the candidate was first.
    pub candidate_first: usize,
    /// Pairs in which the baseline was first.
    pub baseline_first: usize,
    /// Pairs with equal times, or in which neither reached the target.
    pub ties: usize,
    /// The test behind the verdict.
    pub test: RankTest,
    /// The exact two-sided p of the test.
    pub p: f64,
    /// Better, worse or inconclusive; ranks have no smallest difference that matters.
    pub verdict: Verdict,
}

/// Compares times to a target, pair by pair. `None` without pairs, or if a time is not finite.
///
/// If every run reached the target, the test is Wilcoxon's signed-rank test ("Individual Comparisons by
/// Ranking Methods", 1945). If a time is censored, its pair's difference has a known sign but an unknown
/// size, and so no rank among the others. Then it is the sign test on who was first (Dixon and Mood, "The
/// Statistical Sign Test", 1946); a run that never reached the target is later than any that did. Choosing
/// the test this way keeps the level: whether a pair has a censored time does not depend on which arm is
/// which, and both tests are exact given that. A tied pair counts for neither arm.
pub fn compare_times(pairs: &[TimePair], confidence: f64) -> Option<TimeComparison> {
    let valid = |time: Option<f64>| time.is_none_or(f64::is_finite);
    if pairs.is_empty() || !pairs.iter().all(|pair| valid(pair.baseline) && valid(pair.candidate)) {
        return None;
    }
    let or_infinity = |time: Option<f64>| time.unwrap_or(f64::INFINITY);
    let first = |wins: fn(f64, f64) -> bool| {
        pairs.iter().filter(|pair| wins(or_infinity(pair.candidate), or_infinity(pair.baseline))).count()
    };
    let (candidate_first, baseline_first) = (first(|a, b| a < b), first(|a, b| a > b));
    let differences: Option<Vec<f64>> =
        pairs.iter().map(|pair| Some(pair.candidate? - pair.baseline?)).collect();
    let (test, p, candidate_leads) = match differences {
        Some(differences) => {
            let ranks = SignedRanks::from_differences(&differences);
            (RankTest::SignedRank, ranks.p(), ranks.negative > ranks.positive)
        }
        None => {
            (RankTest::Sign, sign_test(candidate_first, baseline_first), candidate_first > baseline_first)
        }
    };
    let verdict = match (p <= 1.0 - confidence, candidate_leads) {
        (false, _) => Verdict::Inconclusive,
        (true, true) => Verdict::Better,
        (true, false) => Verdict::Worse,
    };
    let ties = pairs.len() - candidate_first - baseline_first;
    Some(TimeComparison { pairs: pairs.len(), candidate_first, baseline_first, ties, test, p, verdict })
}

/// Returns the exact two-sided p of Wilcoxon's signed-rank test for finite differences; 1 if all are 0.
///
/// Zeros are left out, and equal sizes share their mean rank. The distribution is over all signs of these
/// ranks (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 2014, section 3.1), so p is
/// exact even with ties.
#[cfg(test)]
fn signed_rank_test(differences: &[f64]) -> f64 {
    SignedRanks::from_differences(differences).p()
}

/// Ranks of the sizes of differences, doubled so that mean ranks of ties are whole numbers.
struct SignedRanks {
    doubled: Vec<usize>,
    /// Sum of the doubled ranks of positive differences.
    positive: usize,
    /// Sum of the doubled ranks of negative differences.
    negative: usize,
}

impl SignedRanks {
    fn from_differences(differences: &[f64]) -> Self {
        let mut sorted: Vec<f64> = differences.iter().copied().filter(|x| *x != 0.0).collect();
        sorted.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        let mut ranks = Self { doubled: Vec::with_capacity(sorted.len()), positive: 0, negative: 0 };
        for tied in sorted.chunk_by(|a, b| a.abs() == b.abs()) {
            let before = ranks.doubled.len();
            // Twice the mean of the ranks before + 1 to before + tied.
            let doubled = 2 * before + tied.len() + 1;
            for difference in tied {
                ranks.doubled.push(doubled);
                *(if *difference > 0.0 { &mut ranks.positive } else { &mut ranks.negative }) += doubled;
            }
        }
        ranks
    }

    /// Returns twice the probability of a sum at most as large as the smaller one, if every sign is equally
    /// likely.
    fn p(&self) -> f64 {
        let smaller = self.positive.min(self.negative);
        // The probability of each sum of doubled ranks up to `smaller`, adding one rank at a time.
        let mut probability = vec![0.0; smaller + 1];
        probability[0] = 1.0;
        for &rank in &self.doubled {
            for sum in (0..=smaller).rev() {
                let with = if sum >= rank { probability[sum - rank] } else { 0.0 };
                probability[sum] = 0.5 * (probability[sum] + with);
            }
        }
        (2.0 * probability.iter().sum::<f64>()).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Better, Inconclusive, Worse};

    /// SciPy 1.17: `wilcoxon(x, mode="exact")`.
    #[test]
    fn signed_ranks_have_the_published_p() {
        let first = [1.2, -0.3, 2.5, 3.1, 0.8, 1.1, -0.2, 0.9];
        assert!((signed_rank_test(&first) - 0.039_062_5).abs() < 1e-12);
        let second = [-1.1, 2.0, 3.0, 4.0, 5.0, -6.0, 7.0, 8.0, 9.0, 10.0];
        assert!((signed_rank_test(&second) - 0.037_109_375).abs() < 1e-12);
        assert_eq!(signed_rank_test(&[0.0, 0.0]), 1.0);
        assert_eq!(signed_rank_test(&[]), 1.0);
        assert!((signed_rank_test(&[1.0; 6]) - 2.0 / 64.0).abs() < 1e-12, "all ranks tied");
        assert!((signed_rank_test(&[0.0, 1.0, 2.0, 3.0]) - 0.25).abs() < 1e-12, "a zero is left out");
    }

    /// Over all signs of a sample with ties and zeros, p ≤ a at most as often as a says.
    #[test]
    fn p_is_exact_over_all_signs() {
        let sizes = [1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 5.0, 8.0, 8.0, 0.0];
        let p_for_signs = |signs: u32| -> f64 {
            let signed = sizes.iter().enumerate().map(|(k, x)| if signs >> k & 1 == 1 { *x } else { -x });
            signed_rank_test(&signed.collect::<Vec<_>>())
        };
        let all: Vec<f64> = (0..1 << sizes.len()).map(p_for_signs).collect();
        for level in [0.01, 0.05, 0.1, 0.3] {
            let share = all.iter().filter(|p| **p <= level).count() as f64 / all.len() as f64;
            assert!(share <= level && share > 0.3 * level, "{share} at {level}");
        }
    }

    fn pairs(times: &[(Option<f64>, Option<f64>)]) -> Vec<TimePair> {
        times.iter().map(|&(baseline, candidate)| TimePair { baseline, candidate }).collect()
    }

    #[test]
    fn signed_ranks_judge_where_all_reached_the_target() {
        let faster: Vec<_> = (0..8).map(|k| (Some(100.0 + f64::from(k)), Some(90.0))).collect();
        let found = compare_times(&pairs(&faster), 0.95).unwrap();
        assert_eq!((found.test, found.verdict), (RankTest::SignedRank, Better));
        assert_eq!((found.candidate_first, found.baseline_first, found.ties), (8, 0, 0));
        assert!((found.p - 2.0 / 256.0).abs() < 1e-12);
        let swapped: Vec<_> = faster.iter().map(|&(a, b)| (b, a)).collect();
        assert_eq!(compare_times(&pairs(&swapped), 0.95).unwrap().verdict, Worse);
        assert_eq!(compare_times(&pairs(&faster[..5]), 0.95).unwrap().verdict, Inconclusive);
    }

    #[test]
    fn never_is_later_than_any_time_and_both_never_is_a_tie() {
        let mut times = vec![(None, Some(9e9)); 6];
        let found = compare_times(&pairs(&times), 0.95).unwrap();
        assert_eq!((found.test, found.verdict, found.candidate_first), (RankTest::Sign, Better, 6));
        times.extend([(None, None), (Some(5.0), Some(5.0))]);
        let found = compare_times(&pairs(&times), 0.95).unwrap();
        assert_eq!((found.verdict, found.pairs, found.ties), (Better, 8, 2));
        times.push((Some(1.0), None));
        let found = compare_times(&pairs(&times), 0.95).unwrap();
        assert_eq!((found.verdict, found.baseline_first), (Inconclusive, 1));
        let never = compare_times(&pairs(&[(None, None); 20]), 0.95).unwrap();
        assert_eq!((never.verdict, never.p, never.ties), (Inconclusive, 1.0, 20));
    }

    #[test]
    fn what_is_not_a_time_is_not_compared() {
        assert_eq!(compare_times(&[], 0.95), None);
        assert_eq!(compare_times(&pairs(&[(Some(f64::NAN), Some(1.0))]), 0.95), None);
        assert_eq!(compare_times(&pairs(&[(Some(1.0), Some(f64::INFINITY))]), 0.95), None);
    }
}
