//! Judges a prediction that was stored before the first trial.

use super::measured::{RATES, SPEED, STEP_TIME};
use crate::metrics;
use crate::recipe::{Predicted, Prediction};
use crate::results::comparison::{CompareVerdict, Comparison, RatioInterval};

/// Returns true if `prediction` held by the result of `comparison`; `None` if that cannot be judged.
///
/// A word is compared with the verdict, and stays open if that is inconclusive. A range of `tok_s`, or of
/// `step_ms`, is compared with the ratio: its estimate decides, unless the verdict is inconclusive; then the
/// whole interval must lie inside the range, or outside; no time is judged of an arm of one run, whose
/// interval is too narrow. A range of another column is compared with the means of both arms, unless the arms
/// measured it on different things. Times and energy are not judged if times are not comparable, and nothing
/// is judged of an unfinished comparison.
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
        Predicted::Range { column, low, high } if RATES.contains(&column.as_str()) => {
            let speed = comparison.ratio.filter(|_| comparable && !comparison.has_single_run())?;
            let ratio = if column == SPEED { speed } else { ratio_of_step_times(comparison, speed)? };
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
            // Counts, bytes and losses do not depend on whether times are comparable, nor on the trial.
            if is_timed(column) && (!comparable || comparison.has_single_run()) {
                return None;
            }
            let baseline = comparison.baseline.measured.get(column).filter(|value| **value != 0.0)?;
            let candidate = comparison.candidate.measured.get(column)?;
            Some((*low..=*high).contains(&(candidate / baseline - 1.0)))
        }
    }
}

/// Returns the ratio of the times of a step, whose interval is as wide as that of the speeds. It is not their
/// inverse where the arms train on other numbers of tokens in a step.
fn ratio_of_step_times(comparison: &Comparison, speed: RatioInterval) -> Option<RatioInterval> {
    let [baseline, candidate] =
        [&comparison.baseline, &comparison.candidate].map(|arm| arm.measured.get(STEP_TIME));
    let estimate = candidate? / baseline.filter(|value| **value != 0.0)?;
    let [low, high] = [speed.high, speed.low].map(|end| estimate * speed.estimate / end);
    Some(RatioInterval { estimate, low, high })
}

/// Returns true for times, speeds, energy, and what else changes from trial to trial with the machine.
fn is_timed(column: &str) -> bool {
    const UNITS: [&str; 10] = ["s", "ms", "%", "W", "J", "J/token", "MHz", "°C", "tokens/s", "TFLOP/s"];
    let metric = metrics::compared().find(|metric| metric.compared_as == column);
    let has_unit = metric.is_some_and(|metric| UNITS.contains(&metric.unit));
    has_unit || ["_ms", "_pct", "_s"].iter().any(|unit| column.ends_with(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::comparison;

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

    /// Arms of 100 and 80 ms, at 1.25 times the speed.
    #[test]
    fn step_times_are_judged_as_speeds_are() {
        let mut found = comparison();
        found.baseline.measured.insert(STEP_TIME.into(), 100.0);
        found.candidate.measured.insert(STEP_TIME.into(), 80.0);
        found.ratio = Some(RatioInterval { estimate: 1.25, low: 1.0, high: 1.5 });
        let held = |text: &str, found: &Comparison| super::held(&text.parse().unwrap(), found);
        assert_eq!(held("step_ms -25..-15%", &found), None, "from -33 to 0 %");
        assert_eq!(held("step_ms -40..+10%", &found), Some(true));
        assert_eq!(held("step_ms +5..+10%", &found), Some(false));
        found.verdict = CompareVerdict::Faster;
        assert_eq!(held("step_ms -25..-15%", &found), Some(true));
    }

    #[test]
    fn what_the_machine_changes_is_open_on_a_machine_in_use() {
        assert!(["exposed_communication_ms", "energy_j", "j_per_token", "mfu_pct"].into_iter().all(is_timed));
        assert!(!["allocated_bytes", "val_loss", "train_loss"].into_iter().any(is_timed));
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
