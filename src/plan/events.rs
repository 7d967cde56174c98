//! Events of a run besides its steps: evaluation, checkpoints, samples, progress.

use crate::recipe::{self, Values};
use std::time::Duration;

/// When checkpoints are saved besides the one at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointInterval {
    /// Every so many steps; 0: never.
    Steps(usize),
    /// After the first step that ends so long after the last save: rank 0's clock decides for all ranks.
    Time(Duration),
}

impl CheckpointInterval {
    fn from_values(checkpoint: &recipe::Checkpoint) -> Self {
        match checkpoint.interval {
            Some(steps) => Self::Steps(steps),
            None if checkpoint.minutes == 0.0 => Self::Steps(0),
            None => Self::Time(Duration::from_secs_f64(60.0 * checkpoint.minutes)),
        }
    }

    /// Returns the number of steps between checkpoints; 0 where no number of steps decides.
    pub fn steps(self) -> usize {
        match self {
            Self::Steps(steps) => steps,
            Self::Time(_) => 0,
        }
    }
}

/// Returns how often something that is due every `interval` steps, and after the last of `total`, is due
/// after `step`.
pub fn times_due(interval: u64, step: u64, total: u64) -> u64 {
    if step >= total {
        return 0;
    }
    match interval {
        0 => 1,
        interval => total / interval - step / interval + u64::from(!total.is_multiple_of(interval)),
    }
}

/// Steps between events of a run; an interval of 0 means only at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Steps between evaluations.
    pub validation: usize,
    /// Global batches per evaluation, spread over the held-out set; 0: all of it.
    pub validation_steps: usize,
    /// Steps or time between checkpoints.
    pub checkpoint: CheckpointInterval,
    /// Number of newest checkpoints to keep.
    pub keep: usize,
    /// Steps between generations of samples.
    pub generation: usize,
    /// Steps between comparisons of the replicas of all ranks.
    pub check: usize,
    /// Steps between progress lines; `metrics.csv` has a row for every step.
    pub metrics: usize,
    /// First steps, which never count as steady state.
    pub warmup: usize,
}

impl Intervals {
    pub(super) fn from_values(values: &Values) -> Self {
        Self {
            validation: values.validation.interval,
            validation_steps: values.validation.steps,
            checkpoint: CheckpointInterval::from_values(&values.checkpoint),
            keep: values.checkpoint.keep,
            generation: values.generation.interval,
            check: values.parallelism.check_interval,
            metrics: values.metrics.interval,
            warmup: values.metrics.warmup,
        }
    }
}

/// Samples that the model generates during and after training.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Number of samples.
    pub samples: usize,
    /// New tokens per sample.
    pub tokens: usize,
    /// Prompt that every sample continues.
    pub prompt: String,
    /// Sampling of tokens.
    pub sampling: Sampling,
}

impl Generation {
    pub(super) fn from_values(generation: &recipe::Generation) -> Self {
        Self {
            samples: generation.samples,
            tokens: generation.tokens,
            prompt: generation.prompt.clone(),
            sampling: Sampling {
                temperature: generation.temperature,
                top_k: generation.top_k,
                top_p: generation.top_p,
                seed: generation.seed,
            },
        }
    }
}

/// Sampling of a token from logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Number of most likely tokens considered; 0: all.
    pub top_k: usize,
    /// Probability mass considered; 1: all.
    pub top_p: f64,
    /// Seed of the sampling.
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::times_due;

    #[test]
    fn events_are_counted_with_the_one_at_the_end() {
        assert_eq!(times_due(0, 0, 100), 1);
        assert_eq!(times_due(50, 0, 100), 2);
        assert_eq!(times_due(50, 0, 101), 3);
        assert_eq!(times_due(50, 50, 101), 2);
        assert_eq!(times_due(50, 99, 101), 2);
        assert_eq!(times_due(7, 100, 100), 0);
    }
}
