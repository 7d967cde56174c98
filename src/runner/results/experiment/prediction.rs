//! Judges a prediction that was stored before the first run.

use super::{Arm, Experiment, Finding};
use crate::metrics;
use crate::recipe::{Predicted, Prediction};
use crate::results::measure::Scale;
use crate::statistics::{Interval, Verdict};

/// The columns whose change follows from the interval of the speed.
const SPEED: &str = "tok_s";
const STEP_TIME: &str = "step_ms";

impl Experiment {
    /// Returns whether its prediction held, by today's rules; `None` while that is open, for example before
    /// the last run, or without a prediction.
    pub fn prediction_held(&self) -> Option<bool> {
        held(&self.prediction.as_ref()?.text, self)
    }

    /// Returns how many times as wide a predicted range is as the interval that it is compared with. A range
    /// of many times the interval says little when it holds.
    pub fn prediction_width(&self) -> Option<f64> {
        width(&self.prediction.as_ref()?.text, self)
    }
}

/// Returns whether a prediction held; `None` while that is open.
///
/// A predicted word is compared with the verdict and stays open while the verdict is inconclusive; the same
/// bits count as no difference. A range for a judged measure, or for `step_ms`, is compared with the
/// interval, whatever the verdict: it held if the whole interval lies inside, is falsified if it lies
/// outside, and is open if an end of the range lies within the interval. A range for another column is
/// compared with the means of the trials, unless the arms measured that column on different things. Times
/// and energy stay open if times are not comparable or an arm has only one run.
fn held(prediction: &str, experiment: &Experiment) -> Option<bool> {
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
        Predicted::Range { column, low, high }
            if has_trials && ![SPEED, STEP_TIME].contains(&column.as_str()) =>
        {
            column_held(experiment, column, *low, *high)
        }
        Predicted::Difference { low, high, .. } | Predicted::Range { low, high, .. } => {
            is_within(compared(&prediction.of, experiment)?, *low, *high)
        }
    }
}

fn width(prediction: &str, experiment: &Experiment) -> Option<f64> {
    let parsed: Prediction = prediction.parse().ok()?;
    let (Predicted::Range { low, high, .. } | Predicted::Difference { low, high, .. }) = &parsed.of else {
        return None;
    };
    let interval = compared(&parsed.of, experiment)?;
    Some((high - low) / (interval.high - interval.low)).filter(|width| width.is_finite())
}

/// Returns the interval that a predicted range is compared with, in the range's unit. `None` for a word, for
/// a column that has no interval, and for times that are not comparable.
fn compared(predicted: &Predicted, experiment: &Experiment) -> Option<Interval> {
    let has_times = experiment.contended.is_empty();
    match predicted {
        Predicted::Difference { measure, .. } => {
            let finding = experiment.finding(measure)?;
            finding.interval.filter(|_| finding.scale == Scale::Difference && finding.withheld.is_none())
        }
        Predicted::Range { column, .. } if experiment.has_trials() => {
            let speed = experiment.speed()?.interval.filter(|_| has_times && !experiment.has_single_run())?;
            match column.as_str() {
                SPEED => Some(speed),
                STEP_TIME => step_time_change(experiment, speed),
                _ => None,
            }
        }
        Predicted::Range { column, .. } => {
            relative(experiment.finding(column).filter(|one| has_times || !one.measure.is_timed())?)
        }
        _ => None,
    }
}

/// Returns a finding's interval as a fraction of the baseline's value.
fn relative(finding: &Finding) -> Option<Interval> {
    let interval = finding.interval.filter(|_| finding.withheld.is_none())?;
    if finding.scale == Scale::Ratio {
        return Some(interval);
    }
    let baseline = finding.baseline.filter(|baseline| *baseline > 0.0)?;
    let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(|x| x / baseline);
    Some(Interval { estimate, low, high })
}

/// Returns whether a range holds the true value, as far as its interval tells; `None` if the interval
/// reaches from inside of the range to outside.
fn is_within(interval: Interval, low: f64, high: f64) -> Option<bool> {
    if interval.low >= low && interval.high <= high {
        Some(true)
    } else if interval.high < low || interval.low > high {
        Some(false)
    } else {
        None
    }
}

/// Returns whether a column of the trials changed by `low` to `high`, as fractions of the baseline's value.
fn column_held(experiment: &Experiment, column: &str, low: f64, high: f64) -> Option<bool> {
    let has_times = experiment.contended.is_empty() && !experiment.has_single_run();
    if experiment.incomparable.iter().any(|other| other == column) || (is_timed(column) && !has_times) {
        return None;
    }
    let baseline = experiment.baseline().measured.get(column).filter(|value| **value != 0.0)?;
    let candidate = experiment.candidate().measured.get(column)?;
    Some((low..=high).contains(&(candidate / baseline - 1.0)))
}

/// Returns the change of the step time, with an interval as wide as the speed's on a logarithmic scale. If
/// the arms train on different numbers of tokens per step, the step time is not the inverse of the speed.
fn step_time_change(experiment: &Experiment, speed: Interval) -> Option<Interval> {
    let time = |arm: &Arm| arm.measured.get(STEP_TIME).copied();
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
    use crate::results::experiment::Design;
    use crate::results::experiment::example::experiment;
    use crate::results::measure::Measure;

    fn trials() -> Experiment {
        let findings = vec![
            Finding::unjudged(Measure::SPEED, Some(0.01), 0.95),
            Finding::unjudged(Measure::LossCurves, None, 1.0),
        ];
        experiment(Design::Trials { trials: 0 }, findings, Vec::new())
    }

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
        let wide = [0.05, 0.2, 0.35];
        for verdict in [Verdict::Better, Verdict::Worse, Verdict::NoDifference, Verdict::Inconclusive] {
            for (range, held) in [
                ("tok_s +1..+40%", Some(true)),
                ("tok_s +5..+35%", Some(true)),
                ("tok_s +10..+30%", None),
                ("tok_s +30..+60%", None),
                ("tok_s -5..+6%", None),
                ("tok_s +36..+60%", Some(false)),
                ("tok_s -5..+4%", Some(false)),
            ] {
                assert_eq!(judged(range, verdict, wide), held, "{range}, {verdict:?}");
            }
        }
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
        assert_eq!(held("step_ms -25..-15%", &found), None, "whatever the verdict");
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
