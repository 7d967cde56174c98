//! Model families: everything that the rest of the program needs to know of an architecture.

use super::formula::Formula;
use crate::error::Result;
use crate::ir::ParamRequest;
use crate::ir::{Builder, TensorId};
use crate::plan::{Model, Plan};

/// Purpose of a program that a family records.
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
    /// Returns the name of the slot of an input of prompts: a slot for every shape, all over the same memory.
    pub fn slot(self, name: &str) -> String {
        format!("prompts.{name}.{}x{}", self.prompts, self.rows)
    }
}

/// What an activation is, of which a model of any width has some.
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
    /// The products of the head, which [`Model::logit`] makes logits.
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

/// An architecture: its parameters, the recording of its forward, and its cost.
///
/// The rest of the program never uses names of parameters. It uses roles and blocks ([`crate::ir::Role`]),
/// which [`Family::params`] declares.
pub trait Family: Sync {
    /// Returns the trained tensors in the order in which backward completes their gradients: from the head
    /// back to the embedding.
    fn params(&self, model: &Model) -> Vec<ParamRequest>;

    /// Records the forward up to the losses of every row. In training, the head's gradient and that of the
    /// rows it reads are computed as well.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    fn losses(&self, plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<Losses>;

    /// Records the forward of one token per sequence, or of whole prompts: into the state's
    /// `generation.logits`, and the token that is drawn from them into `generation.tokens`.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    fn logits(&self, plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<()>;

    /// Returns the names of the tensors of an evaluation whose size says whether a parametrization holds at a
    /// width, each with what it is. There may be several of a kind, of the blocks.
    fn activations(&self, model: &Model) -> Vec<(ActivationKind, String)>;

    /// Returns the model FLOPs of a token, forward and backward, in sequences of `seq_len`: 6 per weight of
    /// every product, and attention with its causal half counted once. Recomputed work does not count.
    fn flops_per_token(&self, model: &Model, seq_len: usize) -> Formula;
}
