//! Plans: a recipe with every number derived and checked, the only thing that the engine sees.

mod corpus;
mod devices;
mod resolve;
mod schedule;

pub use corpus::{corpus_of, data_spec};
pub use schedule::Schedule;

use crate::device::{DType, Precision};
use crate::policy::{Attention, Placement, Recompute, Reduction};

/// Dimensions that products like are multiples of this; vocabulary and FFN width are padded to it in memory.
pub const PADDING: usize = 64;

/// What is known of the corpus before it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Corpus {
    /// Entries of the tokenizer.
    pub vocab_size: usize,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// Whether that is a count rather than an estimate.
    pub exact: bool,
    /// Tokens held out.
    pub validation_tokens: usize,
    /// The lowest loss that any model can reach on the held-out tokens, in nats per token, where it is known.
    pub floor: Option<f64>,
}

/// The model's dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Entries of the tokenizer.
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
    /// Probability of dropping, everywhere.
    pub dropout: f64,
    /// Whether queries and keys are normalized per head.
    pub qk_norm: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in norms.
    pub norm_eps: f64,
    /// Whether the head is the embedding.
    pub tie_embeddings: bool,
}

impl Model {
    /// The vocabulary in memory.
    pub fn padded_vocab(&self) -> usize {
        self.vocab_size.next_multiple_of(PADDING)
    }

    /// The FFN width in memory.
    pub fn padded_ffn(&self) -> usize {
        self.ffn_dim.next_multiple_of(PADDING)
    }

    /// Width of a row of queries, keys and values.
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

/// What stays the same when the number of ranks changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// The batch per rank: more ranks, a larger global batch.
    Weak,
    /// The global batch.
    Strong,
}

/// Sequences per step, and how they are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Ranks.
    pub world: usize,
    /// Sequences per rank and micro-step, as the recipe says.
    pub local: usize,
    /// Micro-steps per step, as the recipe says.
    pub accumulation: usize,
    /// Sequences per step over all ranks.
    pub global: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// What stays when the world changes.
    pub scaling: Scaling,
    /// Sequences that one program handles: `local`, or 1 when batching is looped.
    pub micro: usize,
    /// How often the program runs per step.
    pub micro_steps: usize,
}

impl Batch {
    /// Tokens per step over all ranks.
    pub fn tokens_per_step(&self) -> usize {
        self.global * self.seq_len
    }

    /// Rows of one program.
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

/// How the step is executed. All but `tf32` and `communicate` leave the curve as it is, up to rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// The GPU of the first rank of this machine; `None`: all ranks run on the CPU.
    pub gpu: Option<usize>,
    /// The GPUs of the ranks after it.
    pub peers: Vec<usize>,
    /// Worker threads of the CPU.
    pub threads: usize,
    /// Whether fp32 products run on tensor cores with their inputs rounded to TF32.
    pub tf32: bool,
    /// Where transient tensors lie.
    pub placement: Placement,
    /// On a GPU, replay steps as CUDA graphs.
    pub cuda_graphs: bool,
    /// Fill dead memory with NaN.
    pub poison: bool,
    /// Fused ops, or their smaller parts.
    pub fused: bool,
    /// How attention is computed.
    pub attention: Attention,
    /// What runs again instead of being kept.
    pub recompute: Recompute,
    /// Smallest size of a gradient bucket in bytes; 0: one per parameter.
    pub bucket_bytes: usize,
    /// How gradients are reduced.
    pub reduction: Reduction,
    /// Reduce gradients while backward goes on.
    pub overlap: bool,
    /// Whether ranks may exchange the gradient of the embedding by its rows.
    pub embedding_exchange: bool,
    /// Blocks of a GPU that take part in a collective; `None` leaves it to NCCL.
    pub channels: Option<usize>,
    /// Whether gradients are reduced at all.
    pub communicate: bool,
    /// Most bytes that the engine may hold.
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

/// How often things happen besides steps, in steps; of those that are intervals, 0 means only at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Evaluation.
    pub validation: usize,
    /// Batches per evaluation; 0: the whole held-out set.
    pub validation_steps: usize,
    /// Checkpoints.
    pub checkpoint: usize,
    /// Checkpoints kept.
    pub keep: usize,
    /// Samples.
    pub generation: usize,
    /// Comparison of the replicas of all ranks.
    pub check: usize,
    /// Progress; rows are written every step.
    pub metrics: usize,
    /// Steps that never count as steady state.
    pub warmup: usize,
}

/// Text that the model writes during and after training.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Texts.
    pub samples: usize,
    /// Tokens of each, after the prompt.
    pub tokens: usize,
    /// What they begin with.
    pub prompt: String,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

/// How a token is chosen from logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides logits; 0 takes the likeliest.
    pub temperature: f64,
    /// Likeliest tokens considered; 0: all.
    pub top_k: usize,
    /// Probability mass considered; 1: all.
    pub top_p: f64,
    /// Seed of the draws.
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
    /// Formats.
    pub precision: Precision,
    /// Whether tokens see other documents of their window.
    pub cross_documents: bool,
    /// Update rule.
    pub optimizer: AdamW,
    /// Learning rate.
    pub schedule: Schedule,
    /// How it is executed.
    pub execution: Execution,
    /// When things happen.
    pub intervals: Intervals,
    /// Samples.
    pub generation: Generation,
    /// The corpus.
    pub corpus: Corpus,
}

impl Plan {
    /// The format of activations.
    pub fn stream(&self) -> DType {
        self.precision.stream
    }

    /// Whether ranks exchange gradients, and so hold the same parameters.
    pub fn exchanges(&self) -> bool {
        self.batch.world > 1 && self.execution.communicate
    }

    /// How often the corpus is passed over.
    pub fn passes(&self) -> f64 {
        self.steps as f64 * self.batch.tokens_per_step() as f64 / self.corpus.train_tokens.max(1) as f64
    }
}
