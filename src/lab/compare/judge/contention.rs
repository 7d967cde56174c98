//! Finds reasons why the times of trials cannot be compared, and notes on other load.

use crate::compare::trials::FinishedTrial;
use crate::results::experiment::{ARM_NAMES, Experiment};

/// The clocks of one arm's trials may differ by this fraction; above it, its speeds are not comparable.
const CLOCKS_MOVED: f64 = 0.03;

/// Above this fraction of CPU time used by other processes, a note is added.
const OTHERS_BUSY: f64 = 0.10;

/// Above this fraction of CPU time taken by the host of a virtual machine, a note is added.
const STOLEN: f64 = 0.02;

/// If the loads on the two arms differ by more than this fraction of CPU time, the load was one-sided.
const ONE_SIDED: f64 = 0.10;

/// Returns a reason not to compare times on a CPU if other processes used it more during one arm's trials
/// than during the other's. The arguments are the loads during each arm's trials.
fn one_sided_load(baseline: &[f64], candidate: &[f64]) -> Option<String> {
    let mean = |loads: &[f64]| (!loads.is_empty()).then(|| loads.iter().sum::<f64>() / loads.len() as f64);
    let loads = [mean(baseline)?, mean(candidate)?];
    let more = usize::from(loads[1] > loads[0]);
    (loads[more] - loads[1 - more] > ONE_SIDED).then(|| {
        format!(
            "other load fell on the {}: it took {:.0} % of the CPU in its trials and {:.0} % in the trials \
             of the {}",
            ARM_NAMES[more],
            100.0 * loads[more],
            100.0 * loads[1 - more],
            ARM_NAMES[1 - more]
        )
    })
}

/// Returns true for the device class of a GPU, whose times depend little on the CPU.
fn is_gpu(class: &str) -> bool {
    !class.is_empty() && !class.starts_with("cpu ")
}

/// Returns why the times of the arms cannot be compared, apart from reasons within single trials.
/// `intends_devices`: the question itself changes the device, the threads or the ranks.
pub fn reasons(experiment: &Experiment, trials: &[FinishedTrial], intends_devices: bool) -> Vec<String> {
    let in_arm = |arm: usize| trials.iter().filter(move |trial| trial.record.arm == arm);
    let mut reasons = Vec::new();
    for (clock, name) in ["the SM clock", "the memory clock"].into_iter().enumerate() {
        for (arm, arm_name) in ARM_NAMES.iter().enumerate() {
            let clocks: Vec<f64> = in_arm(arm).filter_map(|trial| trial.clocks[clock]).collect();
            let low = clocks.iter().copied().fold(f64::INFINITY, f64::min);
            let high = clocks.iter().copied().fold(0.0, f64::max);
            if high > (1.0 + CLOCKS_MOVED) * low {
                reasons.push(format!(
                    "{name} moved from {low:.0} to {high:.0} MHz among the trials of the {arm_name}"
                ));
            }
        }
    }
    let loads = |arm: usize| -> Vec<f64> {
        let loads = in_arm(arm).filter_map(|trial| trial.cpu_load);
        loads.map(|(others, stolen)| others + stolen).collect()
    };
    let [baseline, candidate] =
        [experiment.baseline(), experiment.candidate()].map(|arm| arm.device.as_deref());
    if !baseline.is_some_and(is_gpu) {
        reasons.extend(one_sided_load(&loads(0), &loads(1)));
    }
    if let (Some(old), Some(new)) = (baseline, candidate)
        && old != new
        && !intends_devices
    {
        reasons.push(format!("the arms ran on different devices: {old} and {new}"));
    }
    reasons
}

/// Returns remarks that leave the verdict unchanged.
pub fn notes(trials: &[FinishedTrial]) -> Vec<String> {
    let mut notes = Vec::new();
    let largest = |part: fn(&(f64, f64)) -> f64| {
        trials.iter().filter_map(|trial| trial.cpu_load.as_ref().map(part)).fold(0.0, f64::max)
    };
    let (others, stolen) = (largest(|load| load.0), largest(|load| load.1));
    if others > OTHERS_BUSY {
        notes.push(format!("other processes used up to {:.0} % of the CPU in a trial", 100.0 * others));
    }
    if stolen > STOLEN {
        notes.push(format!("the host took up to {:.0} % of the CPU in a trial", 100.0 * stolen));
    }
    for (arm, name) in ARM_NAMES.iter().enumerate() {
        if trials.iter().filter(|trial| trial.record.arm == arm).count() == 1 {
            notes.push(format!(
                "one run of the {name}: the interval does not include how runs of this arm differ"
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Load on one arm, on both, and on neither.
    #[test]
    fn load_on_one_arm_alone_is_a_reason() {
        for (baseline, candidate, reason) in [
            (
                &[0.02, 0.03, 0.01][..],
                &[0.82, 0.79, 0.85][..],
                Some("fell on the candidate: it took 82 % of the CPU in its trials and 2 %"),
            ),
            (&[0.40, 0.02, 0.30], &[0.01, 0.02, 0.03], Some("fell on the baseline: it took 24 %")),
            (&[0.80, 0.78], &[0.82, 0.79], None),
            (&[0.05, 0.0], &[0.0, 0.12], None),
            (&[], &[0.9], None),
        ] {
            let found = one_sided_load(baseline, candidate);
            assert_eq!(found.is_some(), reason.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(reason.unwrap_or_default()));
        }
    }
}
