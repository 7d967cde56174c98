//! Finds reasons why the times of trials cannot be compared, and notes on other load.

use super::trials;
use crate::compare::trials::FinishedTrial;
use crate::results::experiment::{ARM_NAMES, BASELINE, CANDIDATE, Experiment, OtherLoad};
use crate::statistics::{Interval, mean, two_sided_quantile, variance};

/// The clocks of one arm's trials may differ by this fraction; above it, its speeds are not comparable.
const CLOCKS_MOVED: f64 = 0.03;

/// Above this fraction of CPU time used by other processes, a note is added.
const OTHERS_BUSY: f64 = 0.10;

/// Above this fraction of CPU time taken by the host of a virtual machine, a note is added.
const STOLEN: f64 = 0.02;

/// If the mean loads on the two arms differ by more than this fraction of CPU time, the load was one-sided,
/// whatever the speeds.
const ONE_SIDED: f64 = 0.10;

/// A difference in load above this fraction of CPU time counts even if it may be chance.
const UNEVEN: f64 = 0.01;

/// Returns a reason not to compare times on a CPU if other processes used it more during one arm's trials
/// than during the other's, and this may be why the speeds differ or do not. `ratio` is the interval of
/// candidate / baseline - 1, of which a difference of `min_effect` matters.
///
/// The loads are compared between the arms. They differ if Welch's 95 % interval of their difference excludes
/// 0, or if it is above 1 % of CPU time. Threads of a run wait for the slowest of them, so a process that
/// takes a share of one processor may slow the whole run by that share: by the difference in load times the
/// number of processors. If this moves the ratio past ± `min_effect`, the load may be all that was measured.
pub fn one_sided_load(
    baseline: &[OtherLoad],
    candidate: &[OtherLoad],
    ratio: Option<Interval>,
    min_effect: f64,
) -> Option<String> {
    let loads = [baseline, candidate].map(|arm| arm.iter().map(OtherLoad::total).collect::<Vec<f64>>());
    if loads.iter().any(Vec::is_empty) {
        return None;
    }
    let means = [mean(&loads[0]), mean(&loads[1])];
    let more = usize::from(means[1] > means[0]);
    let difference = means[more] - means[1 - more];
    let processors = baseline.iter().chain(candidate).map(|load| load.processors).max().unwrap_or(1);
    let explained = ratio.is_none_or(|ratio| {
        let slowed = difference * processors as f64;
        // The speed ratio without the load: an arm that was slowed is faster than it looks.
        let without = if more == CANDIDATE { ratio.estimate + slowed } else { ratio.estimate - slowed };
        side(ratio.estimate, min_effect) != side(without, min_effect)
    });
    let is_uneven = difference > UNEVEN || differ_by_welch(&loads[0], &loads[1]);
    (difference > ONE_SIDED || (is_uneven && explained)).then(|| {
        format!(
            "other load fell on the {}: it took {} % of the CPU in its trials and {} % in the trials of the {}",
            ARM_NAMES[more],
            significant_percent(means[more]),
            significant_percent(means[1 - more]),
            ARM_NAMES[1 - more]
        )
    })
}

/// Returns on which side of ± `min_effect` a difference lies: -1, 0 or 1.
fn side(difference: f64, min_effect: f64) -> i8 {
    i8::from(difference > min_effect) - i8::from(difference < -min_effect)
}

/// Returns true if Welch's 95 % interval for the difference of two means excludes 0. Two values per arm are
/// the fewest that have one.
fn differ_by_welch(a: &[f64], b: &[f64]) -> bool {
    let error = |values: &[f64]| variance(values) / values.len() as f64;
    let (a_error, b_error) = (error(a), error(b));
    let freedom = |error: f64, n: usize| error * error / (n as f64 - 1.0);
    let sum = a_error + b_error;
    let freedom = sum * sum / (freedom(a_error, a.len()) + freedom(b_error, b.len()));
    freedom.is_finite() && (mean(a) - mean(b)).abs() > two_sided_quantile(freedom, 0.95) * sum.sqrt()
}

/// Formats a share of CPU time in percent, with a decimal below 10 %.
fn significant_percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

/// Returns true for the device class of a GPU, whose times depend little on the CPU.
fn is_gpu(class: &str) -> bool {
    !class.is_empty() && !class.starts_with("cpu ")
}

/// Returns why the times of the arms cannot be compared, apart from reasons within single trials.
/// `intends_devices`: the question itself changes the device, the threads or the ranks.
pub fn reasons(experiment: &Experiment, ended: &[FinishedTrial], intends_devices: bool) -> Vec<String> {
    let in_arm = |arm: usize| ended.iter().filter(move |trial| trial.record.arm == arm);
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
    let loads =
        |arm: usize| in_arm(arm).filter_map(|trial| trial.record.other_load).collect::<Vec<OtherLoad>>();
    let [baseline, candidate] =
        [experiment.baseline(), experiment.candidate()].map(|arm| arm.device.as_deref());
    if !baseline.is_some_and(is_gpu) {
        let blocks = |arm: usize| in_arm(arm).map(|trial| trial.record.blocks.clone()).collect::<Vec<_>>();
        let min_effect = experiment.speed().and_then(|speed| speed.min_effect).unwrap_or(0.01);
        let ratio = trials::ratio(&blocks(BASELINE), &blocks(CANDIDATE));
        reasons.extend(one_sided_load(&loads(BASELINE), &loads(CANDIDATE), ratio, min_effect));
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
    let largest = |part: fn(&OtherLoad) -> f64| {
        trials.iter().filter_map(|trial| trial.record.other_load.as_ref().map(part)).fold(0.0, f64::max)
    };
    let (others, stolen) = (largest(|load| load.processes), largest(|load| load.stolen));
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

    fn loads(shares: &[f64], processors: u64) -> Vec<OtherLoad> {
        shares.iter().map(|&processes| OtherLoad { processes, stolen: 0.0, processors }).collect()
    }

    /// Load on one arm, on both, and on neither, where the speeds differ by nothing.
    #[test]
    fn load_on_one_arm_alone_is_a_reason() {
        let equal = Some(Interval { estimate: 0.0, low: -0.005, high: 0.005 });
        for (baseline, candidate, reason) in [
            (
                &[0.02, 0.03, 0.01][..],
                &[0.82, 0.79, 0.85][..],
                Some("fell on the candidate: it took 82 % of the CPU in its trials and 2.0 %"),
            ),
            (&[0.40, 0.02, 0.30], &[0.01, 0.02, 0.03], Some("fell on the baseline: it took 24 %")),
            (&[0.05, 0.0], &[0.0, 0.12], Some("fell on the candidate: it took 6.0 %")),
            (&[0.80, 0.78], &[0.785, 0.79], None),
            (&[0.001, 0.002, 0.0015], &[0.002, 0.001, 0.0015], None),
            // Little, and yet more than chance: on four processors, a run may have lost 1.6 %.
            (
                &[0.001, 0.002, 0.0015],
                &[0.006, 0.005, 0.0055],
                Some("0.6 % of the CPU in its trials and 0.2 %"),
            ),
            (&[], &[0.9], None),
        ] {
            let found = one_sided_load(&loads(baseline, 4), &loads(candidate, 4), equal, 0.01);
            assert_eq!(found.is_some(), reason.is_some(), "{baseline:?} {candidate:?}: {found:?}");
            let found = found.unwrap_or_default();
            assert!(found.contains(reason.unwrap_or_default()), "{found}");
        }
    }

    /// A load of 3 % on one arm counts if it may be what the speeds show, and not if they differ by far more,
    /// or the other way.
    #[test]
    fn a_small_load_counts_where_it_may_explain_the_speeds() {
        let idle = loads(&[0.0; 3], 2);
        let busy = loads(&[0.03; 3], 2);
        let found = |baseline: &[OtherLoad], candidate: &[OtherLoad], estimate: f64| {
            let ratio = Some(Interval { estimate, low: estimate, high: estimate });
            one_sided_load(baseline, candidate, ratio, 0.01).is_some()
        };
        assert!(found(&idle, &busy, -0.03), "slower, as the load makes it");
        assert!(found(&idle, &busy, 0.0), "it may be faster");
        assert!(!found(&idle, &busy, -0.25), "the load is no reason for a quarter");
        assert!(!found(&idle, &busy, 0.05), "faster in spite of the load");
        assert!(found(&busy, &idle, 0.05) && !found(&busy, &idle, -0.05));
        assert!(one_sided_load(&idle, &busy, None, 0.01).is_some(), "without a ratio");
    }
}
