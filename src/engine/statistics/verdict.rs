//! Derives verdicts from intervals.

use super::interval::Interval;
use serde::{Deserialize, Serialize};

/// The conclusion on a measure, from the candidate's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval lies within ± the smallest difference that matters.
    NoDifference,
    /// The candidate is better: the interval excludes 0.
    Better,
    /// The candidate is worse: the interval excludes 0.
    Worse,
    /// None of these; more pairs or a larger difference would decide.
    Inconclusive,
    /// Every pair of runs had the same bits.
    SameBits,
    /// Bits or curves differ by more than allowed.
    Different,
}

impl Verdict {
    /// Returns the name under which the verdict is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoDifference => "no_difference",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Inconclusive => "inconclusive",
            Self::SameBits => "same_bits",
            Self::Different => "different",
        }
    }

    /// Returns the verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoDifference => "no difference that matters",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Inconclusive => "inconclusive",
            Self::SameBits => "the same bits",
            Self::Different => "different",
        }
    }

    /// Returns the verdict on a speed in words.
    pub fn speed_words(self) -> &'static str {
        match self {
            Self::NoDifference => "no difference",
            Self::Better => "faster",
            Self::Worse => "slower",
            other => other.words(),
        }
    }
}

/// Which values of a measure are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Losses, times, bytes.
    LowerIsBetter,
    /// Speeds.
    HigherIsBetter,
}

impl Direction {
    /// Returns `value`, negated if lower is better, so that a larger result is always better.
    pub fn goodness(self, value: f64) -> f64 {
        match self {
            Self::LowerIsBetter => -value,
            Self::HigherIsBetter => value,
        }
    }
}

/// Returns the verdict for an interval of candidate - baseline. The first rule that holds decides:
///
/// 1. The interval lies within ± `min_effect`: no difference that matters (two one-sided tests at level (1 -
///    confidence) / 2 each; Schuirmann, "A comparison of the two one-sided tests procedure and the power
///    approach for assessing the equivalence of average bioavailability", 1987).
/// 2. The interval excludes 0: better or worse.
/// 3. Otherwise, or if an end is NaN: inconclusive.
///
/// With a `min_effect` of 0, any difference matters unless it is exactly 0.
pub fn verdict(interval: &Interval, min_effect: f64, direction: Direction) -> Verdict {
    if interval.is_within(min_effect) {
        Verdict::NoDifference
    } else if interval.excludes_zero() && !interval.low.is_nan() && !interval.high.is_nan() {
        if direction.goodness(interval.low) > 0.0 { Verdict::Better } else { Verdict::Worse }
    } else {
        Verdict::Inconclusive
    }
}

/// Returns true if the interval rules out that the candidate is worse by `min_effect` or more; then it is *no
/// worse* (non-inferiority, one of Schuirmann's two tests).
///
/// "Better in one measure and no worse in another" is a single question, answered yes only if both hold. So
/// each measure is judged at the full confidence: an intersection–union test needs no correction (Berger,
/// "Multiparameter Hypothesis Testing and Acceptance Sampling", 1982).
pub fn no_worse(interval: &Interval, min_effect: f64, direction: Direction) -> bool {
    let worst = match direction {
        Direction::LowerIsBetter => interval.high,
        Direction::HigherIsBetter => interval.low,
    };
    direction.goodness(worst) > -min_effect
}

/// Returns the confidence that each of several intervals needs so that all contain their true values with
/// probability at least `confidence`. It is Bonferroni's, 1 - (1 - confidence) / `measures`.
///
/// Source: Dunn, "Multiple Comparisons Among Means", 1961.
pub fn bonferroni(confidence: f64, measures: usize) -> f64 {
    1.0 - (1.0 - confidence) / measures.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{HigherIsBetter, LowerIsBetter};
    use Verdict::{Better, Different, Inconclusive, NoDifference, SameBits, Worse};

    fn interval(low: f64, high: f64) -> Interval {
        Interval { estimate: 0.5 * (low + high), low, high }
    }

    #[test]
    fn the_first_rule_that_holds_decides() {
        let table = [
            ((-0.009, 0.009), NoDifference),
            // Lying within the bounds takes precedence, even if the interval excludes 0.
            ((0.001, 0.01), NoDifference),
            ((-0.01, -0.001), NoDifference),
            ((0.001, 0.011), Worse),
            ((-0.03, -0.02), Better),
            ((-0.011, 0.001), Inconclusive),
            ((0.0, 0.02), Inconclusive),
            ((f64::NAN, 0.005), Inconclusive),
            ((0.02, f64::NAN), Inconclusive),
            ((f64::NAN, -0.02), Inconclusive),
            ((f64::NEG_INFINITY, f64::INFINITY), Inconclusive),
        ];
        for ((low, high), expected) in table {
            assert_eq!(verdict(&interval(low, high), 0.01, LowerIsBetter), expected, "{low} to {high}");
            let mirrored = verdict(&interval(-high, -low), 0.01, HigherIsBetter);
            assert_eq!(mirrored, expected, "mirrored {low} to {high}");
        }
        assert_eq!(verdict(&interval(0.0, 0.0), 0.0, LowerIsBetter), NoDifference);
        assert_eq!(verdict(&interval(1e-9, 2e-9), 0.0, LowerIsBetter), Worse);
    }

    #[test]
    fn no_worse_looks_at_one_end() {
        assert!(no_worse(&interval(-1.0, 0.009), 0.01, LowerIsBetter));
        assert!(!no_worse(&interval(-1.0, 0.01), 0.01, LowerIsBetter));
        assert!(no_worse(&interval(-0.009, 1.0), 0.01, HigherIsBetter));
        assert!(!no_worse(&interval(-0.02, 1.0), 0.01, HigherIsBetter));
        assert!(!no_worse(&interval(-1.0, f64::NAN), 0.01, LowerIsBetter));
    }

    #[test]
    fn bonferroni_divides_the_error() {
        assert!((bonferroni(0.95, 5) - 0.99).abs() < 1e-12);
        assert_eq!(bonferroni(0.95, 1), 0.95);
        assert_eq!(bonferroni(0.95, 0), 0.95);
    }

    #[test]
    fn verdicts_are_stored_under_their_names() {
        for verdict in [NoDifference, Better, Worse, Inconclusive, SameBits, Different] {
            assert_eq!(serde_json::to_string(&verdict).unwrap(), format!("\"{}\"", verdict.as_str()));
        }
    }
}
