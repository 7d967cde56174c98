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
    /// The smaller budget of the two runs, in the same unit; infinite if neither is known.
    pub budget: f64,
}

impl TimePair {
    /// Returns both times, the baseline's first, with those beyond the smaller budget left out.
    ///
    /// A run with a larger budget has more time to reach the target, so a later time of it is not used: the
    /// other run might have reached the target by then, had it gone on.
    fn within_budget(&self) -> [Option<f64>; 2] {
        [self.baseline, self.candidate].map(|time| time.filter(|time| *time <= self.budget))
    }

    /// Returns true if a time was left out, or a run never reached the target.
    pub fn is_censored(&self) -> bool {
        self.within_budget().contains(&None)
    }
}

/// The test behind a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankTest {
    /// Every run reached the target within the smaller budget, so the differences have signed ranks.
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
    /// Pairs with equal times, or in which neither reached the target within the smaller budget.
    pub ties: usize,
    /// Times that were not used because they lie beyond the smaller budget of their pair.
    pub beyond_budget: usize,
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
/// Statistical Sign Test", 1946); a run that never reached the target is later than any that did.
///
/// Both times of a pair are censored at the smaller budget, so a run that never reached the target ties with
/// a time beyond it. Choosing the test this way keeps the level: whether a pair has a censored time does not
/// depend on which arm is which, and both tests are exact given that. A tied pair counts for neither arm.
pub fn compare_times(pairs: &[TimePair], confidence: f64) -> Option<TimeComparison> {
    let valid = |time: Option<f64>| time.is_none_or(f64::is_finite);
    let is_valid = |pair: &TimePair| valid(pair.baseline) && valid(pair.candidate) && !pair.budget.is_nan();
    if pairs.is_empty() || !pairs.iter().all(is_valid) {
        return None;
    }
    let times: Vec<[Option<f64>; 2]> = pairs.iter().map(TimePair::within_budget).collect();
    let first = |wins: fn(f64, f64) -> bool| {
        let or_infinity = |time: Option<f64>| time.unwrap_or(f64::INFINITY);
        times
            .iter()
            .filter(|[baseline, candidate]| wins(or_infinity(*candidate), or_infinity(*baseline)))
            .count()
    };
    let (candidate_first, baseline_first) = (first(|a, b| a < b), first(|a, b| a > b));
    let known = |pair: &TimePair| [pair.baseline, pair.candidate].into_iter().flatten().count();
    let beyond_budget = pairs.iter().map(known).sum::<usize>() - times.iter().flatten().flatten().count();
    let differences: Option<Vec<f64>> =
        times.iter().map(|[baseline, candidate]| Some((*candidate)? - (*baseline)?)).collect();
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
    Some(TimeComparison {
        pairs: pairs.len(),
        candidate_first,
        baseline_first,
        ties,
        beyond_budget,
        test,
        p,
        verdict,
    })
}

/// Returns the smallest p that either test can give for this many pairs: that of all pairs in one order.
pub fn smallest_rank_p(pairs: usize) -> f64 {
    sign_test(0, pairs)
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
        pairs_within(f64::INFINITY, times)
    }

    fn pairs_within(budget: f64, times: &[(Option<f64>, Option<f64>)]) -> Vec<TimePair> {
        times.iter().map(|&(baseline, candidate)| TimePair { baseline, candidate, budget }).collect()
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

    /// Of two arms alike, the one with the larger budget reaches more targets. That makes it no better.
    #[test]
    fn a_time_beyond_the_smaller_budget_ties_with_a_run_that_never_got_there() {
        let later = vec![(None, Some(200.0)); 8];
        assert_eq!(compare_times(&pairs(&later), 0.95).unwrap().verdict, Better, "without budgets");
        let found = compare_times(&pairs_within(60.0, &later), 0.95).unwrap();
        assert_eq!((found.verdict, found.ties, found.beyond_budget), (Inconclusive, 8, 8));
        // The other way round too, and a time at the budget itself counts.
        let swapped: Vec<_> = later.iter().map(|&(a, b)| (b, a)).collect();
        assert_eq!(compare_times(&pairs_within(60.0, &swapped), 0.95).unwrap().verdict, Inconclusive);
        let at = compare_times(&pairs_within(200.0, &later), 0.95).unwrap();
        assert_eq!((at.verdict, at.beyond_budget), (Better, 0));
        // A time beyond the budget has no rank either: all are censored alike.
        let slower = compare_times(&pairs_within(60.0, &[(Some(50.0), Some(90.0)); 6]), 0.95).unwrap();
        assert_eq!((slower.test, slower.verdict, slower.baseline_first), (RankTest::Sign, Worse, 6));
    }

    #[test]
    fn the_smallest_p_is_that_of_all_pairs_in_one_order() {
        for pairs in 1..=12 {
            let same = vec![(Some(2.0), Some(1.0)); pairs];
            let found = compare_times(&self::pairs(&same), 0.95).unwrap();
            assert!((found.p - smallest_rank_p(pairs)).abs() < 1e-12, "{pairs}");
            let never = vec![(None, Some(1.0)); pairs];
            let found = compare_times(&self::pairs(&never), 0.95).unwrap();
            assert!((found.p - smallest_rank_p(pairs)).abs() < 1e-12, "{pairs}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_not_compared() {
        assert_eq!(compare_times(&[], 0.95), None);
        assert_eq!(compare_times(&pairs(&[(Some(f64::NAN), Some(1.0))]), 0.95), None);
        assert_eq!(compare_times(&pairs(&[(Some(1.0), Some(f64::INFINITY))]), 0.95), None);
    }
}
