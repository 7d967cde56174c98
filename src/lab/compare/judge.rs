//! Derives findings from the runs of an experiment. Only loss curves need more than the record.

pub mod contention;
pub mod curves;
mod leaks;
mod pairs;
mod qualifiers;
pub mod trials;

use crate::results::experiment::{Design, Experiment, Finding};
use crate::results::measure::Measure;
use crate::statistics::Interval;
pub use pairs::is_joint;

/// Describes in words how intervals and verdicts follow from the runs.
pub fn rule(design: &Design, findings: &[Finding]) -> String {
    let min_effect = findings.first().and_then(|asked| asked.min_effect);
    match design {
        Design::Trials { .. } => trials::rule(min_effect.unwrap_or_default()),
        Design::Pairs { .. } | Design::Sequential { .. } => {
            pairs::rule(design, is_joint(findings.iter().map(|asked| &asked.measure)))
        }
    }
}

/// The rules that [`judge`] follows, as stored with a record. 1, from 2026-11-28: times to a target count up
/// to the smaller budget of a pair, and a predicted range is compared with the whole interval. 0, before:
/// later times counted, and the estimate decided on a range.
pub const RULES: u32 = 1;

/// Judges the runs that have ended: findings, joint question, diverged runs, looks and prediction. The
/// finding on loss curves stays as it is because the record has no curves.
pub fn judge(experiment: &mut Experiment) {
    experiment.rules = RULES;
    if experiment.has_trials() {
        trials::judge(experiment);
    } else {
        pairs::judge(experiment);
    }
    let held = experiment.prediction_held();
    if let Some(prediction) = &mut experiment.prediction {
        prediction.held = held;
    }
    if experiment.standing.is_some() {
        experiment.qualifiers = qualifiers::qualifiers(experiment);
        experiment.withhold_verdicts();
    }
}

/// Returns true if no run is left to do: all have ended, or a sequential design has decided every measure.
pub fn is_decided(experiment: &Experiment) -> bool {
    let stops = match &experiment.design {
        Design::Sequential { looks, .. } => looks.last().is_some_and(|look| look.stops),
        Design::Trials { .. } | Design::Pairs { .. } => false,
    };
    stops || experiment.ended_pairs() >= experiment.design.max_pairs()
}

/// Judges the first `pairs` pairs by the experiment's own rule. With a fixed number of pairs, an earlier
/// result is not a verdict; it only shows how the interval narrows.
pub fn after_pairs(experiment: &Experiment, pairs: usize) -> Experiment {
    let mut so_far = experiment.clone();
    let ended = experiment.pairs().filter(|pair| pair.has_ended()).take(pairs);
    so_far.runs = ended.flat_map(|pair| pair.runs()).cloned().collect();
    judge(&mut so_far);
    so_far
}

/// The interval after a number of pairs, in the form of
/// [`Finding::interval`](crate::results::experiment::Finding).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClosingInterval {
    /// Number of pairs.
    pub pairs: usize,
    /// The interval.
    pub interval: Interval,
}

/// Returns, for each finding, its interval after each number of pairs that has one.
pub fn closing(experiment: &Experiment) -> Vec<Vec<ClosingInterval>> {
    let mut closing = vec![Vec::new(); experiment.findings.len()];
    for pairs in 2..=experiment.ended_pairs() {
        for (intervals, finding) in closing.iter_mut().zip(after_pairs(experiment, pairs).findings) {
            let interval = finding.interval.filter(|_| finding.measure != Measure::LossCurves);
            intervals.extend(interval.map(|interval| ClosingInterval { pairs, interval }));
        }
    }
    closing
}
