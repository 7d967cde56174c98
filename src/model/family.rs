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

/// An architecture: its parameters, the recording of its forward, its cost, and its form for HuggingFace.
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

    /// Records the forward of one token per sequence, into the state's `generation.logits`.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    fn logits(&self, plan: &Plan, b: &mut Builder) -> Result<()>;

    /// Returns the model FLOPs of a token, forward and backward, in sequences of `seq_len`: 6 per weight of
    /// every product, and attention with its causal half counted once. Recomputed work does not count.
    fn flops_per_token(&self, model: &Model, seq_len: usize) -> Formula;

    /// Returns the form of the model that HuggingFace's transformers loads.
    ///
    /// # Errors
    /// A usage error if HuggingFace's class of this architecture cannot express the model.
    fn hugging_face(&self, model: &Model, facts: &HfFacts) -> Result<HfModel>;
}

/// Facts of an exported model besides its dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfFacts {
    /// Element type of the weights, as `torch_dtype` spells it.
    pub torch_dtype: &'static str,
    /// Length of the longest sequence that the model was trained on, in tokens.
    pub seq_len: usize,
    /// Token that ends a document; it also starts generation from nothing.
    pub end_token_id: u32,
}

/// A model as HuggingFace's transformers loads it.
#[derive(Clone, Debug)]
pub struct HfModel {
    /// Name of the architecture, for messages.
    pub architecture: &'static str,
    /// Content of `config.json`.
    pub config: serde_json::Value,
    /// Every tensor, in the order in which the file has them.
    pub tensors: Vec<HfTensor>,
}

/// One HuggingFace tensor: a range of rows of one of xrun's parameters, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfTensor {
    /// Its name in the file.
    pub name: String,
    /// Shape in the file; the product of all but the first dimension is one row.
    pub shape: Vec<usize>,
    /// Name of the parameter.
    pub source: String,
    /// Shape of the parameter.
    pub source_shape: Vec<usize>,
    /// Rows of the parameter before it, where a row is as wide as one of `shape`.
    pub first_row: usize,
}

impl HfTensor {
    /// Creates a whole parameter under another name.
    pub fn whole(name: impl Into<String>, source: impl Into<String>, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            source: source.into(),
            source_shape: shape.to_vec(),
            first_row: 0,
        }
    }

    /// Returns the rows `first_row..first_row + rows` of a parameter of shape `source_shape`.
    pub fn rows_of(
        name: impl Into<String>,
        source: impl Into<String>,
        source_shape: &[usize],
        (rows, width): (usize, usize),
        first_row: usize,
    ) -> Self {
        let source_shape = source_shape.to_vec();
        Self { source_shape, first_row, ..Self::whole(name, source, &[rows, width]) }
    }
}
