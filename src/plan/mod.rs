//! Plans: a recipe with every number derived and checked. The engine sees the plan alone.

mod corpus;
mod devices;
mod resolve;
mod schedule;

pub use corpus::{corpus_of, data_spec};
pub use schedule::Schedule;

use crate::device::{DType, Precision};
use crate::policy::{Attention, Placement, Recompute, Reduction};

/// Matrix products are fastest on multiples of this; vocabulary and FFN width are padded to it in memory.
pub const PADDING: usize = 64;

/// Facts about the corpus that are known before it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Corpus {
    /// Vocabulary size of the tokenizer.
    pub vocab_size: usize,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// True if that is a count, false if it is an estimate.
    pub exact: bool,
    /// Tokens held out.
    pub validation_tokens: usize,
    /// The lowest loss that any model can reach on the held-out tokens, in nats per token, where it is known.
    pub floor: Option<f64>,
}

/// The model's dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Vocabulary size of the tokenizer.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the gated feed-forward layer.
    pub ffn_dim: usize,
    /// Dropout probability, the same at every site.
    pub dropout: f64,
    /// Normalize queries and keys per head.
    pub qk_norm: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in norms.
    pub norm_eps: f64,
    /// Use the embedding matrix as the head.
    pub tie_embeddings: bool,
}

impl Model {
    /// Returns the vocabulary size in memory, with padding.
    pub fn padded_vocab(&self) -> usize {
        self.vocab_size.next_multiple_of(PADDING)
    }

    /// Returns the FFN width in memory, with padding.
    pub fn padded_ffn(&self) -> usize {
        self.ffn_dim.next_multiple_of(PADDING)
    }

    /// Returns the width of a packed row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Model FLOPs per token, forward and backward: 6 per weight of every product, and attention with its causal half
    /// counted once: `6·(L·(2·d·(h+kv)·hd + 3·d·ffn) + V·d) + 6·L·h·hd·T`.
    pub fn flops_per_token(&self, seq_len: usize) -> f64 {
        let f = |x: usize| x as f64;
        let (l, d, hd) = (f(self.n_layers), f(self.dim), f(self.head_dim));
        let per_layer = 2.0 * d * f(self.n_heads + self.n_kv_heads) * hd + 3.0 * d * f(self.ffn_dim);
        6.0 * (l * per_layer + f(self.vocab_size) * d) + 6.0 * l * f(self.n_heads) * hd * f(seq_len)
    }
}

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
pub struct Batch {
    /// Number of ranks.
    pub world: usize,
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

impl Batch {
    /// Returns the tokens per step over all ranks.
    pub fn tokens_per_step(&self) -> usize {
        self.global * self.seq_len
    }

    /// Returns the rows (sequences · tokens) of one execution of the program.
    pub fn rows(&self) -> usize {
        self.micro * self.seq_len
    }
}

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

/// Execution of a step. All but `tf32` and `communicate` leave the curve as it is, up to rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// The GPU of the first rank of this machine; `None`: all ranks run on the CPU.
    pub gpu: Option<usize>,
    /// The GPUs of the ranks after it.
    pub peers: Vec<usize>,
    /// Worker threads of the CPU.
    pub threads: usize,
    /// Run fp32 products on tensor cores, with their inputs rounded to TF32.
    pub tf32: bool,
    /// Memory of transient tensors.
    pub placement: Placement,
    /// On a GPU, replay steps as CUDA graphs.
    pub cuda_graphs: bool,
    /// Fill dead memory with NaN.
    pub poison: bool,
    /// Run fused ops; false expands them into smaller ones.
    pub fused: bool,
    /// Implementation of attention.
    pub attention: Attention,
    /// Activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// Smallest size of a gradient bucket in bytes; 0: one per parameter.
    pub bucket_bytes: usize,
    /// Reduction of gradients over ranks.
    pub reduction: Reduction,
    /// Reduce gradients while the backward pass still runs.
    pub overlap: bool,
    /// Let ranks exchange only the rows of the embedding's gradient that batches touch.
    pub embedding_exchange: bool,
    /// Thread blocks of a GPU that take part in a collective; `None` leaves it to NCCL.
    pub channels: Option<usize>,
    /// Reduce gradients over ranks.
    pub communicate: bool,
    /// Memory limit of the engine, in bytes.
    pub memory_limit: Option<usize>,
}

impl Execution {
    /// The GPUs of this machine's ranks, in the order of ranks; none: the CPU.
    pub fn gpus(&self) -> impl Iterator<Item = usize> + '_ {
        self.gpu.into_iter().chain(self.peers.iter().copied())
    }

    /// The GPU of a rank, counted from 0 on this machine; `None` is the CPU.
    pub fn gpu_of(&self, local_rank: usize) -> Option<usize> {
        self.gpus().nth(local_rank)
    }
}

/// Steps between events of a run; an interval of 0 means only at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Steps between evaluations.
    pub validation: usize,
    /// Batches per evaluation; 0: the whole held-out set.
    pub validation_steps: usize,
    /// Steps between checkpoints.
    pub checkpoint: usize,
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
