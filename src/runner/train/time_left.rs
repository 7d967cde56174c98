//! Estimates the time until a run ends: its steps, and the pauses between them.

use crate::data::Ramp;
use crate::error::Result;
use crate::plan::{Generation, Intervals, Period, Plan, is_due};
use crate::recipe::Recipe;
use crate::results::{Phase, TimingRow};

/// Evaluating a batch takes about a third of training on it: it runs the forward without the backward.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// Something other than a step that a run does, such as an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pause {
    /// Phase of the pause: evaluation, save or samples.
    phase: Phase,
    /// How often the pause comes.
    every: Period,
    /// Expected duration in training steps, until one was measured.
    expected_steps: f64,
    /// How many seconds the last one took.
    last_s: Option<f64>,
}

impl Pause {
    fn new(phase: Phase, every: Period, expected_steps: f64) -> Self {
        Self { phase, every, expected_steps, last_s: None }
    }
}

/// How many training steps pauses are expected to take; 0 if that is not known.
#[derive(Clone, Copy, Debug, Default)]
struct ExpectedSteps {
    /// An evaluation on held-out text.
    evaluation: f64,
    /// Scores on all tasks.
    scores: f64,
}

/// Minimum weight of the newest step in the mean step time.
const STEP_WEIGHT: f64 = 0.1;

/// Estimates the time that a run still needs.
#[derive(Clone, Debug)]
pub struct TimeLeft {
    total_steps: u64,
    /// Batch sizes of the first steps, and the sequences of a full step. A step takes time in proportion to
    /// its sequences.
    ramp: Ramp,
    sequences: u64,
    /// Smoothed time of a full step in seconds, and the number of steps in it.
    step: Option<(f64, f64)>,
    pauses: Vec<Pause>,
    /// Steps with a save that no interval asks for.
    kept_steps: Vec<u64>,
    warming_up: bool,
}

impl TimeLeft {
    /// Creates the estimate for a plan.
    pub(super) fn new(plan: &Plan) -> Self {
        let batches = plan.evaluated_weight_sets() * plan.total_evaluated_batches();
        let batch = (plan.batch.ramp.clone(), plan.batch.global as u64);
        let evaluation = batches as f64 * FORWARD_SHARE;
        let task_tokens = (plan.evaluated_weight_sets() * plan.task_tokens()) as f64;
        let scores = task_tokens / plan.batch.tokens_per_step() as f64 * FORWARD_SHARE;
        let expected = ExpectedSteps { evaluation, scores };
        Self::with_events(plan.steps as u64, &plan.intervals, &plan.generation, batch, expected)
    }

    /// Creates the estimate for a run of this recipe with `steps` steps, whose rows must be passed to
    /// [`TimeLeft::add`]. The cost of an evaluation depends on the corpus or on the tasks, so evaluations
    /// count only once one was timed.
    ///
    /// # Errors
    /// Fails like [`Recipe::batch`].
    pub fn from_recipe(recipe: &Recipe, steps: u64) -> Result<Self> {
        let values = recipe.values();
        let ramp = values.training.batch_ramp.iter().map(|&[end, sequences]| (end as u64, sequences as u64));
        let batch = (Ramp::new(ramp), recipe.batch()?.global as u64);
        Ok(Self::with_events(
            steps,
            &Intervals::from_values(values),
            &values.generation,
            batch,
            ExpectedSteps::default(),
        ))
    }

    /// Adds the time of a row.
    pub fn add(&mut self, row: &TimingRow) {
        match row.phase.is_step() {
            true => self.trained(row.step, row.phase, row.step_ms / 1e3),
            false => self.took(row.phase, row.step_ms / 1e3),
        }
    }

    /// Creates the estimate for `steps` steps with these events between them.
    fn with_events(
        steps: u64,
        intervals: &Intervals,
        generation: &Generation,
        (ramp, sequences): (Ramp, u64),
        expected: ExpectedSteps,
    ) -> Self {
        let every = Period::Steps(intervals.validation.interval);
        let mut pauses = vec![Pause::new(Phase::Eval, every, expected.evaluation)];
        let scores = |interval| Pause::new(Phase::Tasks, Period::Steps(interval), expected.scores);
        pauses.extend(intervals.tasks.map(scores));
        if intervals.checkpoint.keep > 0 {
            pauses.push(Pause::new(Phase::Save, intervals.save_period, 0.0));
        }
        if generation.samples > 0 {
            pauses.push(Pause::new(Phase::Sample, Period::Steps(generation.interval), 0.0));
        }
        let interval = intervals.save_period.steps();
        let kept_steps = intervals.staying(steps).filter(|&step| !is_due(interval, step, steps)).collect();
        Self { total_steps: steps, ramp, sequences, step: None, pauses, kept_steps, warming_up: true }
    }

    /// Adds the time of a step; `step` counts from 1.
    pub(super) fn trained(&mut self, step: u64, phase: Phase, seconds: f64) {
        let share =
            self.ramp.sequences(step.saturating_sub(1), self.sequences) as f64 / self.sequences as f64;
        self.took(phase, seconds / share);
    }

    /// Adds the time of a full step, an evaluation, a save or another phase.
    pub(super) fn took(&mut self, phase: Phase, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        // A save beside training only pauses training while the state is copied.
        let phase = if phase == Phase::Snapshot { Phase::Save } else { phase };
        match phase {
            Phase::Warmup => self.step = Some((seconds, 1.0)),
            Phase::Train => {
                // Warm-up steps are slower, so the first step after them replaces their time.
                let before = self.step.filter(|_| !self.warming_up);
                self.warming_up = false;
                let (mean, count) = before.unwrap_or((seconds, 0.0));
                let weight = (1.0 / (count + 1.0)).max(STEP_WEIGHT);
                self.step = Some((mean + weight * (seconds - mean), count + 1.0));
            }
            _ => {
                if let Some(pause) = self.pauses.iter_mut().find(|pause| pause.phase == phase) {
                    pause.last_s = Some(seconds);
                }
            }
        }
    }

    /// Returns the smoothed seconds of a full step; `None` before the first step.
    pub(super) fn step_seconds(&self) -> Option<f64> {
        self.step.map(|(seconds, _)| seconds)
    }

    /// Returns the seconds from the end of `step` and its pauses to the end of the run; `None` before the
    /// first step was timed.
    pub fn after(&self, step: u64) -> Option<f64> {
        let step_s = self.step_seconds()?;
        let before = |steps: u64| self.ramp.before(steps, self.sequences);
        let left = before(self.total_steps).saturating_sub(before(step)) as f64 / self.sequences as f64;
        let mut seconds = left * step_s;
        let by_time = |pause: &&Pause| matches!(pause.every, Period::Time(_));
        // Pauses by time come last, because their number depends on the duration of everything else.
        let (timed, counted): (Vec<&Pause>, Vec<&Pause>) = self.pauses.iter().partition(by_time);
        for pause in counted.into_iter().chain(timed) {
            let each = pause.last_s.unwrap_or(pause.expected_steps * step_s);
            let kept = match pause.phase {
                Phase::Save => self.kept_steps.iter().filter(|&&kept| kept > step).count(),
                _ => 0,
            };
            let due = pause.every.times_due(step, self.total_steps, seconds);
            seconds += (due as f64 + kept as f64) * each;
        }
        Some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn with_pauses(total_steps: u64, pauses: &[Pause]) -> TimeLeft {
        let (pauses, ramp, sequences, kept_steps) = (pauses.to_vec(), Ramp::NONE, 1, Vec::new());
        TimeLeft { total_steps, ramp, sequences, step: None, pauses, kept_steps, warming_up: true }
    }

    #[test]
    fn evaluations_count_as_their_worth_and_then_as_they_were_measured() {
        let mut left = with_pauses(100, &[Pause::new(Phase::Eval, Period::Steps(50), 10.0)]);
        assert_eq!(left.after(0), None);
        left.took(Phase::Warmup, 9.0);
        left.took(Phase::Train, 2.0);
        left.took(Phase::Train, 2.0);
        assert_eq!(left.after(2), Some(98.0 * 2.0 + 2.0 * 20.0));
        left.took(Phase::Eval, 30.0);
        assert_eq!(left.after(50), Some(50.0 * 2.0 + 30.0));
        assert_eq!(left.after(100), Some(0.0));
    }

    #[test]
    fn steps_of_a_ramp_count_as_their_share_of_a_full_one() {
        let none = with_pauses(10, &[Pause::new(Phase::Eval, Period::Steps(0), 2.0)]);
        let mut left = TimeLeft { ramp: Ramp::new([(2, 4), (4, 8)]), sequences: 16, ..none };
        left.trained(1, Phase::Train, 1.0);
        assert_eq!(left.step_seconds(), Some(4.0));
        // A quarter of a step, two halves, six whole ones and an evaluation.
        assert_eq!(left.after(1), Some(4.0 * (0.25 + 1.0 + 6.0 + 2.0)));
        left.trained(5, Phase::Train, 4.0);
        assert_eq!(left.after(5), Some(4.0 * (5.0 + 2.0)));
    }

    #[test]
    fn saves_after_given_steps_are_still_to_come() {
        let pauses = [Pause::new(Phase::Save, Period::Steps(0), 0.0)];
        let mut left = TimeLeft { kept_steps: vec![3, 6], ..with_pauses(10, &pauses) };
        left.trained(1, Phase::Train, 1.0);
        left.took(Phase::Save, 5.0);
        assert_eq!(left.after(1), Some(9.0 + 3.0 * 5.0));
        assert_eq!(left.after(3), Some(7.0 + 2.0 * 5.0));
    }

    #[test]
    fn saves_by_time_happen_during_evaluations_too() {
        let pauses = [
            Pause::new(Phase::Save, Period::Time(Duration::from_secs(60)), 0.0),
            Pause::new(Phase::Eval, Period::Steps(0), 0.0),
        ];
        let mut left = with_pauses(100, &pauses);
        left.took(Phase::Train, 1.0);
        left.took(Phase::Eval, 100.0);
        left.took(Phase::Save, 5.0);
        // 100 s of steps and 100 s of evaluation: three saves on the way and one at the end.
        assert_eq!(left.after(0), Some(200.0 + 4.0 * 5.0));
    }

    #[test]
    fn invalid_times_change_nothing() {
        let mut left = with_pauses(10, &[]);
        for seconds in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            left.took(Phase::Train, seconds);
            assert_eq!(left.step_seconds(), None);
        }
    }
}
