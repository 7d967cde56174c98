//! Judges a prediction that was stored before the first run.

use crate::compare::measured::{RATES, SPEED, STEP_TIME};
use crate::metrics;
use crate::recipe::{Predicted, Prediction};
use crate::results::experiment::{Experiment, Finding};
use crate::results::measure::Scale;
use crate::statistics::{Interval, Verdict};

/// Returns whether a prediction held; `None` while that is open, for example before the last run.
///
/// A predicted word is compared with the verdict and stays open while the verdict is inconclusive; the same
/// bits count as no difference. A range for a judged measure, or for `step_ms`, is compared with the
/// interval: the estimate decides, but if the verdict is inconclusive, the whole interval must lie inside the
/// range or outside it. A range for another column is compared with the means of the trials, unless the arms
/// measured that column on different things. Times and energy stay open if times are not comparable or an arm
/// has only one run.
pub fn held(prediction: &str, experiment: &Experiment) -> Option<bool> {
    let prediction: Prediction = prediction.parse().ok()?;
    if !experiment.finished {
        return None;
    }
    let has_trials = experiment.has_trials();
    let is_comparable = !has_trials || experiment.contended.is_empty();
    let verdict = Some(experiment.verdict());
    let verdict = verdict.filter(|verdict| is_comparable && *verdict != Verdict::Inconclusive);
    match &prediction.of {
        Predicted::Faster | Predicted::Slower if !has_trials => None,
        Predicted::Better | Predicted::Worse if has_trials => None,
        Predicted::Faster | Predicted::Better => verdict.map(|verdict| verdict == Verdict::Better),
        Predicted::Slower | Predicted::Worse => verdict.map(|verdict| verdict == Verdict::Worse),
        Predicted::NoDifference => {
            verdict.map(|verdict| [Verdict::NoDifference, Verdict::SameBits].contains(&verdict))
        }
        Predicted::Difference { measure, low, high } => {
            let finding = experiment.finding(measure)?;
            is_within(finding, finding.interval.filter(|_| finding.scale == Scale::Difference)?, *low, *high)
        }
        Predicted::Range { column, low, high } if has_trials => column_held(experiment, column, *low, *high),
        Predicted::Range { column, low, high } => {
            let finding = experiment.finding(column)?;
            is_within(finding, relative(finding)?, *low, *high)
        }
    }
}

/// Returns a finding's interval as a fraction of the baseline's value.
fn relative(finding: &Finding) -> Option<Interval> {
    let interval = finding.interval?;
    if finding.scale == Scale::Ratio {
        return Some(interval);
    }
    let baseline = finding.baseline.filter(|baseline| *baseline > 0.0)?;
    let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(|x| x / baseline);
    Some(Interval { estimate, low, high })
}

fn is_within(finding: &Finding, interval: Interval, low: f64, high: f64) -> Option<bool> {
    let contains = |x: f64| (low..=high).contains(&x);
    match finding.verdict {
        Verdict::Inconclusive if contains(interval.low) && contains(interval.high) => Some(true),
        Verdict::Inconclusive if interval.high < low || interval.low > high => Some(false),
        Verdict::Inconclusive => None,
        _ => Some(contains(interval.estimate)),
    }
}

/// Returns whether a column of the trials changed by `low` to `high`, as fractions of the baseline's value.
fn column_held(experiment: &Experiment, column: &str, low: f64, high: f64) -> Option<bool> {
    let has_times = experiment.contended.is_empty() && !experiment.has_single_run();
    if experiment.incomparable.iter().any(|other| other == column) || (is_timed(column) && !has_times) {
        return None;
    }
    if RATES.contains(&column) {
        let finding = experiment.speed()?;
        let speed = finding.interval?;
        let interval = if column == SPEED { speed } else { step_time_change(experiment, speed)? };
        return is_within(finding, interval, low, high);
    }
    let baseline = experiment.baseline().measured.get(column).filter(|value| **value != 0.0)?;
    let candidate = experiment.candidate().measured.get(column)?;
    Some((low..=high).contains(&(candidate / baseline - 1.0)))
}

/// Returns the change of the step time, with an interval as wide as the speed's on a logarithmic scale. If
/// the arms train on different numbers of tokens per step, the step time is not the inverse of the speed.
fn step_time_change(experiment: &Experiment, speed: Interval) -> Option<Interval> {
    let time = |arm: &crate::results::experiment::Arm| arm.measured.get(STEP_TIME).copied();
    let baseline = time(experiment.baseline()).filter(|value| *value != 0.0)?;
    let ratio = time(experiment.candidate())? / baseline;
    let end = |end: f64| ratio * (1.0 + speed.estimate) / (1.0 + end) - 1.0;
    Some(Interval { estimate: ratio - 1.0, low: end(speed.high), high: end(speed.low) })
}

/// Returns true for times, speeds, energy, and whatever else the machine varies from trial to trial.
fn is_timed(column: &str) -> bool {
    const UNITS: [&str; 10] = ["s", "ms", "%", "W", "J", "J/token", "MHz", "°C", "tokens/s", "TFLOP/s"];
    let metric = metrics::compared().find(|metric| metric.compared_as == column);
    let has_unit = metric.is_some_and(|metric| UNITS.contains(&metric.unit));
    has_unit || ["_ms", "_pct", "_s"].iter().any(|unit| column.ends_with(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::trials;

    fn judged(text: &str, verdict: Verdict, [low, estimate, high]: [f64; 3]) -> Option<bool> {
        let mut experiment = trials();
        let speed = &mut experiment.findings[0];
        speed.verdict = verdict;
        speed.interval = Some(Interval { estimate, low, high });
        held(text, &experiment)
    }

    #[test]
    fn words_are_compared_with_the_verdict() {
        let faster = [0.1, 0.2, 0.3];
        assert_eq!(judged("faster", Verdict::Better, faster), Some(true));
        assert_eq!(judged("slower", Verdict::Better, faster), Some(false));
        assert_eq!(judged("no difference", Verdict::NoDifference, [-0.001, 0.0, 0.001]), Some(true));
        assert_eq!(judged("faster", Verdict::Inconclusive, [-0.1, 0.2, 0.5]), None);
        assert_eq!(judged("better", Verdict::Better, faster), None, "a word of quality");
    }

    #[test]
    fn ranges_are_compared_with_the_interval() {
        assert_eq!(judged("tok_s +10..+30%", Verdict::Better, [0.05, 0.2, 0.35]), Some(true));
        assert_eq!(judged("tok_s +30..+60%", Verdict::Better, [0.05, 0.2, 0.35]), Some(false));
        assert_eq!(judged("tok_s -5..+5%", Verdict::Inconclusive, [-0.04, 0.0, 0.04]), Some(true));
        assert_eq!(judged("tok_s -5..+5%", Verdict::Inconclusive, [-0.1, 0.0, 0.04]), None);
        assert_eq!(judged("tok_s +30..+60%", Verdict::Inconclusive, [-0.1, 0.0, 0.1]), Some(false));
    }

    /// The arms take 100 and 80 ms; the candidate has 1.25 times the speed.
    #[test]
    fn step_times_are_judged_as_speeds_are() {
        let mut found = trials();
        found.arms[0].measured.insert(STEP_TIME.into(), 100.0);
        found.arms[1].measured.insert(STEP_TIME.into(), 80.0);
        found.findings[0].interval = Some(Interval { estimate: 0.25, low: 0.0, high: 0.5 });
        assert_eq!(held("step_ms -25..-15%", &found), None, "from -33 to 0 %");
        assert_eq!(held("step_ms -40..+10%", &found), Some(true));
        assert_eq!(held("step_ms +5..+10%", &found), Some(false));
        found.findings[0].verdict = Verdict::Better;
        assert_eq!(held("step_ms -25..-15%", &found), Some(true));
    }

    #[test]
    fn what_the_machine_changes_is_open_on_a_machine_in_use() {
        assert!(["exposed_communication_ms", "energy_j", "j_per_token", "mfu_pct"].into_iter().all(is_timed));
        assert!(!["allocated_bytes", "val_loss", "train_loss"].into_iter().any(is_timed));
    }

    #[test]
    fn other_columns_are_compared_with_the_means() {
        let mut found = trials();
        found.arms[0].measured.insert("allocated_bytes".into(), 100.0);
        found.arms[1].measured.insert("allocated_bytes".into(), 70.0);
        assert_eq!(held("allocated_bytes -40..-20%", &found), Some(true));
        assert_eq!(held("allocated_bytes -20..-10%", &found), Some(false));
        assert_eq!(held("peak_rss_bytes -40..-20%", &found), None);
        found.contended.push("another process computed on the GPU".into());
        assert_eq!(held("allocated_bytes -40..-20%", &found), Some(true), "bytes do not depend on load");
        assert_eq!(held("faster", &found), None);
        assert_eq!(held("tok_s -50..+50%", &found), None);
        found.incomparable.push("allocated_bytes".into());
        assert_eq!(held("allocated_bytes -40..-20%", &found), None, "the arms measured different things");
        found.incomparable.clear();
        found.finished = false;
        assert_eq!(held("allocated_bytes -40..-20%", &found), None, "an arm may lack trials");
    }
}
