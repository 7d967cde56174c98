//! Sequences per step, and how they are split.

use crate::error::Result;
use crate::policy::Batching;
use crate::recipe::Recipe;

/// The batch size that stays the same when the number of ranks changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Weak scaling: the batch per rank stays, so more ranks make a larger global batch.
    Weak,
    /// Strong scaling: the global batch stays.
    Strong,
}

/// Sequences per step, and how they are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Number of ranks.
    pub world_size: usize,
    /// Sequences per rank and micro-step, as the recipe says.
    pub local: usize,
    /// Micro-steps per step, as the recipe says.
    pub accumulation: usize,
    /// Sequences per step over all ranks.
    pub global: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// The batch size that stays when the number of ranks changes.
    pub scaling: Scaling,
    /// Sequences per execution of the program: `local`, or 1 when batching is looped.
    pub micro: usize,
    /// Executions of the program per step.
    pub micro_steps: usize,
}

impl BatchPlan {
    /// Returns the batch of a recipe, split over ranks and micro-steps.
    ///
    /// # Errors
    /// As [`Recipe::batch`].
    pub(super) fn from_recipe(recipe: &Recipe) -> Result<Self> {
        let training = &recipe.values().training;
        let split = recipe.batch()?;
        let looped = recipe.values().engine.batching == Batching::Looped;
        let (micro, micro_steps) =
            if looped { (1, split.local * split.accumulation) } else { (split.local, split.accumulation) };
        Ok(Self {
            world_size: recipe.world_size(),
            local: split.local,
            accumulation: split.accumulation,
            global: split.global,
            seq_len: training.seq_len,
            scaling: if training.global_batch_size.is_some() { Scaling::Strong } else { Scaling::Weak },
            micro,
            micro_steps,
        })
    }

    /// Returns the tokens per step over all ranks.
    pub fn tokens_per_step(&self) -> usize {
        self.global * self.seq_len
    }

    /// Returns the rows (sequences · tokens) of one execution of the program.
    pub fn rows(&self) -> usize {
        self.micro * self.seq_len
    }
}
