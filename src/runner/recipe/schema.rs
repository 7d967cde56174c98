//! The table of recipe keys: the one place that says what a recipe may contain.
//!
//! One entry defines a key: its meaning, field, type, default, class, bounds and example. From the table the
//! macro generates the structs that the program reads ([`Values`] and a struct per section), their `Default`
//! (the bottom layer of every recipe), and the rows ([`KEYS`], [`SECTIONS`]). The rows are behind messages,
//! `xrun schema`, `docs/recipes.md`, the keys that a resume may change, and the hash of a recipe.
//!
//! ```text
//! section: Struct {
//!     /// Meaning.
//!     key: type = default;
//!         Class, type and bounds, "example in TOML"
//!             => unit("..."), unset("..."), aliases(&[...]);
//! }
//! section: Struct from module {}
//! section: Struct { ... } tables {
//!     /// Meaning.
//!     table: type = module;
//! }
//! ```
//!
//! The doc comments are the descriptions in `docs/recipes.md`. The attributes after `=>` are optional. With
//! `from module`, the module defines the struct, and its function `keys` returns the keys. A field after
//! `tables` is a table whose names a recipe chooses; the function `keys` of its module returns the rows of a
//! name.

use super::condition::{Fact, GENERATED, NO_PATHS, UNSET, When, set, unset};
use super::define::{section, sections};
use super::key::{NumberFormat, NumberRange, RangeScale, Type};
use super::phases::Phase;
use super::prediction::Prediction;
use super::sources::DataSource;
use super::until::Until;
use super::values::WorldSize;
use crate::expression::Scope;
use crate::policy::{
    Activation, AdapterKind, AdapterTarget, Attention, BackgroundSaves, Batching, Communication, Cooldown,
    CorpusSource, Decay, DeviceChoice, EvaluationTask, Fp8Gradients, Fp8Products, Fp8Scaling, HeadInit,
    Launcher, MissingField, Norm, NormPlacement, OrFormula, Packing, PairLoss, Parametrization, PathList,
    Placement, Position, QkNormPlace, RecomputeMode, Reduction, ResidualInit, Resume, RopeDirection,
    RopeScaling, Sampler, SeedScheme, Shard, Shuffle, TextFormat, TrainingDtype, Transport, Validation,
    WeightsOnly,
};
use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included};

/// Largest seed: the largest TOML integer.
const MAX_SEED: u64 = i64::MAX as u64;
/// Most optimizer steps of a training run: the schedule is kept in memory and takes 1.5 GiB for this many
/// steps.
pub(super) const MAX_TRAINING_STEPS: u64 = 100_000_000;
/// Most sequences in a global batch.
const MAX_GLOBAL_BATCH: u64 = 16_777_216;
/// Most steps in an interval, a warm-up or an evaluation.
const MAX_STEP_COUNT: u64 = 1_000_000_000;
/// Most ranks in a run.
pub const MAX_RANKS: u64 = 65_536;
/// Most CPU threads in a process: four times as many as the largest machines have, and few enough to start
/// quickly.
const MAX_THREADS: u64 = 2048;
/// Most samples in a sweep, which is also the most cells a sweep may have.
const MAX_SAMPLES: u64 = 10_000;
/// Most examples in front of an item of a task; `tasks` has the same limit.
pub const MAX_SHOTS: u64 = 64;
/// The ending of a path of a task's definition, which tells it from a name.
pub const TASK_ENDING: &str = ".toml";
/// The weights are trained, without adapters.
const NO_ADAPTER: When = When::Is("adapter.kind", &["\"none\""]);
/// Products read the format of activations.
const NO_FP8: When = When::Not("training.dtype", &["\"fp8\""]);
/// The corpus has no pairs of answers.
const NO_PAIRS: When = When::Not("data.format", &["\"preference\""]);
/// No trained parameter has initial values that are drawn: all come from folders.
const NOTHING_DRAWN: [When; 2] = [
    When::All(&[set("model.init_from"), NO_ADAPTER]),
    When::All(&[set("model.init_from"), set("adapter.init_from")]),
];
/// There are no scores on tasks.
const NO_TASKS: When = When::Is("evaluation.tasks", &["[]"]);
/// Most tokens in a generated corpus: it is kept in memory, and this many token ids take 16 GiB.
const MAX_CORPUS_TOKENS: u64 = 1 << 32;

const fn count(min: u64, max: u64) -> Type {
    Type::Count { min, max }
}

const fn interval(low: Bound<f64>, high: Bound<f64>) -> NumberRange {
    NumberRange { low, high, used_as: NumberFormat::Fp64 }
}

/// A number that a run uses in fp32.
const fn number(low: Bound<f64>, high: Bound<f64>) -> Type {
    parts(NumberFormat::Fp32, low, high)
}

/// A number that a run uses on the host, in fp64.
const fn host_number(low: Bound<f64>, high: Bound<f64>) -> Type {
    Type::Number(interval(low, high))
}

const fn parts(used_as: NumberFormat, low: Bound<f64>, high: Bound<f64>) -> Type {
    Type::Number(NumberRange { low, high, used_as })
}

sections! {
    /// Description of the recipe.
    job: Job {
        /// One-line description of the recipe, which `xrun ls` shows.
        description: String = String::new(); Bookkeeping, Type::Text, "\"baseline\"";
        /// Short name of the run in tables and legends, in place of the recipe's name and the keys that
        /// differ.
        label: String = String::new(); Bookkeeping, Type::Text, "\"AdamW\"" => implied("\"\"");
    }

    /// The architecture: a decoder. Without other keys it has RMSNorm before each sublayer, rotary
    /// grouped-query attention with normalized queries and keys, SwiGLU, and no biases, like Qwen3.
    model: Model {
        /// The architecture as a [text](model-texts.md), in the recipe or in a file. The other keys of the
        /// section are those that the text reads.
        definition: Option<String> = None;
            Training, Type::ModelText, "\"llama\"" => unset("a decoder with the parts that these keys choose"), implied(UNSET);
        /// Width of the residual stream.
        dim: usize = 128;
            Training, count(1, 65_536), "384"
                => unit("elements"), aliases(&["hidden_size", "d_model", "n_embd"]);
        /// Rows of the embedding and of the head; at least the number of entries of the tokenizer.
        vocab_size: Option<usize> = None;
            Training, count(1, 16_777_216), "49152"
                => unit("tokens"), unset("the tokenizer's"), implied(UNSET);
        /// Number of blocks.
        n_layers: usize = 4;
            Training, count(1, 1024), "12" => aliases(&["num_hidden_layers", "num_layers", "n_layer"]);
        /// Query heads per block.
        n_heads: Option<usize> = None;
            Training, count(1, 4096), "12"
                => unset("`dim / head_dim`; without `head_dim` as many as divide `dim` into even widths of at least 32"),
                   aliases(&["num_attention_heads", "n_head"]);
        /// Key and value heads per block; divides `n_heads`.
        n_kv_heads: Option<usize> = None;
            Training, count(1, 4096), "4" => unset("`n_heads`"), aliases(&["num_key_value_heads"]);
        /// Width of one head; even, because the rotary position embedding rotates pairs of elements.
        head_dim: Option<usize> = None;
            Training, count(2, 1024), "32" => unit("elements"), unset("`dim / n_heads`");
        /// Hidden width of the feed-forward layer.
        ffn_dim: Option<usize> = None;
            Training, count(1, 1_048_576), "1536"
                => unit("elements"),
                   unset("`3 · dim`, or `4 · dim` without a gate, rounded up to a multiple of 64"),
                   aliases(&["intermediate_size", "ffn_hidden_size"]);
        /// Probability of zeroing an element after the embedding, in the attention and on each residual
        /// branch, rounded to a multiple of 1/65536. A rate near 0 or 1 that rounding would change by a tenth
        /// is refused.
        dropout: f64 = 0.0; Training, number(Included(0.0), Excluded(1.0)), "0.1" => unit("probability");
        /// Norm of the residual stream.
        norm: Norm = Norm::RmsNorm;
            Training, Type::Word(Norm::WORDS), "\"layer_norm\"" => implied("\"rms_norm\"");
        /// Multiply normalized rows by a trained weight per element.
        norm_weight: bool = true; Training, Type::Bool, "false" => implied("true");
        /// Add a trained bias per element to normalized rows.
        norm_bias: Option<bool> = None;
            Training, Type::Bool, "false"
                => unset("with `layer_norm` if it has a weight, not with `rms_norm`"), implied(UNSET);
        /// Position of the norms in a block: before each sublayer, after each residual addition, or before
        /// and after each sublayer. All but `post` also have a norm before the head.
        norm_placement: NormPlacement = NormPlacement::Pre;
            Training, Type::Word(NormPlacement::WORDS), "\"sandwich\"" => implied("\"pre\"");
        /// Normalize the rows of the embedding.
        embedding_norm: bool = false; Training, Type::Bool, "true" => implied("false");
        /// Attention and feed-forward layer of a block read the same normalized rows and are added together,
        /// as in GPT-J: `x + attention(norm(x)) + ffn(norm(x))`.
        parallel_blocks: bool = false; Training, Type::Bool, "true" => implied("false");
        /// Activation of the feed-forward layer; the first four are gated. Or a formula: docs/formulas.md.
        activation: OrFormula<Activation> = Activation::Swiglu.into();
            Training, Type::WordOrFormula(Activation::WORDS, Scope::Activation), "\"relu2\""
                => implied("\"swiglu\"");
        /// Add a trained bias to every product of a block.
        bias: bool = false; Training, Type::Bool, "true" => implied("false");
        /// How the model knows the positions of tokens.
        position: Position = Position::Rope;
            Training, Type::Word(Position::WORDS), "\"learned\"" => implied("\"rope\"");
        /// Normalize queries and keys per head.
        qk_norm: bool = true; Training, Type::Bool, "false" => aliases(&["use_qk_norm"]);
        /// Normalize queries and keys before or after they are rotated.
        qk_norm_place: QkNormPlace = QkNormPlace::BeforeRope;
            Training, Type::Word(QkNormPlace::WORDS), "\"after_rope\"" => implied("\"before_rope\"");
        /// Multiply normalized queries and keys by trained weights.
        qk_norm_weight: bool = true; Training, Type::Bool, "false" => implied("true");
        /// Base θ of the frequencies of the rotary position embedding.
        rope_theta: f64 = 10_000.0;
            Training, host_number(Included(1.0), Included(1e12)), "1000000.0" => aliases(&["rope_base"]),
                   idle(&[When::Fact(Fact::OnePairRotates)]);
        /// Share of each head that is rotated: its first elements.
        rope_fraction: f64 = 1.0;
            Training, host_number(Excluded(0.0), Included(1.0)), "0.25"
                => implied("1.0"), aliases(&["partial_rotary_factor"]);
        /// Sense of the rotation.
        rope_direction: RopeDirection = RopeDirection::Positive;
            Training, Type::Word(RopeDirection::WORDS), "\"negative\"" => implied("\"positive\"");
        /// How the rotary frequencies change for a context longer than the one they were chosen for.
        rope_scaling: RopeScaling = RopeScaling::None;
            Training, Type::Word(RopeScaling::WORDS), "\"yarn\"" => implied("\"none\"");
        /// How many times longer the new context is; used with `rope_scaling`.
        rope_factor: Option<f64> = None;
            Training, host_number(Included(1.0), Included(1e6)), "8.0"
                => unset("required by `rope_scaling`"), implied(UNSET);
        /// Length of the context that the frequencies were chosen for; used by `yarn` and `llama3`.
        rope_original_context: Option<usize> = None;
            Training, count(1, 1_048_576), "8192"
                => unit("tokens"), unset("required by `yarn` and `llama3`"), implied(UNSET),
                   aliases(&["original_max_position_embeddings"]);
        /// Turns within the original context above which `yarn` keeps a frequency.
        rope_beta_fast: f64 = 32.0;
            Training, host_number(Excluded(0.0), Included(1e6)), "16.0" => unit("turns"), implied("32.0");
        /// Turns within the original context below which `yarn` divides a frequency by the factor.
        rope_beta_slow: f64 = 1.0;
            Training, host_number(Excluded(0.0), Included(1e6)), "2.0" => unit("turns"), implied("1.0");
        /// Factor of the cosines and sines with `yarn`.
        rope_attention_factor: Option<f64> = None;
            Training, number(Excluded(0.0), Included(100.0)), "1.0"
                => unset("`0.1 · ln(rope_factor) + 1`"), implied(UNSET);
        /// With `llama3`, frequencies whose wavelength exceeds the original context divided by this number
        /// are divided by the factor.
        rope_low_freq_factor: f64 = 1.0;
            Training, host_number(Excluded(0.0), Included(1e6)), "2.0" => implied("1.0");
        /// With `llama3`, frequencies whose wavelength is below the original context divided by this number
        /// are kept.
        rope_high_freq_factor: f64 = 4.0;
            Training, host_number(Excluded(0.0), Included(1e6)), "8.0" => implied("4.0");
        /// Maximum number of keys that a query attends to, its own included; unset, all keys before it.
        window: Option<usize> = None;
            Training, count(1, 1_048_576), "256"
                => unit("tokens"), unset("no limit"), implied(UNSET), aliases(&["sliding_window"]),
                   idle(&[When::AtLeast("model.window", "training.seq_len"), When::Is("model.global_interval", &["1"])]);
        /// With a window, the last of every `global_interval` blocks attends to all keys.
        global_interval: Option<usize> = None;
            Training, count(1, 1024), "4"
                => unit("blocks"), unset("none does"), implied(UNSET), aliases(&["sliding_window_pattern"]),
                   idle(&[When::Above("model.global_interval", "model.n_layers"), When::AtLeast("model.window", "training.seq_len")]);
        /// Soft cap of attention scores: `cap · tanh(score / cap)`.
        score_cap: Option<f64> = None;
            Training, number(Excluded(0.0), Included(1e3)), "50.0"
                => unset("none"), implied(UNSET), aliases(&["attn_logit_softcapping"]);
        /// Soft cap of logits: `cap · tanh(logit / cap)`.
        logit_cap: Option<f64> = None;
            Training, number(Excluded(0.0), Included(1e6)), "30.0"
                => unset("none"), implied(UNSET), aliases(&["final_logit_softcapping"]);
        /// Factor of the logits, applied before their cap.
        logit_scale: f64 = 1.0;
            Training, number(Excluded(0.0), Included(1e6)), "0.0625" => implied("1.0");
        /// Factor of the rows of the embedding.
        embedding_scale: f64 = 1.0;
            Training, number(Excluded(0.0), Included(1e6)), "19.6" => implied("1.0");
        /// Added to the mean square inside RMSNorm, or to the variance inside LayerNorm.
        norm_eps: f64 = 1e-6;
            Training, number(Excluded(0.0), Included(0.1)), "1e-5" => aliases(&["rms_norm_eps"]);
        /// Standard deviation of the initial values of matrices; see `residual_init` for those that write the
        /// residual stream.
        init_std: Option<f64> = None;
            Training, number(Excluded(0.0), Included(1.0)), "0.02"
                => unset("`1 / sqrt(3 · inputs)` of each matrix"), implied(UNSET), aliases(&["initializer_range"]),
                   idle(&[set("model.init_from")]);
        /// Initial values of the products that write the residual stream.
        residual_init: ResidualInit = ResidualInit::DepthScaled;
            Training, Type::Word(ResidualInit::WORDS), "\"zero\"" => implied("\"depth_scaled\""),
                   idle(&[set("model.init_from")]);
        /// Initial values of the head, if it is not the embedding.
        head_init: HeadInit = HeadInit::Normal;
            Training, Type::Word(HeadInit::WORDS), "\"zero\"" => implied("\"normal\""),
                   idle(&[set("model.init_from")]);
        /// What depends on the width besides shapes: nothing, or, as in muP, the initial values, the factor
        /// of the logits and, by role, the optimizer's learning rate, epsilon and decay, so that the best
        /// learning rate at `base_dim` is also the best at other widths.
        parametrization: Parametrization = Parametrization::Standard;
            Training, Type::Word(Parametrization::WORDS), "\"mup\"" => implied("\"standard\"");
        /// The width at which `mup` equals `standard`; it has no effect in `standard`.
        base_dim: Option<usize> = None;
            Training, count(1, 65_536), "128"
                => unit("elements"), unset("required by `mup`"), implied(UNSET), aliases(&["dim_model_base", "mup_base_hidden_size"]),
                   idle(&[When::Is("model.parametrization", &["\"standard\""])]);
        /// Use one matrix for the embedding and the head.
        tie_embeddings: bool = false; Training, Type::Bool, "true" => aliases(&["tie_word_embeddings"]);
        /// Folder of a model in HuggingFace format, a run, or a checkpoint of one, whose weights are the
        /// initial values of the parameters. All other model keys must agree with it; `xrun import` prints
        /// those of a folder. A run is named as for `xrun resume`, and begins with its newest checkpoint.
        init_from: Option<String> = None;
            Training, Type::NameOrPath(&[]), "\"smollm2-135m\"" => unset("drawn by `init_std` and the seed"), implied(UNSET);
        /// Begin with the optimizer's state of the run that `init_from` names, too.
        init_optimizer: bool = false; Training, Type::Bool, "true" => implied("false");
    }

    /// Adapters: small matrices that are trained in place of the model's weights, which stay as
    /// `model.init_from` has them (docs/fine-tuning.md).
    adapter: Adapter {
        /// What is trained: the weights (`none`), or a product of two matrices of low rank beside each matrix
        /// of `targets` (`lora`).
        kind: AdapterKind = AdapterKind::None;
            Training, Type::Word(AdapterKind::WORDS), "\"lora\"" => implied("\"none\"");
        /// Rank of the products.
        rank: usize = 16;
            Training, count(1, 65_536), "64" => implied("16"), idle(&[NO_ADAPTER]), aliases(&["lora_r", "r"]);
        /// Factor of the products, divided by `rank`.
        alpha: f64 = 32.0;
            Training, number(Excluded(0.0), Included(1e6)), "16.0"
                => implied("32.0"), idle(&[NO_ADAPTER]), aliases(&["lora_alpha"]);
        /// Divide `alpha` by the square root of the rank, so that the products are of one size at every rank
        /// (Kalajdzievski, 2023).
        rslora: bool = false;
            Training, Type::Bool, "true" => implied("false"), idle(&[NO_ADAPTER]), aliases(&["use_rslora"]);
        /// The matrices of the blocks that get adapters, by role.
        targets: Vec<AdapterTarget> = AdapterTarget::ALL.to_vec();
            Training, Type::Words(AdapterTarget::WORDS), "[\"attention\"]"
                => implied("[\"attention\", \"feed_forward\"]"), idle(&[NO_ADAPTER]), aliases(&["target_modules"]);
        /// Probability with which an element of an adapter's input is dropped in training.
        dropout: f64 = 0.0;
            Training, number(Included(0.0), Excluded(1.0)), "0.05"
                => implied("0.0"), idle(&[NO_ADAPTER]), aliases(&["lora_dropout"]);
        /// Folder of an adapter in PEFT's format, whose weights are the initial values.
        init_from: Option<String> = None;
            Training, Type::NameOrPath(&[]), "\"my-adapter\""
                => unset("products that are zero"), implied(UNSET), idle(&[NO_ADAPTER]);
    }

    /// Training on pairs of answers (`data.format = "preference"`), with the model of `model.init_from` as
    /// the reference (docs/fine-tuning.md).
    preference: Preference {
        /// The loss of a pair.
        loss: PairLoss = PairLoss::Dpo;
            Training, Type::Word(PairLoss::WORDS), "\"ipo\""
                => implied("\"dpo\""), idle(&[NO_PAIRS]), aliases(&["loss_type"]);
        /// How closely the model is held to the reference: the larger, the closer.
        beta: f64 = 0.1;
            Training, number(Excluded(0.0), Included(1e3)), "0.3"
                => implied("0.1"), idle(&[NO_PAIRS]), aliases(&["dpo_beta"]);
    }

    /// 8-bit floats in products (`training.dtype = "fp8"`, docs/fp8.md).
    fp8: Fp8 {
        /// The products that read 8-bit floats, by the role of their weights. All others stay in bf16, as do
        /// evaluation and generation.
        products: Option<Vec<Fp8Products>> = None;
            Training, Type::Words(Fp8Products::WORDS), "[\"attention\"]"
                => unset("all of them from `model.dim` = 384 on, else `[\"feed_forward\"]`"), implied(UNSET), idle(&[NO_FP8]);
        /// The format of gradients. Inputs and weights are in e4m3.
        gradients: Fp8Gradients = Fp8Gradients::E5m2;
            Training, Type::Word(Fp8Gradients::WORDS), "\"e4m3\"" => implied("\"e5m2\""), idle(&[NO_FP8]);
        /// Where the scale of a matrix comes from.
        scaling: Fp8Scaling = Fp8Scaling::Delayed;
            Training, Type::Word(Fp8Scaling::WORDS), "\"current\"" => implied("\"delayed\""), idle(&[NO_FP8]);
        /// How many blocks at the beginning stay in bf16.
        bf16_first: usize = 0;
            Training, count(0, 65_536), "1" => unit("blocks"), implied("0"), idle(&[NO_FP8]);
        /// How many blocks at the end stay in bf16.
        bf16_last: usize = 0;
            Training, count(0, 65_536), "1" => unit("blocks"), implied("0"), idle(&[NO_FP8]);
    }

    /// Length, batch and precision of the training run.
    training: Training {
        /// Length of a sequence.
        seq_len: usize = 128;
            Training, count(1, 1_048_576), "256"
                => unit("tokens"),
                   aliases(&["sequence_length", "max_seq_len", "max_seq_length", "block_size"]);
        /// Sequences per rank and micro-step. An execution key while the global batch size stays the same.
        local_batch_size: Option<usize> = None;
            Training, count(1, 1_048_576), "32"
                => unit("sequences"),
                   unset("follows from the global batch size; 8 without one"),
                   aliases(&["per_device_train_batch_size", "micro_batch_size"]);
        /// Sequences per optimizer step over all ranks; setting it keeps the loss curve the same when the
        /// number of ranks changes.
        global_batch_size: Option<usize> = None;
            Training, count(1, MAX_GLOBAL_BATCH), "256"
                => unit("sequences"),
                   unset("`local_batch_size · accumulation · world_size`"),
                   aliases(&["train_batch_size"]);
        /// Micro-steps per optimizer step (gradient accumulation). An execution key while the global batch
        /// size stays the same.
        accumulation: Option<usize> = None;
            Training, count(1, 1_048_576), "4"
                => unit("micro steps"),
                   unset("follows from the batch sizes; 1 without both"),
                   aliases(&["gradient_accumulation_steps", "grad_accumulation_steps"]);
        /// Other global batch sizes in the first steps, stage by stage: the last step of a stage, and its
        /// sequences per optimizer step over all ranks, a multiple of `local_batch_size` times the number of
        /// ranks. Steps after the last stage have the global batch size.
        batch_ramp: Vec<[usize; 2]> = Vec::new();
            Training, Type::Stages { max_steps: MAX_TRAINING_STEPS, max: MAX_GLOBAL_BATCH },
            "[[100, 32], [300, 64]]"
                => unit("optimizer steps, sequences"), implied("[]"),
                   idle(&[When::Fact(Fact::RampIsFull)]);
        /// Length of the training run.
        steps: usize = 1000;
            Training, count(1, MAX_TRAINING_STEPS), "20_000"
                => unit("optimizer steps"), aliases(&["max_steps", "num_steps"]);
        /// The length as a budget of tokens, model FLOPs or time: training takes the fewest steps that reach
        /// it. The higher layer wins; in one layer, `steps` must be the number that the budget gives.
        until: Option<Until> = None;
            Training, Type::Until, "\"300Mtokens\""
                => unset("`training.steps`"), implied(UNSET);
        /// Format of activations and matrix products; master weights stay in fp32.
        dtype: TrainingDtype = TrainingDtype::Fp32;
            Training, Type::Word(TrainingDtype::WORDS), "\"bf16\"" => aliases(&["precision", "torch_dtype"]);
        /// Largest global L2 norm of the gradients: larger ones are scaled down to it; 0 turns clipping off.
        max_norm: f64 = 1.0;
            Training, number(Included(0.0), Included(1e6)), "0.5" => aliases(&["max_grad_norm", "grad_clip"]);
        /// Weight of the squared logarithm of the softmax denominator in the objective, per token, as in
        /// PaLM.
        z_loss: f64 = 0.0; Training, number(Included(0.0), Included(1.0)), "1e-4" => implied("0.0");
        /// Share of the target's probability that the objective spreads over the whole vocabulary.
        label_smoothing: f64 = 0.0;
            Training, number(Included(0.0), Excluded(1.0)), "0.1" => unit("probability"), implied("0.0");
        /// Seed of initialization, data order and dropout; `[seeds]` sets them one by one.
        seed: u64 = 0; Training, count(0, MAX_SEED), "42"
                => idle(&[When::Fact(Fact::SeedsAreFixed)]);
    }

    /// Separate seeds for parts of the training run, to vary one and keep the others.
    seeds: Seeds {
        /// Seed of the initial values of parameters.
        init: Option<u64> = None;
            Training, count(0, MAX_SEED), "1" => unset("`training.seed`"), implied(UNSET),
                   idle(&[NOTHING_DRAWN[0], NOTHING_DRAWN[1]]);
        /// Seed of the order in which windows of the corpus are read.
        order: Option<u64> = None;
            Training, count(0, MAX_SEED), "1" => unset("`training.seed`"), implied(UNSET);
        /// Seed of the dropout masks.
        dropout: Option<u64> = None;
            Training, count(0, MAX_SEED), "1" => unset("`training.seed`"), implied(UNSET),
                   idle(&[When::Fact(Fact::NothingIsDropped)]);
        /// What determines the initial values of a parameter besides the seed: its name, so that two recipes
        /// give the same values to every parameter that both have, or its index, as in runs from before this
        /// key existed.
        scheme: SeedScheme = SeedScheme::Name;
            Training, Type::Word(SeedScheme::WORDS), "\"index\"" => implied("\"index\""),
                   idle(&[NOTHING_DRAWN[0], NOTHING_DRAWN[1]]);
    }

    /// Optimizer and its hyperparameters.
    optimizer: Optimizer from optimizer {}

    /// Learning-rate schedule.
    lr_scheduler: LrScheduler {
        /// Length of the linear warm-up to the peak.
        warmup_steps: Option<usize> = None;
            Training, count(0, MAX_STEP_COUNT), "100"
                => unit("optimizer steps"), unset("`warmup_ratio` of `training.steps`, rounded; 0 without it");
        /// The same length as a fraction of all steps, so that it follows `training.steps`. The higher layer
        /// wins; setting both in one layer is an error.
        warmup_ratio: Option<f64> = None;
            Training, host_number(Included(0.0), Included(1.0)), "0.1" => unset("`warmup_steps` holds"), implied(UNSET),
                   idle(&[When::Fact(Fact::WarmupIsNone)]);
        /// Learning rate at the end, as a fraction of the peak.
        min_lr_ratio: f64 = 0.1;
            Training, number(Included(0.0), Included(1.0)), "0.0"
                => aliases(&["min_lr_factor", "min_lr_rate"]),
                   idle(&[When::Fact(Fact::WarmupIsAll)]);
        /// Shape of the decay: cosine, linear, `1 − √x` of the share x that is done, exponential, or constant
        /// with a decay phase at the end (warm-up, stable, decay). Or a formula with values from 0 to 1:
        /// docs/formulas.md.
        decay: OrFormula<Decay> = Decay::Cosine.into();
            Training, Type::WordOrFormula(Decay::WORDS, Scope::Schedule), "\"wsd\"" => aliases(&["decay_type", "lr_scheduler_type"]),
                   idle(&[When::Is("lr_scheduler.min_lr_ratio", &["1.0"]), When::Fact(Fact::DecayIsOneStep)]);
        /// Fraction of all steps in the decay phase of `wsd`.
        decay_ratio: f64 = 0.2; Training, host_number(Excluded(0.0), Included(1.0)), "0.1"
                => idle(&[When::Not("lr_scheduler.decay", &["\"wsd\""]), set("lr_scheduler.decay_steps"), When::Is("lr_scheduler.min_lr_ratio", &["1.0"]), When::Fact(Fact::WarmupIsAll)]);
        /// Length of the decay phase of `wsd` in steps, in place of `decay_ratio`. The higher layer wins;
        /// within a layer, `decay_steps` does.
        decay_steps: Option<usize> = None;
            Training, count(1, MAX_STEP_COUNT), "250"
                => unit("optimizer steps"), unset("`decay_ratio` of `training.steps`"), implied(UNSET),
                   idle(&[When::Not("lr_scheduler.decay", &["\"wsd\""]), When::Is("lr_scheduler.min_lr_ratio", &["1.0"]), When::Fact(Fact::WarmupIsAll)]);
        /// Shape of the decay phase of `wsd`.
        cooldown: Cooldown = Cooldown::Linear;
            Training, Type::Word(Cooldown::WORDS), "\"one_minus_sqrt\"" => implied("\"linear\""),
                   idle(&[When::Not("lr_scheduler.decay", &["\"wsd\""]), When::Is("lr_scheduler.min_lr_ratio", &["1.0"]), When::Fact(Fact::WarmupIsAll), When::Is("lr_scheduler.decay_steps", &["1"])]);
    }

    /// Recomputation of activations in the backward pass, which trades time for memory.
    activation_checkpoint: ActivationCheckpoint {
        /// Activations that the backward pass recomputes: none, those that gradient ops write again as
        /// by-products, cheap ones, or whole blocks. `"auto"` takes the fastest of these that fits the memory
        /// of the device; of those within 1 % of it, the one with the least memory.
        mode: RecomputeMode = RecomputeMode::Auto;
            Execution, Type::Word(RecomputeMode::WORDS), "\"full\"" => same_bits();
    }

    /// Data-parallel ranks.
    parallelism: Parallelism {
        /// Number of data-parallel ranks; `"auto"` takes one per device, or the number that the launcher
        /// sets. A training key unless `training.global_batch_size` is set.
        world_size: WorldSize = WorldSize::Fixed(1);
            Execution, Type::CountOrWord { min: 1, max: MAX_RANKS, word: "auto" }, "8"
                => unit("ranks"), aliases(&["data_parallel_size", "num_gpus"]);
        /// How ranks are started: as threads, as child processes, or by `torchrun`, `srun` or `mpirun`.
        launcher: Launcher = Launcher::Thread;
            Execution, Type::Word(Launcher::WORDS), "\"env\"" => same_bits();
        /// All-reduce of gradients: in buckets, each as soon as the backward pass has completed it, or
        /// parameter by parameter, in one NCCL group at the end.
        reduction: Reduction = Reduction::Bucketed; Execution, Type::Word(Reduction::WORDS), "\"grouped\""
                => idle(&[When::Is("parallelism.world_size", &["1"]), When::Is("engine.communication", &["\"off\""])]);
        /// Minimum size of a gradient bucket, which one all-reduce sums; the head's gradient is its own
        /// bucket, the first. 0 reduces parameter by parameter. With copies between GPUs, 16 MiB are enough.
        bucket_mib: f64 = 25.0;
            Execution, parts(NumberFormat::BYTES_PER_MIB, Included(0.0), Included(65_536.0)), "50.0"
                => unit("MiB"), aliases(&["bucket_cap_mb"]),
                   idle(&[When::Is("parallelism.world_size", &["1"]), When::Is("engine.communication", &["\"off\""]), When::Is("parallelism.reduction", &["\"grouped\""])]);
        /// Reduce gradients while the backward pass still runs.
        overlap: bool = true; Execution, Type::Bool, "false" => same_bits(),
                   idle(&[When::Is("parallelism.world_size", &["1"]), When::Is("engine.communication", &["\"off\""]), When::Is("parallelism.reduction", &["\"grouped\""])]);
        /// Exchange only the rows of the embedding's gradient that the batch touches, if that takes fewer
        /// bytes than reducing all of it.
        embedding_exchange: bool = true; Execution, Type::Bool, "false"
                => idle(&[When::Is("parallelism.world_size", &["1"]), When::Is("engine.communication", &["\"off\""]), When::Is("model.tie_embeddings", &["true"]), When::Not("adapter.kind", &["\"none\""]), When::Is("parallelism.reduction", &["\"grouped\""]), When::Fact(Fact::SeveralMicroSteps)]);
        /// What is divided among the ranks instead of held in full by each: nothing, or the optimizer's slots
        /// (and, with bf16, the fp32 weights), so that each rank updates only its part. `"auto"` divides the
        /// optimizer's slots among two to four ranks on GPUs of one host, which exchange data by copies.
        shard: Shard = Shard::Auto;
            Execution, Type::Word(Shard::WORDS), "\"optimizer\""
                => implied("\"auto\""),
                   idle(&[When::Is("parallelism.world_size", &["1"])]);
        /// How GPUs exchange data: by copies between their memories, which take no multiprocessors, or by
        /// NCCL. `"auto"` takes copies if the ranks are on one host, divide the optimizer's slots and can
        /// access each other's memory.
        transport: Transport = Transport::Auto;
            Execution, Type::Word(Transport::WORDS), "\"nccl\""
                => implied("\"auto\""),
                   idle(&[When::Is("parallelism.world_size", &["1"])]);
        /// NCCL channels (thread blocks of a GPU) per collective: fewer leave more of the GPU to the backward
        /// pass that runs at the same time.
        channels: Option<usize> = None;
            Execution, count(1, 64), "8"
                => unit("channels"), unset("NCCL chooses"), aliases(&["nccl_max_nchannels"]),
                   idle(&[When::Is("parallelism.world_size", &["1"])]);
        /// Steps between comparisons of the parameters of all ranks; 0 compares only before saves and at the
        /// end.
        check_interval: usize = 100; Bookkeeping, count(0, MAX_STEP_COUNT), "1000" => unit("optimizer steps"),
                   idle(&[When::Is("parallelism.world_size", &["1"]), When::Is("engine.communication", &["\"off\""]), When::AtLeast("parallelism.check_interval", "training.steps")]);
        /// How long a rank may go without progress before the run fails; also the time limit for ranks to
        /// find each other at the start.
        timeout_s: f64 = 600.0; Bookkeeping, parts(NumberFormat::NANOSECONDS, Excluded(0.0), Included(1e9)), "60.0" => unit("s");
    }

    /// Training and held-out data.
    data: Data {
        /// Training text: generated stories, random tokens, files or folders of text or token shards, or a
        /// mixture of the `sources`, which it is by default if there are any.
        corpus: CorpusSource = CorpusSource::Stories;
            Training, Type::NameOrPaths(&CorpusSource::NAMES), "\"random\""
                => aliases(&["dataset", "dataset_path"]);
        /// Split of the corpus's folders to train on, as HuggingFace data sets name it by their card, files
        /// or folders.
        split: Option<String> = None;
            Training, Type::Text, "\"train\"" => unset("all files"), implied(UNSET),
                   idle(&[When::Is("data.corpus", NO_PATHS)]);
        /// Origin and licence of the training text, for the summary and for exports.
        card: Option<String> = None;
            Bookkeeping, Type::Text, "\"public domain, from a library\"" => unset("none"), implied(UNSET);
        /// Tokenizer: a built-in one, or the path of a `tokenizer.json`.
        tokenizer: String = "stories".to_owned();
            Training, Type::NameOrPath(&["gpt2", "byte", "stories"]), "\"gpt2\""
                => aliases(&["tokenizer_path"]);
        /// Token that texts begin with, if it is not the end token: every prompt, and every document of a
        /// text corpus, whose end token then only ends it. It is not predicted in evaluations. If it is
        /// empty, prompts begin with nothing. `xrun import` sets it as the model's tokenizer says.
        begin_token: Option<String> = None;
            Training, Type::Text, "\"<s>\"" => unset("the end token"), implied(UNSET);
        /// Text that separates two documents of a text corpus.
        document_separator: Option<String> = None;
            Training, Type::Text, "\"<|endoftext|>\"" => unset("each file is one document"),
                   idle(&[When::Is("data.corpus", GENERATED)]);
        /// Field of a JSON object, or column of a table, that holds the text of a document.
        field: String = "text".to_owned();
            Training, Type::Text, "\"content\"" => implied("\"text\""),
                   idle(&[When::Fact(Fact::NoFileIsRead)]);
        /// What happens to a document that lacks `field` or has null there: it is an error, or it is left
        /// out and counted.
        missing: MissingField = MissingField::Error;
            Execution, Type::Word(MissingField::WORDS), "\"skip\"" => implied("\"error\""),
                   idle(&[When::Fact(Fact::NoFileIsRead)]);
        /// What the files of a text corpus are, where their endings and first bytes do not say it. Files are
        /// unpacked by their endings. `"chat"` are conversations, of which only the answers are trained on,
        /// and `"preference"` are pairs of answers, of which one is preferred.
        format: TextFormat = TextFormat::Auto;
            Training, Type::Word(TextFormat::WORDS), "\"jsonl\"" => implied("\"auto\""),
                   idle(&[When::Fact(Fact::NoFileIsRead)]);
        /// Chat template that makes a text of each conversation (`data.format = "chat"`): a Jinja file.
        chat_template: Option<String> = None;
            Training, Type::NameOrPath(&[]), "\"chat.jinja\"" => unset("that of the tokenizer"), implied(UNSET),
                   idle(&[When::Fact(Fact::NoFileIsRead), When::Fact(Fact::NoConversationIsRead)]);
        /// Extensions of the files to read from a folder of text, in any case; `""` reads files without one.
        extensions: Vec<String> = vec![".txt".to_owned(), ".md".to_owned()];
            Training, Type::Extensions, "[\".py\", \".rs\"]" => implied("[\".txt\", \".md\"]"),
                   idle(&[When::Is("data.corpus", GENERATED), When::Fact(Fact::NoFolderIsRead)]);
        /// List of documents that are not trained on, as `xrun data check --drop` writes it. What is held out
        /// stays the same.
        drop: Option<String> = None;
            Training, Type::NameOrPath(&[]), "\"drop.txt\"" => unset("all are trained on"), implied(UNSET),
                   idle(&[When::Is("data.corpus", GENERATED)]);
        /// Allow a training sequence to span several documents.
        cross_documents: bool = true; Training, Type::Bool, "false"
                => idle(&[When::Is("data.packing", &["\"best_fit\"", "\"document\""])]);
        /// How documents are laid into the rows of a batch: one stream, cut into rows wherever they end, or
        /// whole documents, packed by best fit and masked from each other, or one whole document per row. A
        /// document longer than a row is cut into rows and a rest; what stays free is padding, on which
        /// nothing is trained.
        packing: Packing = Packing::Stream;
            Training, Type::Word(Packing::WORDS), "\"best_fit\"" => implied("\"stream\"");
        /// Which windows are shuffled with each other: all of a source, or those of a block of some 16
        /// million consecutive tokens. Blocks keep the order of the corpus, so a run begins while the rest of
        /// its text is tokenized.
        shuffle: Shuffle = Shuffle::All;
            Training, Type::Word(Shuffle::WORDS), "\"blocks\"" => implied("\"all\"");
        /// Fraction of a corpus that is held out: whole documents, chosen by a hash of `seed` and their text,
        /// or the end of a single document; or a separate corpus.
        validation: Validation = Validation::Fraction(0.05);
            Training, Type::FractionOrPaths(interval(Excluded(0.0), Excluded(1.0))), "0.1"
                => idle(&[When::Is("data.corpus", GENERATED), When::Fact(Fact::SplitIsHeldOut)]);
        /// Split that is held out: of the folders of `validation`, if that is a path, or else of the corpus,
        /// or of each source.
        validation_split: Option<String> = None;
            Training, Type::Text, "\"validation\"" => unset("none"), implied(UNSET),
                   idle(&[When::Is("data.corpus", GENERATED)]);
        /// Size of a generated corpus.
        train_tokens: usize = 2_000_000; Training, count(1, MAX_CORPUS_TOKENS), "500_000" => unit("tokens"),
                   idle(&[When::Not("data.corpus", GENERATED)]);
        /// Held-out size of a generated corpus.
        validation_tokens: usize = 16_384; Training, count(1, MAX_CORPUS_TOKENS), "65_536" => unit("tokens"),
                   idle(&[When::Not("data.corpus", GENERATED)]);
        /// Seed of the generator, and of the choice of held-out documents.
        seed: u64 = 0; Training, count(0, MAX_SEED), "7"
                => idle(&[When::All(&[When::Not("data.corpus", GENERATED), When::Fact(Fact::HeldOutIsOwnCorpus)])]);
        /// Other weights of the sources of a mixture from a fraction of the training steps on. A source that
        /// a phase leaves out has weight 0 there.
        phases: Vec<Phase> = Vec::new();
            Training, Type::Phases, "[{ from = 0.8, weights = { code = 1.0 } }]"
                => implied("[]"), idle(&[When::Fact(Fact::OneSource), When::Fact(Fact::PhasesAreBeyond)]);
    } tables {
        /// Sources of a mixture, by name.
        sources: BTreeMap<String, DataSource> = sources;
    }

    /// Saving the training state, and resuming from it.
    checkpoint: Checkpoint {
        /// Steps between checkpoints; 0 saves only at the end.
        interval: Option<usize> = None;
            Bookkeeping, count(0, MAX_STEP_COUNT), "500"
                => unit("optimizer steps"), unset("every `minutes`"), aliases(&["save_steps"]),
                   idle(&[When::Is("checkpoint.keep", &["0"])]);
        /// Time between checkpoints if `interval` is unset; 0 saves only at the end.
        minutes: f64 = 10.0;
            Bookkeeping, parts(NumberFormat::NANOSECONDS_PER_MINUTE, Included(0.0), Included(1e6)), "30.0" => unit("minutes"),
                   idle(&[set("checkpoint.interval"), When::Is("checkpoint.keep", &["0"])]);
        /// Number of newest checkpoints to keep; 0 saves none at all, for runs that only measure. Sweeps and
        /// comparisons save none unless their command sets it.
        keep: usize = 2;
            Bookkeeping, count(0, 1_000_000), "5"
                => unit("checkpoints"), aliases(&["keep_latest_k", "save_total_limit"]);
        /// Further steps after which a checkpoint is saved. These are kept besides the newest, for forks.
        steps: Option<Vec<usize>> = None;
            Bookkeeping, Type::Counts { max: MAX_TRAINING_STEPS }, "[1000, 2000]"
                => unit("optimizer steps"), unset("none"),
                   idle(&[When::Is("checkpoint.keep", &["0"]), When::Fact(Fact::StepsAreBeyond)]);
        /// Ratio of further, log-spaced steps after which a checkpoint is saved and kept: 2 saves after the
        /// steps 1, 2, 4, 8, …, and 1.5 after 1, 2, 3, 5, 8, ….
        log_spacing: Option<f64> = None;
            Bookkeeping, host_number(Included(1.01), Included(1e6)), "2.0" => unset("none"),
                   idle(&[When::Is("checkpoint.keep", &["0"]), When::Is("training.steps", &["1"])]);
        /// Save a checkpoint after every evaluation with the lowest validation loss so far, and keep the best
        /// one besides the newest.
        keep_best: bool = false; Bookkeeping, Type::Bool, "true"
                => idle(&[When::Is("checkpoint.keep", &["0"])]);
        /// Save without the optimizer's state: `"kept"` for checkpoints that are kept besides the newest,
        /// `"all"` for all. Such checkpoints can be sampled, exported and evaluated, but not resumed.
        weights_only: WeightsOnly = WeightsOnly::None; Bookkeeping, Type::Word(WeightsOnly::WORDS), "\"kept\""
                => idle(&[When::Is("checkpoint.keep", &["0"]), When::All(&[When::Is("checkpoint.weights_only", &["\"kept\""]), set("checkpoint.interval"), unset("checkpoint.steps"), unset("checkpoint.log_spacing"), When::Is("checkpoint.keep_best", &["false"])])]);
        /// Write checkpoints while training continues, from a copy of the state: if the copy fits the memory,
        /// always, or never.
        background: BackgroundSaves = BackgroundSaves::Auto;
            Bookkeeping, Type::Word(BackgroundSaves::WORDS), "\"never\""
                => idle(&[When::Is("checkpoint.keep", &["0"]), When::Fact(Fact::SavesOnlyAtEnd)]);
        /// Resume from the newest complete checkpoint of this recipe.
        resume: Resume = Resume::Never; Bookkeeping, Type::Word(Resume::WORDS), "\"auto\"";
    }

    /// Evaluation on the held-out data.
    validation: ValidationRuns {
        /// Steps between evaluations; 0 evaluates only at the end.
        interval: usize = 0;
            Bookkeeping, count(0, MAX_STEP_COUNT), "100"
                => unit("optimizer steps"), aliases(&["eval_steps", "eval_interval", "freq"]),
                   idle(&[When::AtLeast("validation.interval", "training.steps")]);
        /// Length of an evaluation, in batches of the global size spread evenly over the held-out text; 0
        /// takes all of it.
        steps: usize = 0; Measuring, count(0, MAX_STEP_COUNT), "20" => unit("batches"), aliases(&["eval_iters"]);
        /// Further held-out sets besides the one of `data.validation`: names, each with files or folders of
        /// text or token shards. They are evaluated together with it, and their losses are `val_loss/NAME`.
        sets: BTreeMap<String, PathList> = BTreeMap::new();
            Measuring, Type::NamedPaths, "{ news = \"news.txt\" }" => implied("{}");
        /// What evaluations measure on every held-out set besides the loss. `next_token_accuracy` is the
        /// share of tokens that the model finds likeliest, `val_accuracy`.
        tasks: Vec<EvaluationTask> = Vec::new();
            Measuring, Type::Words(EvaluationTask::WORDS), "[\"next_token_accuracy\"]" => implied("[]");
        /// Write the loss of every held-out document to `documents.csv`, from the last evaluation.
        documents: bool = false; Bookkeeping, Type::Bool, "true";
    }

    /// Exponential moving average of the weights, kept beside them.
    ema: Ema {
        /// Share of the average that a step keeps. The average is corrected for its start: after step t it is
        /// the weighted mean of the weights after the steps 1 to t, where step i has the weight `decay^(t -
        /// i)`.
        decay: Option<f64> = None;
            Training, number(Excluded(0.0), Excluded(1.0)), "0.999"
                => unset("no average"), implied(UNSET), aliases(&["ema_decay"]);
        /// Also evaluate the average whenever the weights are evaluated: `ema_val_loss`.
        evaluate: bool = false; Bookkeeping, Type::Bool, "true";
    }

    /// Scores on tasks during and after training (docs/eval.md). They change nothing that is trained.
    evaluation: TaskRuns {
        /// Tasks on which the model is scored: names, names of sets (`small`, `core`), or paths of
        /// definitions that end in `.toml`. `xrun tasks list` shows the names.
        tasks: Vec<String> = Vec::new();
            Measuring, Type::TaskNames, "[\"hellaswag\"]" => implied("[]");
        /// Folder with the files of the tasks, each in the folder of its data set (docs/tasks.md).
        data: Option<String> = None;
            Measuring, Type::NameOrPath(&[]), "\"eval-data\"" => unset("required by `tasks`"), implied(UNSET),
                   idle(&[NO_TASKS]);
        /// Steps between scores; 0 scores only at the end.
        interval: usize = 0;
            Bookkeeping, count(0, MAX_STEP_COUNT), "500" => unit("optimizer steps"), implied("0"),
                   idle(&[NO_TASKS, When::AtLeast("evaluation.interval", "training.steps")]);
        /// Items of each task, or of each of its configurations: the first ones.
        limit: Option<usize> = None;
            Measuring, count(1, 10_000_000), "1000" => unit("items"), unset("all"), implied(UNSET),
                   idle(&[NO_TASKS]);
        /// Examples in front of each item.
        shots: Option<usize> = None;
            Measuring, count(0, MAX_SHOTS), "5" => unit("examples"), unset("as each task says"), implied(UNSET),
                   idle(&[NO_TASKS]);
    }

    /// Samples that the model generates during and after training.
    generation: Generation {
        /// Steps between generations; 0 generates only at the end.
        interval: usize = 0; Bookkeeping, count(0, MAX_STEP_COUNT), "500" => unit("optimizer steps"),
                   idle(&[When::Is("generation.samples", &["0"]), When::AtLeast("generation.interval", "training.steps")]);
        /// Samples per generation; 0 generates nothing.
        samples: usize = 0;
            Bookkeeping, count(0, 4096), "2" => unit("samples"), aliases(&["num_return_sequences"]);
        /// New tokens per sample.
        tokens: usize = 64;
            Bookkeeping, count(1, 1_048_576), "128" => unit("tokens"), aliases(&["max_new_tokens"]),
                   idle(&[When::Is("generation.samples", &["0"])]);
        /// Prompt that every sample continues.
        prompt: String = String::new(); Bookkeeping, Type::Text, "\"Once upon\""
                => idle(&[When::Is("generation.samples", &["0"])]);
        /// Sampling temperature, which divides the logits; 0 takes the most probable token (greedy).
        temperature: f64 = 0.8; Bookkeeping, number(Included(0.0), Included(100.0)), "1.0"
                => idle(&[When::Is("generation.samples", &["0"]), When::Is("generation.top_k", &["1"])]);
        /// Sample among this many most probable tokens; 0 samples among all.
        top_k: usize = 0; Bookkeeping, count(0, 1_048_576), "40" => unit("tokens"),
                   idle(&[When::Is("generation.samples", &["0"]), When::Is("generation.temperature", &["0.0"])]);
        /// Sample among the most probable tokens whose probabilities add up to this (nucleus sampling); 1
        /// samples among all.
        top_p: f64 = 1.0; Bookkeeping, host_number(Excluded(0.0), Included(1.0)), "0.9" => unit("probability"),
                   idle(&[When::Is("generation.samples", &["0"]), When::Is("generation.temperature", &["0.0"]), When::Is("generation.top_k", &["1"])]);
        /// Seed of the sampling.
        seed: u64 = 0; Bookkeeping, count(0, MAX_SEED), "1"
                => idle(&[When::Is("generation.samples", &["0"]), When::Is("generation.temperature", &["0.0"]), When::Is("generation.top_k", &["1"])]);
    }

    /// Progress lines, and the steps that count as steady state.
    metrics: Metrics {
        /// Steps between progress lines; `metrics.csv` has a row for every step.
        interval: usize = 10;
            Bookkeeping, count(1, MAX_STEP_COUNT), "1"
                => unit("optimizer steps"), aliases(&["log_freq", "logging_steps", "log_interval"]);
        /// Number of first steps that do not count as steady state.
        warmup: usize = 5; Bookkeeping, count(0, MAX_STEP_COUNT), "10" => unit("optimizer steps");
        /// Draw the plots of a run when it ends. Sweeps and comparisons draw none unless their command sets
        /// it.
        plots: bool = true; Bookkeeping, Type::Bool, "false";
        /// Also write rows and samples as a TensorBoard event file, in the folder `tensorboard/` of the run.
        tensorboard: bool = false; Bookkeeping, Type::Bool, "true";
    }

    /// Execution: device, memory, kernels.
    engine: Engine {
        /// Where to run; `"auto"` takes the GPU if there is one.
        device: DeviceChoice = DeviceChoice::Auto; Execution, Type::Word(DeviceChoice::WORDS), "\"cpu\"";
        /// Index of the GPU of each rank.
        devices: Option<Vec<usize>> = None;
            Execution, Type::Counts { max: 1023 }, "[0, 1]" => unset("the first `world_size`"), same_bits();
        /// CPU threads.
        threads: Option<usize> = None;
            Execution, count(1, MAX_THREADS), "4" => unit("threads"), unset("all"), same_bits();
        /// Memory limit per rank: a plan that needs more is refused.
        memory_limit_gib: Option<f64> = None;
            Execution, parts(NumberFormat::BYTES_PER_GIB, Excluded(0.0), Included(1e6)), "32.0"
                => unit("GiB"), unset("what the device has"), same_bits();
        /// Memory of transient tensors: one arena with planned offsets, a caching allocator, or an allocation
        /// per tensor.
        placement: Placement = Placement::Arena;
            Execution, Type::Word(Placement::WORDS), "\"naive\"" => same_bits();
        /// Replay whole steps as CUDA graphs.
        cuda_graphs: Option<bool> = None;
            Execution, Type::Bool, "false" => unset("on a GPU with `placement = \"arena\"`"), same_bits(),
                   idle(&[When::Fact(Fact::OnCpu), When::Not("engine.placement", &["\"arena\""])]);
        /// Run fused ops; off replaces each by the smaller ops that it fuses.
        fused: bool = true; Execution, Type::Bool, "false";
        /// FlashAttention, or unfused attention that stores the matrix of scores.
        attention: Attention = Attention::Flash; Execution, Type::Word(Attention::WORDS), "\"unfused\"";
        /// Compute the sequences of a batch together, or one after another.
        batching: Batching = Batching::Batched; Execution, Type::Word(Batching::WORDS), "\"looped\""
                => idle(&[When::Fact(Fact::OneSequence)]);
        /// Exchange of gradients between ranks; off measures what the exchange costs, and trains nothing
        /// useful.
        communication: Communication = Communication::On;
            Training, Type::Word(Communication::WORDS), "\"off\""
                => idle(&[When::Is("parallelism.world_size", &["1"])]);
        /// Fill the memory of tensors that are not yet written or no longer needed with NaN, so that reading
        /// it is noticed.
        poison: bool = false; Execution, Type::Bool, "true" => same_bits();
    }

    /// Variants of this recipe, for `xrun sweep`. Inner keys are full paths such as `"model.dim"`.
    sweep: Sweep {
        /// Values per key; every combination is run.
        grid: toml::Table = toml::Table::new();
            Bookkeeping, Type::Grid, "{ \"optimizer.lr\" = [1e-3, 3e-3], \"model.n_layers\" = [4, 8] }";
        /// Values that change together; each set is combined with the whole grid.
        pairs: Vec<toml::Table> = Vec::new();
            Bookkeeping, Type::SettingsList,
            "[{ \"model.dim\" = 128, \"model.n_heads\" = 4 }, { \"model.dim\" = 64, \"model.n_heads\" = 2 }]";
        /// Combinations to leave out: every one that has all values of one of these sets.
        exclude: Vec<toml::Table> = Vec::new();
            Bookkeeping, Type::SettingsList, "[{ \"model.n_layers\" = 8, \"optimizer.lr\" = 3e-3 }]";
        /// Keys, each with the two ends of a range from which samples are drawn uniformly.
        range: toml::Table = toml::Table::new();
            Bookkeeping, Type::Ranges(RangeScale::Linear), "{ \"lr_scheduler.warmup_steps\" = [0, 200] }";
        /// Keys, each with the two ends of a range from which samples are drawn uniformly in the logarithm.
        log_range: toml::Table = toml::Table::new();
            Bookkeeping, Type::Ranges(RangeScale::Log), "{ \"optimizer.lr\" = [1e-4, 1e-2] }";
        /// Points drawn from the ranges; each is combined with every point of the grid.
        samples: usize = 0; Bookkeeping, count(0, MAX_SAMPLES), "27" => unit("samples");
        /// How samples are drawn: along a scrambled Sobol sequence, which fills the ranges evenly, or
        /// independently at random.
        sampler: Sampler = Sampler::Sobol; Bookkeeping, Type::Word(Sampler::WORDS), "\"random\""
                => idle(&[When::Is("sweep.samples", &["0"])]);
        /// Seed of the samples.
        seed: u64 = 0; Bookkeeping, count(0, MAX_SEED), "1"
                => idle(&[When::Is("sweep.samples", &["0"])]);
        /// Number of seeds that every cell runs with, from `training.seed` on.
        seeds: usize = 1; Bookkeeping, count(1, 1000), "5" => unit("seeds"),
                   refused(&[When::Fact(Fact::SeedsAreFixed)]);
        /// Figure of a run by which configurations are compared: one of docs/reports.md, or that of a task,
        /// `TASK/FIGURE`.
        on: String = "val_loss".to_owned(); Bookkeeping, Type::Text, "\"tok_s\"";
        /// Probability that the interval of a mean contains its true value, and that the set of the best
        /// configurations contains the best.
        confidence: f64 = 0.95;
            Bookkeeping, host_number(Included(0.5), Excluded(1.0)), "0.99" => unit("probability");
        /// Steps of successive halving: after each of them, which has an evaluation, the best 1/`eta` of the
        /// configurations by validation loss, or by the figure of a task if `on` is one, continue, and the
        /// others end.
        rungs: Option<Vec<usize>> = None;
            Bookkeeping, Type::Counts { max: MAX_TRAINING_STEPS }, "[100, 300]"
                => unit("optimizer steps"), unset("every cell trains to its end");
        /// With `decay = "wsd"`, steps after which the learning rate falls, one cell for each. The fall takes
        /// `decay_ratio` of the cell's length, which follows from both; cells share the steps before.
        cooldowns: Option<Vec<usize>> = None;
            Bookkeeping, Type::Counts { max: MAX_TRAINING_STEPS }, "[1000, 2000]"
                => unit("optimizer steps"), unset("every cell has the length of the recipe");
        /// One of this many configurations continues after a rung.
        eta: usize = 3; Bookkeeping, count(2, 1000), "2" => unit("configurations"),
                   idle(&[unset("sweep.rungs")]);
        /// Number of new seeds with which the best and the second best configuration run again at the end; 0
        /// confirms nothing.
        confirm: usize = 0; Bookkeeping, count(0, 1000), "5" => unit("seeds");
    }

    /// A change to try against this recipe, for `xrun compare`.
    compare: Compare {
        /// Keys that the candidate changes, with their values.
        change: toml::Table = toml::Table::new(); Bookkeeping, Type::Settings, "{ \"engine.fused\" = false }";
        /// Why the change should matter; printed with the verdict.
        hypothesis: String = String::new(); Bookkeeping, Type::Text, "\"fewer passes over memory\"";
        /// Expected result of the candidate: a verdict, or the change of a measured column.
        predicts: Option<Prediction> = None;
            Bookkeeping, Type::Prediction, "\"tok_s +30..+60%\"" => unset("no prediction");
        /// Runs of each arm, alternating.
        repeats: usize = 3; Bookkeeping, count(1, 1000), "5" => unit("runs"),
                   idle(&[set("compare.on")]);
        /// Smallest relative difference in tokens per second that counts as faster or slower.
        min_effect: f64 = 0.01; Bookkeeping, host_number(Included(0.0), Excluded(1.0)), "0.02" => unit("fraction");
        /// Measures of quality to judge, separated by commas, in pairs of runs with the same seed.
        on: Option<String> = None;
            Bookkeeping, Type::Text, "\"val_loss\"" => unset("speed is compared");
        /// Pairs of runs, with seeds from `training.seed` on.
        seeds: usize = 8; Bookkeeping, count(1, 10_000), "16" => unit("pairs"),
                   idle(&[unset("compare.on")]),
                   refused(&[When::All(&[set("compare.on"), When::Fact(Fact::SeedsAreFixed)])]);
        /// Probability that the intervals of all measures of quality contain the true differences.
        confidence: f64 = 0.95;
            Bookkeeping, host_number(Excluded(0.5), Excluded(1.0)), "0.99" => unit("probability"),
                   idle(&[unset("compare.on")]);
    }
}
