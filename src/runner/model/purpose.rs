//! What a model is recorded for, and the result of a recording.

use crate::ir::{PromptSlot, SlotName, TensorId};
use crate::ops::attention::Mask;

/// Purpose of a recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Loss and gradients, with dropout. The first micro-step of a step overwrites gradients; the others add
    /// to them.
    Train {
        /// True for the first micro-step of a step.
        first: bool,
    },
    /// Loss only, without dropout.
    Evaluate,
    /// Log-probabilities of tokens in sequences that share rows of attention, with this mask.
    Score(Mask),
    /// Logits of the next token: one token per sequence, with keys and values from a cache.
    Generate,
    /// Logits of the token after each prompt: processes whole prompts and fills the cache with their keys and
    /// values.
    Prefill(PromptShape),
}

/// The prompts that one program processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptShape {
    /// Number of prompts. They share the samples evenly; the samples of one prompt are adjacent.
    pub prompts: usize,
    /// Rows per prompt. A shorter prompt is padded at its end, which earlier rows never read.
    pub rows: usize,
}

impl PromptShape {
    /// Returns the slot of an input of these prompts. Every shape has its own slot, and all of them overlap
    /// in memory.
    pub fn slot(self, input: PromptSlot) -> SlotName {
        SlotName::PromptsPrefix(input, [self.prompts, self.rows])
    }
}

/// A kind of activation that models of every width have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActivationKind {
    /// The first rows of the residual stream.
    Embedding,
    /// The attention output of every block, before it is added to the residual stream.
    Attention,
    /// The feed-forward output of every block, before it is added to the residual stream.
    FeedForward,
    /// The residual stream after the last block.
    Residual,
    /// The products of the head, which [`Head::logit`](crate::model::Head::logit) turns into logits.
    HeadProducts,
}

impl ActivationKind {
    /// Returns the name of the kind in files and tables.
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

/// What is computed of `P` pairs of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// Their losses, `[P]`.
    pub losses: TensorId,
    /// The factors of the losses of all rows in the objective, `[rows]`.
    pub factors: TensorId,
    /// The rewards of the chosen answers, then of the rejected ones, `[2P]`.
    pub rewards: TensorId,
    /// 1 where the chosen answer has the higher reward, `[P]`.
    pub correct: TensorId,
}

/// The losses of all rows, as tensors `[rows]` in nats. Gradients are taken of the sum of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Losses {
    /// Cross-entropy, the only loss in evaluations.
    pub losses: TensorId,
    /// Z-losses with their factor, if the objective has them.
    pub z_losses: Option<TensorId>,
    /// The loss that label smoothing adds to the cross-entropy, if the objective has it.
    pub smoothing_losses: Option<TensorId>,
    /// What is computed of pairs of answers, in training on them.
    pub pairs: Option<Pairs>,
}
