//! Plans: a recipe with every number derived and checked. The engine sees the plan alone.

mod batch;
mod corpus;
mod devices;
mod events;
mod execution;
mod model;
mod resolve;
mod schedule;

pub use batch::{Batch, Scaling};
pub use corpus::{Corpus, corpus_of, data_spec};
pub use events::{Generation, Intervals, Sampling};
pub use execution::Execution;
pub use model::{Model, PADDING};
pub use schedule::Schedule;

use crate::device::{DType, Precision};

/// The update rule's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 does not clip.
    pub max_norm: f64,
}

/// A recipe with every number derived and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The recipe's name.
    pub name: String,
    /// Dimensions.
    pub model: Model,
    /// Sequences per step.
    pub batch: Batch,
    /// Optimizer steps.
    pub steps: usize,
    /// Seed of initialization, order of data and dropout.
    pub seed: u64,
    /// Number formats.
    pub precision: Precision,
    /// Let tokens attend to other documents of their window.
    pub cross_documents: bool,
    /// Update rule.
    pub optimizer: AdamW,
    /// Learning rate.
    pub schedule: Schedule,
    /// Execution of a step.
    pub execution: Execution,
    /// Steps between events.
    pub intervals: Intervals,
    /// Samples.
    pub generation: Generation,
    /// The corpus.
    pub corpus: Corpus,
}

impl Plan {
    /// Returns the format of activations.
    pub fn stream(&self) -> DType {
        self.precision.stream
    }

    /// Returns true if ranks exchange gradients, and so hold the same parameters.
    pub fn exchanges(&self) -> bool {
        self.batch.world > 1 && self.execution.communicate
    }

    /// Returns the number of passes over the corpus.
    pub fn passes(&self) -> f64 {
        self.steps as f64 * self.batch.tokens_per_step() as f64 / self.corpus.train_tokens.max(1) as f64
    }
}
