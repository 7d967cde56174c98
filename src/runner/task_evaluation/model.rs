//! The model of an evaluation, as its files describe it.

use serde::{Deserialize, Serialize};

/// What scores depend on, apart from what is scored: the model, and how it is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoredModel {
    /// The run, or the folder's name.
    pub name: String,
    /// The step whose weights are scored; `None` for a folder.
    pub step: Option<u64>,
    /// Which weights: `training`, `ema`, or `published` for those of a folder.
    pub weights: String,
    /// The hash of the checkpoint, or of the folder's weights and configuration. `None` inside a run, which
    /// also scores weights that no checkpoint holds.
    pub hash: Option<String>,
    /// The hash of the tokenizer.
    pub tokenizer: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Format of activations and products: `fp32`, `tf32` or `bf16`.
    pub dtype: String,
    /// `cpu`, or the name of the GPU.
    pub device: String,
    /// The most tokens that the model reads at once.
    pub context: usize,
    /// Tokens in a batch of the program: rows of attention, and tokens in each.
    pub batch: [usize; 2],
    /// The version of xrun.
    pub xrun_version: String,
}
