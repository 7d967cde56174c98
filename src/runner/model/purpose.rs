//! What a model is recorded for, and what a recording gives.

use crate::ir::{PromptSlot, SlotName, TensorId};

/// Purpose of a recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Loss and gradients, with dropout. The first micro-step of a step overwrites gradients, the others add.
    Train {
        /// True for the first micro-step of a step.
        first: bool,
    },
    /// Loss only, without dropout.
    Evaluate,
    /// Logits of the next token: one token per sequence, keys and values from a cache.
    Generate,
    /// Logits of the token after each prompt: whole prompts, whose keys and values go into the cache.
    Prefill(PromptShape),
}

/// The prompts that one program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptShape {
    /// Number of prompts. They share the samples evenly: those of one are neighbours.
    pub prompts: usize,
    /// Rows of each. A shorter prompt is padded at its end, which nothing before that reads.
    pub rows: usize,
}

impl PromptShape {
    /// Returns the slot of an input of these prompts. Every shape has one, all over the same memory.
    pub fn slot(self, input: PromptSlot) -> SlotName {
        SlotName::PromptsOf(input, [self.prompts, self.rows])
    }
}

/// A kind of activation that models of every width have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActivationKind {
    /// The first rows of the residual stream.
    Embedding,
    /// What attention adds to the residual stream, of every block.
    Attention,
    /// What the feed-forward layer adds to it, of every block.
    FeedForward,
    /// The residual stream after the last block.
    Residual,
    /// The products of the head, which [`Model::logit`](crate::plan::Model::logit) makes logits.
    HeadProducts,
}

impl ActivationKind {
    /// Returns its name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Attention => "attention",
            Self::FeedForward => "feed-forward",
            Self::Residual => "residual",
            Self::HeadProducts => "logits",
        }
    }
}

/// The losses of every row, tensors `[rows]` in nats. Gradients are those of the sum of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Losses {
    /// Cross-entropy, which is all that evaluation has.
    pub losses: TensorId,
    /// Z-losses with their factor, where the objective has them.
    pub z_losses: Option<TensorId>,
    /// What label smoothing adds to the cross-entropy, where the objective has it.
    pub smoothing_losses: Option<TensorId>,
}
