//! A recipe as the rest of the program sees it: one struct per section, one field per key.
//!
//! What a key means to a person, its bounds and its aliases stand in [`super::table`]; a test holds the two together.
//! `Default` is the bottom layer of every recipe.

use super::prediction::Prediction;
use super::values::{Validation, WorldSize};
use crate::policy::{
    Attention, Batching, Communication, Decay, DeviceChoice, Launcher, Placement, Recompute, Reduction,
    Resume, TrainingDtype,
};
use serde::{Deserialize, Serialize};

/// A complete recipe: every value after all layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    pub job: Job,
    pub model: Model,
    pub training: Training,
    pub optimizer: Optimizer,
    pub lr_scheduler: LrScheduler,
    pub activation_checkpoint: ActivationCheckpoint,
    pub parallelism: Parallelism,
    pub data: Data,
    pub checkpoint: Checkpoint,
    pub validation: ValidationRuns,
    pub generation: Generation,
    pub metrics: Metrics,
    pub engine: Engine,
    pub sweep: Sweep,
    pub compare: Compare,
}

/// `[job]`: what this is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Job {
    /// One line for people.
    pub description: String,
}

/// `[model]`: the architecture. Widths in elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Width of the residual stream.
    pub dim: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Query heads per block.
    pub n_heads: usize,
    /// Key and value heads per block; unset means `n_heads`.
    pub n_kv_heads: Option<usize>,
    /// Width of one head; unset means `dim / n_heads`.
    pub head_dim: Option<usize>,
    /// Width between the projections of SwiGLU.
    pub ffn_dim: usize,
    /// Probability of zeroing an element.
    pub dropout: f64,
    /// Normalize queries and keys per head.
    pub qk_norm: bool,
    /// Base of the rotary wavelengths.
    pub rope_theta: f64,
    /// Added to the mean square inside RMSNorm.
    pub norm_eps: f64,
    /// One matrix for the embedding and the head.
    pub tie_embeddings: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            dim: 128,
            n_layers: 4,
            n_heads: 4,
            n_kv_heads: None,
            head_dim: None,
            ffn_dim: 384,
            dropout: 0.0,
            qk_norm: true,
            rope_theta: 10_000.0,
            norm_eps: 1e-6,
            tie_embeddings: false,
        }
    }
}

/// `[training]`: how much is trained, on how much at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Training {
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Sequences per rank and micro step; see [`super::batch`] for what unset means.
    pub local_batch_size: Option<usize>,
    /// Sequences per optimizer step over all ranks.
    pub global_batch_size: Option<usize>,
    /// Micro steps per optimizer step.
    pub accumulation: Option<usize>,
    /// Optimizer steps.
    pub steps: usize,
    /// Precision of activations and products.
    pub dtype: TrainingDtype,
    /// Largest global L2 norm of the gradient; 0 turns clipping off.
    pub max_norm: f64,
    /// Seed of initialization, sampling order and dropout.
    pub seed: u64,
}

impl Default for Training {
    fn default() -> Self {
        Self {
            seq_len: 128,
            local_batch_size: None,
            global_batch_size: None,
            accumulation: None,
            steps: 1000,
            dtype: TrainingDtype::Fp32,
            max_norm: 1.0,
            seed: 0,
        }
    }
}

/// `[optimizer]`: AdamW.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optimizer {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay of the first and second moment per step.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, as a multiple of the learning rate.
    pub weight_decay: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { lr: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 }
    }
}

/// `[lr_scheduler]`: the learning rate over the steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LrScheduler {
    /// Steps of the linear rise to the peak.
    pub warmup_steps: usize,
    /// Learning rate at the end, as a share of the peak.
    pub min_lr_ratio: f64,
    /// Shape of the fall.
    pub decay: Decay,
    /// Share of all steps in the decay phase of `wsd`.
    pub decay_ratio: f64,
}

impl Default for LrScheduler {
    fn default() -> Self {
        Self { warmup_steps: 0, min_lr_ratio: 0.1, decay: Decay::Cosine, decay_ratio: 0.2 }
    }
}

/// `[activation_checkpoint]`: memory against time in the backward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationCheckpoint {
    /// Which activations are computed again.
    pub mode: Recompute,
}

impl Default for ActivationCheckpoint {
    fn default() -> Self {
        Self { mode: Recompute::Selective }
    }
}

/// `[parallelism]`: data-parallel ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parallelism {
    /// Number of ranks.
    pub world_size: WorldSize,
    /// How ranks are started.
    pub launcher: Launcher,
    /// How gradients are reduced.
    pub reduction: Reduction,
    /// MiB of gradients per all-reduce.
    pub bucket_mib: f64,
    /// Reduce while the backward pass still runs.
    pub overlap: bool,
    /// Exchange the rows of the embedding's gradient where that takes fewer bytes than to reduce all of it.
    pub embedding_exchange: bool,
    /// Blocks of a GPU that take part in a collective; unset leaves it to NCCL.
    pub channels: Option<usize>,
    /// Steps between two comparisons of the parameters of all ranks; 0 compares only before saves and at the end.
    pub check_interval: usize,
    /// Seconds without a sign of a rank after which the run is ended; also how long ranks wait for each other at the start.
    pub timeout_s: f64,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self {
            world_size: WorldSize::Fixed(1),
            launcher: Launcher::Thread,
            reduction: Reduction::Bucketed,
            bucket_mib: 25.0,
            overlap: true,
            embedding_exchange: true,
            channels: None,
            check_interval: 100,
            timeout_s: 600.0,
        }
    }
}

/// `[data]`: what is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// `stories`, `random`, or a path to text or token shards.
    pub corpus: String,
    /// `gpt2`, `byte`, `stories`, or a path to a `tokenizer.json`.
    pub tokenizer: String,
    /// Text between two documents of a text corpus; unset means one document per file.
    pub document_separator: Option<String>,
    /// Whether a training window may run from one document into the next.
    pub cross_documents: bool,
    /// What is held out of a corpus that is read.
    pub validation: Validation,
    /// Size of a generated corpus, in tokens.
    pub train_tokens: usize,
    /// Held-out size of a generated corpus, in tokens.
    pub validation_tokens: usize,
    /// Seed of the generator.
    pub seed: u64,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            corpus: "stories".to_owned(),
            tokenizer: "stories".to_owned(),
            document_separator: None,
            cross_documents: true,
            validation: Validation::Fraction(0.05),
            train_tokens: 2_000_000,
            validation_tokens: 16_384,
            seed: 0,
        }
    }
}

/// `[checkpoint]`: when the state is saved, and whether it is picked up again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Steps between two checkpoints; 0 saves only at the end.
    pub interval: usize,
    /// How many of the newest checkpoints stay; with 0 none is saved.
    pub keep: usize,
    /// Whether to go on from the last one.
    pub resume: Resume,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { interval: 0, keep: 2, resume: Resume::Never }
    }
}

/// `[validation]`: when and how long the model is evaluated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationRuns {
    /// Steps between two evaluations; 0 evaluates only at the end.
    pub interval: usize,
    /// Batches per evaluation; 0 takes every held-out window.
    pub steps: usize,
}

/// `[generation]`: samples written by the model while and after it trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Generation {
    /// Steps between two generations; 0 generates only at the end.
    pub interval: usize,
    /// Samples each time; 0 generates nothing.
    pub samples: usize,
    /// New tokens per sample.
    pub tokens: usize,
    /// Text that every sample goes on from.
    pub prompt: String,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Sample among this many likeliest tokens; 0 among all.
    pub top_k: usize,
    /// Sample among the likeliest tokens that hold this much probability; 1 among all.
    pub top_p: f64,
    /// Seed of the sampling.
    pub seed: u64,
}

impl Default for Generation {
    fn default() -> Self {
        Self {
            interval: 0,
            samples: 0,
            tokens: 64,
            prompt: String::new(),
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
        }
    }
}

/// `[metrics]`: how often progress is shown, and what of it counts as steady.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Steps between two lines of progress.
    pub interval: usize,
    /// First steps, which never count as steady state.
    pub warmup: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { interval: 10, warmup: 5 }
    }
}

/// `[engine]`: where and how the program is executed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    /// CPU or GPU.
    pub device: DeviceChoice,
    /// Indices of the GPUs to use; unset means the first `world_size`.
    pub devices: Option<Vec<usize>>,
    /// CPU threads; unset means all.
    pub threads: Option<usize>,
    /// Refuse plans that need more than this per rank, in GiB; unset means what the device has.
    pub memory_limit_gib: Option<f64>,
    /// Who gives tensors their addresses.
    pub placement: Placement,
    /// Replay steps as CUDA graphs; unset means where the placement allows it.
    pub cuda_graphs: Option<bool>,
    /// Run fused operations; off expands each into its parts.
    pub fused: bool,
    /// How attention is computed.
    pub attention: Attention,
    /// How sequences reach the products.
    pub batching: Batching,
    /// Whether gradients are exchanged.
    pub communication: Communication,
    /// Fill dead memory with NaN, so that a stale read shows.
    pub poison: bool,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Auto,
            devices: None,
            threads: None,
            memory_limit_gib: None,
            placement: Placement::Arena,
            cuda_graphs: None,
            fused: true,
            attention: Attention::Flash,
            batching: Batching::Batched,
            communication: Communication::On,
            poison: false,
        }
    }
}

/// `[sweep]`: which variants of this recipe to run. Keys of the inner tables are full paths (`model.dim`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sweep {
    /// Key to list of values; the grid is the product of the lists.
    pub grid: toml::Table,
    /// Sets of values that change together; each set is combined with the whole grid.
    pub pairs: Vec<toml::Table>,
    /// Points to leave out: those that agree with every value of one of these sets.
    pub exclude: Vec<toml::Table>,
}

/// `[compare]`: a change, and what it is expected to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compare {
    /// Full key to the value on the changed side.
    pub change: toml::Table,
    /// Why the change should matter.
    pub hypothesis: String,
    /// The expected verdict, or the expected range of a measured column.
    pub predicts: Option<Prediction>,
    /// Runs of each side.
    pub repeats: usize,
    /// Smallest relative difference in tokens per second that counts.
    pub min_effect: f64,
}

impl Default for Compare {
    fn default() -> Self {
        Self {
            change: toml::Table::new(),
            hypothesis: String::new(),
            predicts: None,
            repeats: 3,
            min_effect: 0.01,
        }
    }
}
