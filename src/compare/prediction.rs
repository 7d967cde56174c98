//! Judges a prediction that was stored before the first trial.

use super::measured::SPEED;
use crate::recipe::{Predicted, Prediction};
use crate::results::comparison::{CompareVerdict, Comparison};

/// Returns true if `prediction` held by the result of `comparison`; `None` if that cannot be judged.
///
/// A word is compared with the verdict, and stays open if that is inconclusive. A range of `tok_s` is
/// compared with the ratio: its estimate decides, unless the verdict is inconclusive; then the whole interval
/// must lie inside the range, or outside; nothing is judged of an arm of one run, whose interval is too
/// narrow. A range of another column is compared with the means of both arms, unless the arms measured it on
/// different things. Speeds are not judged if times are not comparable, and nothing is judged of an
/// unfinished comparison.
pub fn held(prediction: &Prediction, comparison: &Comparison) -> Option<bool> {
    if !comparison.finished {
        return None;
    }
    if let Predicted::Range { column, .. } = &prediction.of
        && comparison.incomparable.contains(column)
    {
        return None;
    }
    let comparable = comparison.contended.is_empty();
    let verdict =
        Some(comparison.verdict).filter(|verdict| comparable && *verdict != CompareVerdict::Inconclusive);
    match &prediction.of {
        Predicted::Faster => verdict.map(|verdict| verdict == CompareVerdict::Faster),
        Predicted::Slower => verdict.map(|verdict| verdict == CompareVerdict::Slower),
        // Of quality, which speeds do not tell.
        Predicted::Better | Predicted::Worse | Predicted::Difference { .. } => None,
        Predicted::NoDifference => verdict.map(|verdict| verdict == CompareVerdict::NoDifference),
        Predicted::Range { column, low, high } if column == SPEED => {
            let ratio = comparison.ratio.filter(|_| comparable && !comparison.has_single_run())?;
            let within = |x: f64| (*low..=*high).contains(&(x - 1.0));
            let apart = ratio.high - 1.0 < *low || ratio.low - 1.0 > *high;
            match verdict {
                Some(_) => Some(within(ratio.estimate)),
                None if within(ratio.low) && within(ratio.high) => Some(true),
                None if apart => Some(false),
                None => None,
            }
        }
        Predicted::Range { column, low, high } => {
            // Counts and losses do not depend on whether times are comparable.
            let timed = ["_ms", "_pct", "_s"].iter().any(|unit| column.ends_with(unit));
            if timed && !comparable {
                return None;
            }
            let baseline = comparison.baseline.measured.get(column).filter(|value| **value != 0.0)?;
            let candidate = comparison.candidate.measured.get(column)?;
            Some((*low..=*high).contains(&(candidate / baseline - 1.0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::comparison;
    use crate::results::comparison::RatioInterval;

    fn said(text: &str, verdict: CompareVerdict, [low, estimate, high]: [f64; 3]) -> Option<bool> {
        let mut comparison = comparison();
        comparison.verdict = verdict;
        comparison.ratio = Some(RatioInterval { estimate, low, high });
        held(&text.parse().unwrap(), &comparison)
    }

    #[test]
    fn words_are_compared_with_the_verdict() {
        let faster = [1.1, 1.2, 1.3];
        assert_eq!(said("faster", CompareVerdict::Faster, faster), Some(true));
        assert_eq!(said("slower", CompareVerdict::Faster, faster), Some(false));
        assert_eq!(said("no difference", CompareVerdict::NoDifference, [0.999, 1.0, 1.001]), Some(true));
        assert_eq!(said("faster", CompareVerdict::Inconclusive, [0.9, 1.2, 1.5]), None);
    }

    #[test]
    fn ranges_are_compared_with_the_ratio() {
        assert_eq!(said("tok_s +10..+30%", CompareVerdict::Faster, [1.05, 1.2, 1.35]), Some(true));
        assert_eq!(said("tok_s +30..+60%", CompareVerdict::Faster, [1.05, 1.2, 1.35]), Some(false));
        assert_eq!(said("tok_s -5..+5%", CompareVerdict::Inconclusive, [0.96, 1.0, 1.04]), Some(true));
        assert_eq!(said("tok_s -5..+5%", CompareVerdict::Inconclusive, [0.9, 1.0, 1.04]), None);
        assert_eq!(said("tok_s +30..+60%", CompareVerdict::Inconclusive, [0.9, 1.0, 1.1]), Some(false));
    }

    #[test]
    fn other_columns_are_compared_with_the_means() {
        let mut found = comparison();
        found.baseline.measured.insert("allocated_bytes".into(), 100.0);
        found.candidate.measured.insert("allocated_bytes".into(), 70.0);
        let held = |text: &str, found: &Comparison| super::held(&text.parse().unwrap(), found);
        assert_eq!(held("allocated_bytes -40..-20%", &found), Some(true));
        assert_eq!(held("allocated_bytes -20..-10%", &found), Some(false));
        assert_eq!(held("peak_rss_bytes -40..-20%", &found), None);
        found.contended.push("another process computed on the GPU".into());
        assert_eq!(held("allocated_bytes -40..-20%", &found), Some(true), "bytes are no times");
        assert_eq!(held("faster", &found), None);
        assert_eq!(held("tok_s -50..+50%", &found), None);
        found.incomparable.push("allocated_bytes".into());
        assert_eq!(held("allocated_bytes -40..-20%", &found), None, "the arms measured different things");
        found.incomparable.clear();
        found.finished = false;
        assert_eq!(held("allocated_bytes -40..-20%", &found), None, "an arm may lack trials");
    }
}
