//! Losses over a whole run: the smoothed training loss, and the last and lowest losses of a series.

use crate::statistics::{mean, variance};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The smoothed training loss averages at most this many steps.
const SMOOTHED_STEPS: usize = 50;

/// In a shorter run it averages the last `1 / SMOOTHED_SHARE` of the steps.
const SMOOTHED_DIVISOR: usize = 10;

/// A loss and the step at which it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossAt {
    /// The step after which the loss was measured.
    pub step: u64,
    /// Nats per token.
    pub loss: f32,
}

/// The training loss that results report: the mean over the last `min(50, a tenth of the steps, at least 1)`
/// steps. The steps before a fork count, so a fork and a run from step 0 with the same bits have the same
/// figure. The loss of a single step comes from one batch, so it is noisy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SmoothedLoss {
    /// The mean, in nats per token.
    pub loss: f64,
    /// Sample standard deviation of the averaged losses (divided by their number minus one); `None` for a
    /// single loss.
    pub deviation: Option<f64>,
    /// Number of losses averaged.
    pub steps: u64,
}

impl SmoothedLoss {
    /// Returns how many last steps are averaged in a run of `steps` steps.
    pub fn window(steps: usize) -> usize {
        (steps / SMOOTHED_DIVISOR).clamp(1, SMOOTHED_STEPS)
    }

    /// Returns the smoothed loss, given the losses of all steps in order. Ignores NaN and infinite losses
    /// among the last ones; `None` if no finite loss is left.
    pub fn from_losses(losses: &[f64]) -> Option<Self> {
        Self::after_steps(losses, losses.len())
    }

    /// Returns the smoothed loss after `steps` steps, like [`SmoothedLoss::from_losses`]. Only the losses of
    /// the last steps are given.
    pub fn after_steps(losses: &[f64], steps: usize) -> Option<Self> {
        let count = Self::window(steps);
        let last = &losses[losses.len().saturating_sub(count)..];
        let last: Vec<f64> = last.iter().copied().filter(|loss| loss.is_finite()).collect();
        if last.is_empty() {
            return None;
        }
        let deviation = (last.len() > 1).then(|| variance(&last).sqrt());
        Some(Self { loss: mean(&last), deviation, steps: last.len() as u64 })
    }

    /// Describes which steps were averaged.
    pub fn over(&self) -> String {
        match self.steps {
            1 => "the last step".to_owned(),
            steps => format!("mean of the last {steps} steps"),
        }
    }
}

/// The training losses of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingLosses {
    /// The loss that results report; `None` without a finite loss. Summaries of earlier versions lack it, and
    /// it is derived from the rows.
    pub smoothed: Option<SmoothedLoss>,
    /// The last finite loss of a batch.
    #[serde(rename = "final")]
    pub last: Option<LossAt>,
    /// The lowest loss of a batch.
    pub best: Option<LossAt>,
}

impl TrainingLosses {
    /// Returns the training losses of a run, given the loss of each step in order.
    pub fn from_series(losses: impl IntoIterator<Item = LossAt>) -> Self {
        Self::after(&[], losses)
    }

    /// Returns the training losses of a run, given the loss of each step in order, and the losses of its
    /// parent's last steps before it. Only the smoothed loss covers steps of the parent.
    pub fn after(before: &[Option<f32>], losses: impl IntoIterator<Item = LossAt>) -> Self {
        let losses: Vec<LossAt> = losses.into_iter().collect();
        let Losses { last, best } = Losses::from_series(losses.iter().copied());
        let before = before.iter().map(|loss| loss.map_or(f64::NAN, f64::from));
        let values: Vec<f64> = before.chain(losses.iter().map(|at| f64::from(at.loss))).collect();
        let steps = losses.last().map_or(0, |at| usize::try_from(at.step).unwrap_or(usize::MAX));
        let smoothed = if losses.is_empty() { None } else { SmoothedLoss::after_steps(&values, steps) };
        Self { smoothed, last, best }
    }

    /// Adds the loss of a later step while the run goes on. The smoothed loss is only known at the end.
    pub fn add(&mut self, at: LossAt) {
        let mut losses = Losses { last: self.last, best: self.best };
        losses.add(at);
        *self = Self { smoothed: None, last: losses.last, best: losses.best };
    }
}

/// The part of the held-out text on which a validation loss was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldOutPart {
    /// Batches evaluated, each of the global size, spread evenly over the text.
    pub batches: u64,
    /// Batches in the whole held-out text.
    pub of: u64,
}

impl fmt::Display for HeldOutPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over {} of {} batches", self.batches, self.of)
    }
}

/// The last and the lowest in a series of losses. NaN and infinite losses are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// The last loss; `None` if the series is empty.
    #[serde(rename = "final")]
    pub last: Option<LossAt>,
    /// The lowest loss; of equal ones, the earliest.
    pub best: Option<LossAt>,
}

impl Losses {
    /// Returns the last and the lowest of `losses`, which must be in order of steps.
    pub fn from_series(losses: impl IntoIterator<Item = LossAt>) -> Self {
        let mut series = Self::default();
        losses.into_iter().for_each(|at| series.add(at));
        series
    }

    /// Adds the loss of a later step.
    pub fn add(&mut self, at: LossAt) {
        if at.loss.is_finite() {
            self.last = Some(at);
            self.best = Some(self.best.filter(|best| best.loss <= at.loss).unwrap_or(at));
        }
    }
}

/// A figure of a held-out set and the step at which it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureAt {
    /// The step after which the figure was measured.
    pub step: u64,
    pub value: f32,
}

/// The last and the best in a series of figures. NaN and infinite values are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FigureSeries {
    /// The last figure; `None` if the series is empty.
    #[serde(rename = "final")]
    pub last: Option<FigureAt>,
    /// The best figure; of equal ones, the earliest.
    pub best: Option<FigureAt>,
}

impl FigureSeries {
    /// Adds a figure from a later step.
    pub fn add(&mut self, at: FigureAt, higher_is_better: bool) {
        if !at.value.is_finite() {
            return;
        }
        let beats = |best: FigureAt| {
            if higher_is_better { at.value > best.value } else { at.value < best.value }
        };
        self.last = Some(at);
        if self.best.is_none_or(beats) {
            self.best = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Smooths the losses 1, 2, 3 … of a run with `steps` steps.
    fn smoothed(steps: u32) -> SmoothedLoss {
        SmoothedLoss::from_losses(&(1..=steps).map(f64::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_tenth_of_the_steps_is_averaged_and_fifty_at_most() {
        let of = |steps| (smoothed(steps).steps, smoothed(steps).loss);
        assert_eq!(of(1), (1, 1.0));
        assert_eq!(of(19), (1, 19.0));
        assert_eq!(of(40), (4, 38.5));
        assert_eq!(of(499), (49, 475.0));
        assert_eq!(of(700), (50, 675.5));
        assert_eq!(of(9000).0, 50);
    }

    #[test]
    fn the_best_figure_is_the_earliest_of_the_highest_or_the_lowest() {
        let values = [0.5, 0.25, f32::NAN, 0.5, 0.375];
        for (higher_is_better, step) in [(true, 0), (false, 1)] {
            let mut series = FigureSeries::default();
            for (step, value) in (0..).zip(values) {
                series.add(FigureAt { step, value }, higher_is_better);
            }
            assert_eq!(series.last, Some(FigureAt { step: 4, value: 0.375 }));
            assert_eq!(series.best.unwrap().step, step);
        }
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(smoothed(9).deviation, None);
        // R: sd(c(37, 38, 39, 40)) gives 1.290994.
        assert!((smoothed(40).deviation.unwrap() - 1.290_994_448_735_805_6).abs() < 1e-12);
        let mut losses = vec![2.0; 40];
        losses[39] = f64::NAN;
        let found = SmoothedLoss::from_losses(&losses).unwrap();
        assert_eq!((found.loss, found.deviation, found.steps), (2.0, Some(0.0), 3));
        assert_eq!(SmoothedLoss::from_losses(&[f64::INFINITY]), None);
        assert_eq!(SmoothedLoss::from_losses(&[]), None);
    }
}
