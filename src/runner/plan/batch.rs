//! Sequences per step, and how they are divided among ranks and micro-steps.

use crate::data::Ramp;
use crate::error::Result;
use crate::policy::Batching;
use crate::recipe::{RAMP_KEYS, Recipe, ramp_fault};
use serde::Serialize;

/// Which batch size stays the same when the number of ranks changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Weak scaling: the batch per rank stays the same, so more ranks make a larger global batch.
    Weak,
    /// Strong scaling: the global batch stays the same.
    Strong,
}

/// Sequences per step, and how they are divided among ranks and micro-steps. Steps count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Number of ranks.
    pub world_size: usize,
    /// Sequences per rank and micro-step, as in the recipe.
    pub local: usize,
    /// Micro-steps per step, as in the recipe.
    pub accumulation: usize,
    /// Sequences per step over all ranks.
    pub global: usize,
    /// Different numbers of sequences in the first steps.
    pub ramp: Ramp,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Which batch size stays the same when the number of ranks changes.
    pub scaling: Scaling,
    /// Sequences per execution of the program: `local`, or 1 if batching is looped.
    pub micro: usize,
    /// Executions of the program per step, after the ramp.
    pub micro_steps: usize,
}

/// Consecutive steps with the same batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Number of steps.
    pub steps: usize,
    /// Sequences per step over all ranks.
    pub sequences: usize,
    /// Executions of the program per step.
    pub micro_steps: usize,
}

/// Micro-steps of a step from which on its length is remarked on.
const MANY_MICRO_STEPS: usize = 1000;

impl BatchPlan {
    /// Returns the batch of a recipe, divided among ranks and micro-steps.
    ///
    /// # Errors
    /// If [`Recipe::batch`] fails, or the ramp does not consist of whole micro-steps.
    pub(super) fn from_recipe(recipe: &Recipe) -> Result<Self> {
        let training = &recipe.values().training;
        let split = recipe.batch()?;
        if let Some((reason, help)) = ramp_fault(training, &split) {
            return Err(recipe.error(&RAMP_KEYS, reason, help));
        }
        let looped = recipe.values().engine.batching == Batching::Looped;
        let (micro, micro_steps) =
            if looped { (1, split.local * split.accumulation) } else { (split.local, split.accumulation) };
        Ok(Self {
            world_size: recipe.world_size(),
            local: split.local,
            accumulation: split.accumulation,
            global: split.global,
            ramp: Ramp::new(
                training.batch_ramp.iter().map(|&[end, sequences]| (end as u64, sequences as u64)),
            ),
            seq_len: training.seq_len,
            scaling: if training.global_batch_size.is_some() { Scaling::Strong } else { Scaling::Weak },
            micro,
            micro_steps,
        })
    }

    /// Returns a sentence if a step has so many micro-steps that nothing is shown for long.
    pub fn remark(&self) -> Option<String> {
        (self.micro_steps >= MANY_MICRO_STEPS).then(|| {
            format!(
                "a step has {} micro-steps of {} sequences, and nothing is shown before the first step ends; a larger \
                 `training.local_batch_size` has fewer",
                self.micro_steps, self.micro
            )
        })
    }

    /// Returns the number of tokens per step over all ranks, after the ramp.
    pub fn tokens_per_step(&self) -> usize {
        self.global * self.seq_len
    }

    /// Returns the number of tokens in `step` over all ranks.
    pub fn tokens_in_step(&self, step: u64) -> usize {
        self.sequences_in_step(step) * self.seq_len
    }

    /// Returns the number of tokens in the first `steps` steps over all ranks.
    pub fn tokens_in_first_steps(&self, steps: u64) -> u64 {
        self.sequences_in_first_steps(steps).wrapping_mul(self.seq_len as u64)
    }

    /// Returns how often the program is executed in `step`.
    pub fn micro_steps_in_step(&self, step: u64) -> usize {
        self.sequences_in_step(step) / self.sequences_per_micro_step()
    }

    /// Divides the first `steps` steps into stages; without a ramp there is only one.
    pub fn stages(&self, steps: usize) -> impl Iterator<Item = Stage> + '_ {
        let stage = |(steps, sequences): (u64, u64)| {
            let (steps, sequences) = (steps as usize, sequences as usize);
            Stage { steps, sequences, micro_steps: sequences / self.sequences_per_micro_step() }
        };
        self.ramp.stages(steps as u64, self.global as u64).map(stage)
    }

    /// Returns the number of sequences in the first `steps` steps over all ranks.
    pub fn sequences_in_first_steps(&self, steps: u64) -> u64 {
        self.ramp.before(steps, self.global as u64)
    }

    /// Returns the rows (sequences · tokens) in one execution of the program.
    pub fn rows(&self) -> usize {
        self.micro * self.seq_len
    }

    fn sequences_in_step(&self, step: u64) -> usize {
        self.ramp.sequences(step.saturating_sub(1), self.global as u64) as usize
    }

    /// Returns the sequences in one execution of the program, over all ranks.
    fn sequences_per_micro_step(&self) -> usize {
        self.micro * self.world_size
    }
}
