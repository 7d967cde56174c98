//! The conclusion of a comparison: means, interval, verdict, loss gate, and reasons why times are not
//! comparable.

use super::measured::VAL_LOSS;
use super::running::{RunningComparison, arm_name};
use super::trials::FinishedTrial;
use super::{measured, prediction, statistics};
use crate::recipe::{Change, Class};
use crate::results::comparison::{Arm, CompareVerdict, Comparison};

/// Relative difference between the clocks of one arm's trials above which its speeds are not comparable.
const CLOCKS_MOVED: f64 = 0.03;

/// Fraction of the CPU's time used by other processes above which a note is added.
const OTHERS_BUSY: f64 = 0.10;

/// Fraction of the CPU's time taken by the host of a virtual machine above which a note is added.
const STOLEN: f64 = 0.02;

/// Difference between the loads of two arms, as fractions of the CPU's time, above which it fell on one of
/// them.
const ONE_SIDED: f64 = 0.10;

/// Returns a reason not to compare times on a CPU where others used it in the trials of one arm more than in
/// those of the other. Each list has the load in the trials of an arm.
pub(super) fn one_sided_load(baseline: &[f64], candidate: &[f64]) -> Option<String> {
    let mean = |loads: &[f64]| (!loads.is_empty()).then(|| loads.iter().sum::<f64>() / loads.len() as f64);
    let loads = [mean(baseline)?, mean(candidate)?];
    let more = usize::from(loads[1] > loads[0]);
    (loads[more] - loads[1 - more] > ONE_SIDED).then(|| {
        format!(
            "other load fell on the {}: it took {:.0} % of the CPU in its trials and {:.0} % in those of the {}",
            arm_name(more == 1),
            100.0 * loads[more],
            100.0 * loads[1 - more],
            arm_name(more == 0)
        )
    })
}

/// Returns true for the device class of GPUs, whose times depend on the CPU little.
fn is_gpu(class: &str) -> bool {
    !class.is_empty() && !class.starts_with("cpu ")
}

impl RunningComparison<'_> {
    /// Judges the trials. `finished` is false if one of them failed.
    pub(super) fn conclude(&mut self, finished: bool) {
        self.comparison.finished = finished;
        self.comparison.trials_planned = None;
        let columns = |arm| {
            measured::means(&self.arm_trials(arm).map(|trial| trial.columns.clone()).collect::<Vec<_>>())
        };
        let means = (columns(false), columns(true));
        (self.comparison.baseline.measured, self.comparison.candidate.measured) = means;
        // An external command runs where the other arm does.
        let known = |arm: &Arm| Some(arm.device.clone()).filter(|device| !device.is_empty());
        let (baseline, candidate) = (known(&self.comparison.baseline), known(&self.comparison.candidate));
        self.comparison.baseline.device = baseline.clone().or(candidate.clone()).unwrap_or_default();
        self.comparison.candidate.device = candidate.or(baseline).unwrap_or_default();
        let (reasons, notes) = (self.incomparable(), self.notes());
        self.comparison.contended.extend(reasons);
        self.comparison.notes.extend(notes);
        self.judge_validation();
        self.judge_curves(finished);
        self.judge_speeds(finished);
        self.comparison.prediction_held =
            self.predicts.as_ref().and_then(|prediction| prediction::held(prediction, &self.comparison));
    }

    /// Returns the trials of an arm.
    fn arm_trials(&self, candidate: bool) -> impl Iterator<Item = &FinishedTrial> {
        self.trials.iter().filter(move |trial| trial.record.is_candidate == candidate)
    }

    /// Finds out whether all trials measured the validation loss on the same text.
    fn judge_validation(&mut self) {
        let measured = |trial: &&FinishedTrial| trial.columns.contains_key(VAL_LOSS);
        let parts: Vec<_> = self.trials.iter().filter(measured).map(|trial| trial.val_part).collect();
        let Some(first) = parts.first() else { return };
        let changed = self.arms.changes.iter().find(|change| change.class == Class::Measuring);
        let why = match changed {
            Some(Change { key, old, new, .. }) => format!("the arms differ in {key} ({old} → {new})"),
            None if parts.iter().any(|part| part != first) => {
                "the trials do not agree in what they took of the held-out text".to_owned()
            }
            None => {
                self.comparison.notes.extend(first.map(|part| format!("{VAL_LOSS} is {part}")));
                return;
            }
        };
        self.comparison.notes.push(format!("{VAL_LOSS} is not compared: {why}"));
        self.comparison.incomparable.push(VAL_LOSS.to_owned());
    }

    fn judge_curves(&mut self, finished: bool) {
        let diverged = self.arm_trials(true).any(|trial| trial.diverged)
            && !self.arm_trials(false).any(|trial| trial.diverged);
        if diverged {
            self.comparison.gate.holds = Some(false);
            self.comparison.gate.found = "the candidate diverged".to_owned();
        } else if finished {
            let curves = |arm| self.arm_trials(arm).map(|trial| trial.curve.clone()).collect::<Vec<_>>();
            self.comparison.gate = self.expected.judge(&curves(false), &curves(true));
        } else {
            self.comparison.gate.found = "a trial failed".to_owned();
        }
    }

    fn judge_speeds(&mut self, finished: bool) {
        let blocks = |arm| self.arm_trials(arm).map(|trial| trial.record.blocks.clone()).collect::<Vec<_>>();
        let ratio = if finished { statistics::ratio(&blocks(false), &blocks(true)) } else { None };
        self.comparison.ratio = ratio;
        self.comparison.verdict = match &ratio {
            Some(ratio) if self.comparison.contended.is_empty() && !self.comparison.has_single_run() => {
                statistics::verdict(ratio, self.comparison.min_effect)
            }
            _ => CompareVerdict::Inconclusive,
        };
    }

    /// Returns the reasons why times of whole arms are not comparable.
    fn incomparable(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for (clock, name) in ["the SM clock", "the memory clock"].into_iter().enumerate() {
            for candidate in [false, true] {
                let clocks: Vec<f64> =
                    self.arm_trials(candidate).filter_map(|trial| trial.clocks[clock]).collect();
                let low = clocks.iter().copied().fold(f64::INFINITY, f64::min);
                let high = clocks.iter().copied().fold(0.0, f64::max);
                if high > (1.0 + CLOCKS_MOVED) * low {
                    reasons.push(format!(
                        "{name} moved from {low:.0} to {high:.0} MHz among the trials of the {}",
                        arm_name(candidate)
                    ));
                }
            }
        }
        let Comparison { baseline, candidate, .. } = &self.comparison;
        let loads = |candidate| -> Vec<f64> {
            let loads = self.arm_trials(candidate).filter_map(|trial| trial.cpu_load);
            loads.map(|(others, stolen)| others + stolen).collect()
        };
        if !is_gpu(&baseline.device) {
            reasons.extend(one_sided_load(&loads(false), &loads(true)));
        }
        let intended = self.arms.changes.iter().any(|change| {
            let key = &change.key;
            key.starts_with("engine.device")
                || key.starts_with("engine.threads")
                || key.starts_with("parallelism.")
        });
        if baseline.device != candidate.device && !intended {
            let (old, new) = (&baseline.device, &candidate.device);
            reasons.push(format!("the arms ran on different devices: {old} and {new}"));
        }
        reasons
    }

    /// Returns remarks that do not change the verdict.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let largest = |part: fn(&(f64, f64)) -> f64| {
            self.trials.iter().filter_map(|trial| trial.cpu_load.as_ref().map(part)).fold(0.0, f64::max)
        };
        let (others, stolen) = (largest(|load| load.0), largest(|load| load.1));
        if others > OTHERS_BUSY {
            notes.push(format!("other processes used up to {:.0} % of the CPU in a trial", 100.0 * others));
        }
        if stolen > STOLEN {
            notes.push(format!("the host took up to {:.0} % of the CPU in a trial", 100.0 * stolen));
        }
        for candidate in [false, true] {
            if self.arm_trials(candidate).count() == 1 {
                notes.push(format!(
                    "one run of the {}: the interval does not include how runs of this arm differ",
                    arm_name(candidate)
                ));
            }
        }
        notes
    }
}
