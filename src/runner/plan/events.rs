//! Events of a run besides its steps: evaluations, checkpoints, samples, progress lines.

use crate::policy::WeightsOnly;
use crate::recipe::{Checkpoint, Metrics, ValidationRuns, Values};
use std::time::Duration;

/// How often something happens, besides once at the end: checkpoints, evaluations, samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Every this many steps; never for 0.
    Steps(usize),
    /// After the first step that ends at least this long after the last save. Rank 0's clock decides for all
    /// ranks.
    Time(Duration),
}

impl Period {
    fn from_values(checkpoint: &Checkpoint) -> Self {
        match checkpoint.interval {
            Some(steps) => Self::Steps(steps),
            None if checkpoint.minutes == 0.0 => Self::Steps(0),
            None => Self::Time(Duration::from_secs_f64(60.0 * checkpoint.minutes)),
        }
    }

    /// Returns the number of steps between two events; 0 if time decides instead.
    pub fn steps(self) -> usize {
        match self {
            Self::Steps(steps) => steps,
            Self::Time(_) => 0,
        }
    }

    /// Returns how often it is due after `step` of `total`, if the remaining steps take `seconds`.
    pub fn times_due(self, step: u64, total: u64, seconds: f64) -> u64 {
        match self {
            Self::Steps(interval) => times_due(interval, step, total),
            Self::Time(period) => {
                let on_the_way = (seconds / period.as_secs_f64()) as u64;
                on_the_way.saturating_add(u64::from(step < total))
            }
        }
    }
}

/// Returns true if an event is due after `step`: every `interval` steps and after the last of `total` steps.
/// With an interval of 0 it is due only after the last.
pub fn is_due(interval: usize, step: u64, total: u64) -> bool {
    step == total || (interval > 0 && step.is_multiple_of(interval as u64))
}

/// Counts the steps after `step` for which [`is_due`] holds.
pub fn times_due(interval: usize, step: u64, total: u64) -> u64 {
    let interval = interval as u64;
    if step >= total {
        return 0;
    }
    match interval {
        0 => 1,
        interval => total / interval - step / interval + u64::from(!total.is_multiple_of(interval)),
    }
}

/// The events of a run and the steps between them; an interval of 0 means only at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervals {
    /// `[validation]` of the recipe.
    pub validation: ValidationRuns,
    /// `[checkpoint]` of the recipe.
    pub checkpoint: Checkpoint,
    /// Steps or time between checkpoints.
    pub save_period: Period,
    /// Further steps after which a checkpoint is saved and kept, in order.
    pub kept_steps: Vec<u64>,
    /// Steps between comparisons of the parameters of all ranks.
    pub check: usize,
    /// Steps between scores on tasks; `None` without tasks.
    pub tasks: Option<usize>,
    /// `[metrics]` of the recipe.
    pub metrics: Metrics,
}

impl Intervals {
    /// Reads the intervals from the values of a recipe.
    pub fn from_values(values: &Values) -> Self {
        Self {
            validation: values.validation.clone(),
            checkpoint: values.checkpoint.clone(),
            save_period: Period::from_values(&values.checkpoint),
            kept_steps: kept_steps(&values.checkpoint, values.training.steps as u64),
            check: values.parallelism.check_interval,
            tasks: (!values.evaluation.tasks.is_empty()).then_some(values.evaluation.interval),
            metrics: values.metrics.clone(),
        }
    }

    /// Returns true if the step count alone says that a checkpoint is saved after `step` of `total`.
    pub fn saves_after(&self, step: u64, total: u64) -> bool {
        is_due(self.save_period.steps(), step, total) || self.kept_steps.contains(&step)
    }

    /// Returns true if a checkpoint after `step` of `total` includes the optimizer's state. `goes_on` is true
    /// if a resume will continue from there, whatever the interval says.
    pub fn saves_state_after(&self, step: u64, total: u64, goes_on: bool) -> bool {
        match self.checkpoint.weights_only {
            WeightsOnly::None => true,
            WeightsOnly::Kept => goes_on || is_due(self.save_period.steps(), step, total),
            WeightsOnly::All => false,
        }
    }

    /// Returns true if the step counts say that a checkpoint is saved before the last of `total` steps.
    pub fn saves_before_end(&self, total: u64) -> bool {
        let interval = self.save_period.steps() as u64;
        self.checkpoint.keep > 0
            && (self.checkpoint.keep_best
                || (1..total).contains(&interval)
                || self.staying(total).any(|step| step < total))
    }

    /// Returns how many checkpoints a run of `steps` steps writes, if all of it takes `seconds`.
    pub fn checkpoints(&self, steps: u64, seconds: f64) -> u64 {
        if self.checkpoint.keep == 0 {
            return 0;
        }
        let interval = self.save_period.steps();
        let further = self.staying(steps).filter(|&step| !is_due(interval, step, steps)).count();
        self.save_period.times_due(0, steps, seconds).saturating_add(further as u64)
    }

    /// Returns the steps of a run of `steps` steps whose checkpoints are kept besides the newest.
    pub fn staying(&self, steps: u64) -> impl Iterator<Item = u64> + '_ {
        self.kept_steps.iter().copied().filter(move |&step| step > 0 && step <= steps)
    }
}

/// Returns the steps whose checkpoints are kept, in order: the named ones, and the ones spaced by a ratio, up
/// to the last step.
fn kept_steps(checkpoint: &Checkpoint, total: u64) -> Vec<u64> {
    let mut steps: Vec<u64> = checkpoint.steps.iter().flatten().map(|&step| step as u64).collect();
    if let Some(ratio) = checkpoint.log_spacing {
        let powers = std::iter::successors(Some(1.0f64), |power| Some(power * ratio));
        steps.extend(powers.map(|power| power.round() as u64).take_while(|&step| step <= total));
    }
    steps.sort_unstable();
    steps.dedup();
    steps
}

#[cfg(test)]
mod tests {
    use super::{Intervals, Period, is_due, kept_steps, times_due};
    use crate::policy::WeightsOnly;
    use crate::recipe::{Checkpoint, Values};
    use std::time::Duration;

    #[test]
    fn events_are_counted_with_the_one_at_the_end() {
        assert_eq!(times_due(0, 0, 100), 1);
        assert_eq!(times_due(50, 0, 100), 2);
        assert_eq!(times_due(50, 0, 101), 3);
        assert_eq!(times_due(50, 50, 101), 2);
        assert_eq!(times_due(50, 99, 101), 2);
        assert_eq!(times_due(7, 100, 100), 0);
    }

    #[test]
    fn as_many_events_are_counted_as_are_due() {
        for (interval, total) in [(0, 1), (0, 100), (1, 7), (50, 100), (50, 101), (7, 100), (101, 100)] {
            for step in 0..=total {
                let due = (step + 1..=total).filter(|&later| is_due(interval, later, total)).count() as u64;
                assert_eq!(times_due(interval, step, total), due, "{interval} {step} {total}");
            }
        }
    }

    #[test]
    fn checkpoints_of_steps_are_counted_once() {
        let values = Values::default();
        let plain = Intervals::from_values(&values);
        let intervals = |interval| Intervals {
            save_period: Period::Steps(interval),
            kept_steps: vec![20, 25, 100, 300],
            ..plain.clone()
        };
        assert_eq!(intervals(0).checkpoints(100, 0.0), 3);
        assert_eq!(intervals(10).checkpoints(100, 0.0), 11);
        let mut none = intervals(10);
        none.checkpoint.keep = 0;
        assert_eq!(none.checkpoints(100, 0.0), 0);
        let saved: Vec<u64> = (1..=100).filter(|&step| intervals(50).saves_after(step, 100)).collect();
        assert_eq!(saved, [20, 25, 50, 100]);
    }

    #[test]
    fn log_spaced_steps_are_powers_of_the_ratio_without_repetitions() {
        let checkpoint =
            |log_spacing, steps| Checkpoint { log_spacing, steps, ..Values::default().checkpoint };
        assert_eq!(kept_steps(&checkpoint(Some(2.0), None), 100), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(kept_steps(&checkpoint(Some(1.5), None), 12), [1, 2, 3, 5, 8, 11]);
        assert_eq!(kept_steps(&checkpoint(Some(10.0), Some(vec![50, 10])), 100), [1, 10, 50, 100]);
        let dense = kept_steps(&checkpoint(Some(1.01), None), 3);
        assert_eq!(dense, [1, 2, 3]);
    }

    #[test]
    fn what_a_resume_may_need_has_the_state_of_the_optimizer() {
        let plain = Intervals::from_values(&Values::default());
        let of = |weights_only| Intervals {
            checkpoint: Checkpoint { weights_only, ..plain.checkpoint.clone() },
            save_period: Period::Steps(10),
            ..plain.clone()
        };
        assert!(of(WeightsOnly::None).saves_state_after(3, 15, false));
        let kept = of(WeightsOnly::Kept);
        let whole: Vec<u64> = (1..=15).filter(|&step| kept.saves_state_after(step, 15, false)).collect();
        assert_eq!(whole, [10, 15]);
        assert!(kept.saves_state_after(3, 15, true));
        assert!(!of(WeightsOnly::All).saves_state_after(10, 15, true));
    }

    #[test]
    fn saves_before_end_leave_out_the_last_step() {
        let plain = Intervals { save_period: Period::Steps(0), ..Intervals::from_values(&Values::default()) };
        assert!(!plain.saves_before_end(10));
        for (interval, steps, on_the_way) in
            [(10, vec![], false), (9, vec![], true), (0, vec![10, 11], false), (0, vec![9], true)]
        {
            let intervals =
                Intervals { save_period: Period::Steps(interval), kept_steps: steps, ..plain.clone() };
            assert_eq!(intervals.saves_before_end(10), on_the_way, "{intervals:?}");
        }
        let none = Checkpoint { keep: 0, keep_best: true, ..plain.checkpoint.clone() };
        assert!(!Intervals { checkpoint: none, ..plain }.saves_before_end(10));
    }

    #[test]
    fn checkpoints_by_time_are_counted_with_the_one_at_the_end() {
        let every_minute = Period::Time(Duration::from_secs(60));
        assert_eq!(every_minute.times_due(0, 100, 30.0), 1);
        assert_eq!(every_minute.times_due(0, 100, 200.0), 4);
        assert_eq!(every_minute.times_due(100, 100, 0.0), 0);
        assert_eq!(Period::Steps(50).times_due(0, 101, 1e9), 3);
    }
}
