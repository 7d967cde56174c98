//! The table of keys: the one place that says what a recipe may contain.
//!
//! Messages, `xrun schema`, `docs/recipes.md`, the rules for resuming and the hash of a recipe are all read off this
//! table. Default values are those of [`super::schema::Recipe::default`].

use super::key::{
    Class::{Bookkeeping, Execution, Training},
    Interval, Key, Type,
};
use crate::policy::{
    Attention, Batching, Communication, Decay, DeviceChoice, Launcher, Placement, Recompute, Reduction,
    Resume, TrainingDtype,
};
use std::ops::Bound::{self, Excluded, Included};

/// Largest seed: what a TOML integer holds.
const MAX_SEED: u64 = i64::MAX as u64;
/// Of a training, whose schedule lies in memory: 1.5 GiB of rows.
const MAX_TRAINING: u64 = 100_000_000;
const MAX_STEPS: u64 = 1_000_000_000;
pub const MAX_RANKS: u64 = 65_536;
/// Of a generated corpus, which lies in memory: 16 GiB of ids.
const MAX_TOKENS: u64 = 1 << 32;

const fn count(min: u64, max: u64) -> Type {
    Type::Count { min, max }
}

const fn interval(low: Bound<f64>, high: Bound<f64>) -> Interval {
    Interval { low, high }
}

const fn number(low: Bound<f64>, high: Bound<f64>) -> Type {
    Type::Number(interval(low, high))
}

/// The sections, in the order in which recipes are written, each with what it is for.
pub static SECTIONS: &[(&str, &str)] = &[
    ("job", "What the recipe is for."),
    (
        "model",
        "The architecture: a decoder with RMSNorm, rotary grouped-query attention and SwiGLU, without biases.",
    ),
    ("training", "How much is trained, and on how much at a time."),
    ("optimizer", "AdamW."),
    ("lr_scheduler", "The learning rate over the steps."),
    ("activation_checkpoint", "Memory against time in the backward pass."),
    ("parallelism", "Data-parallel ranks."),
    ("data", "What is trained on and evaluated on."),
    ("checkpoint", "When the state is saved, and whether it is picked up again."),
    ("validation", "When the model is evaluated, and on how much."),
    ("generation", "Text that the model writes while and after it trains."),
    ("metrics", "How often progress is shown, and which steps count as steady state."),
    ("engine", "Where and how the program is executed."),
    (
        "sweep",
        "Variants of this recipe, for `xrun sweep`. Inner keys are full paths such as `\"model.dim\"`.",
    ),
    ("compare", "A change to try against this recipe, for `xrun compare`."),
];

/// Every key, section by section.
pub static KEYS: &[Key] = &[
    Key::new("job.description", Bookkeeping, Type::Text, "One line for people; `xrun ls` shows it.", "\"baseline\""),
    Key::new("model.dim", Training, count(1, 65_536), "Width of the residual stream.", "384")
        .unit("elements")
        .aliases(&["hidden_size", "d_model", "n_embd"]),
    Key::new("model.n_layers", Training, count(1, 1024), "Number of blocks.", "12")
        .aliases(&["num_hidden_layers", "num_layers", "n_layer"]),
    Key::new("model.n_heads", Training, count(1, 4096), "Query heads per block.", "12")
        .aliases(&["num_attention_heads", "n_head"]),
    Key::new("model.n_kv_heads", Training, count(1, 4096), "Key and value heads per block; divides `n_heads`.", "4")
        .unset("`n_heads`")
        .aliases(&["num_key_value_heads"]),
    Key::new("model.head_dim", Training, count(2, 1024), "Width of one head; even, for the rotary embedding.", "32")
        .unit("elements")
        .unset("`dim / n_heads`"),
    Key::new("model.ffn_dim", Training, count(1, 1_048_576), "Width between the projections of SwiGLU.", "1536")
        .unit("elements")
        .aliases(&["intermediate_size", "ffn_hidden_size"]),
    Key::new(
        "model.dropout",
        Training,
        number(Included(0.0), Excluded(1.0)),
        "Probability of zeroing an element after the embedding, in the attention and on each residual branch.",
        "0.1",
    )
    .unit("probability"),
    Key::new("model.qk_norm", Training, Type::Bool, "Normalize queries and keys per head.", "false")
        .aliases(&["use_qk_norm"]),
    Key::new(
        "model.rope_theta",
        Training,
        number(Included(1.0), Included(1e9)),
        "Base of the wavelengths of the rotary embedding.",
        "1000000.0",
    )
    .aliases(&["rope_base"]),
    Key::new(
        "model.norm_eps",
        Training,
        number(Excluded(0.0), Included(0.1)),
        "Added to the mean square inside RMSNorm.",
        "1e-5",
    )
    .aliases(&["rms_norm_eps"]),
    Key::new("model.tie_embeddings", Training, Type::Bool, "One matrix for the embedding and the head.", "true")
        .aliases(&["tie_word_embeddings"]),
    Key::new("training.seq_len", Training, count(1, 1_048_576), "Length of a sequence.", "256")
        .unit("tokens")
        .aliases(&["sequence_length", "max_seq_len", "max_seq_length", "block_size"]),
    Key::new(
        "training.local_batch_size",
        Training,
        count(1, 1_048_576),
        "Batch of one rank in one micro step. Execution class while the global batch size stays the same.",
        "32",
    )
    .unit("sequences")
    .unset("follows from the global batch size; 8 without one")
    .aliases(&["per_device_train_batch_size", "micro_batch_size"]),
    Key::new(
        "training.global_batch_size",
        Training,
        count(1, 16_777_216),
        "Batch of one optimizer step over all ranks; setting it keeps the curve when the number of ranks changes.",
        "256",
    )
    .unit("sequences")
    .unset("`local_batch_size · accumulation · world_size`")
    .aliases(&["train_batch_size"]),
    Key::new(
        "training.accumulation",
        Training,
        count(1, 1_048_576),
        "Micro steps per optimizer step. Execution class while the global batch size stays the same.",
        "4",
    )
    .unit("micro steps")
    .unset("follows from the batch sizes; 1 without both")
    .aliases(&["gradient_accumulation_steps", "grad_accumulation_steps"]),
    Key::new("training.steps", Training, count(1, MAX_TRAINING), "Length of the training.", "20_000")
        .unit("optimizer steps")
        .aliases(&["max_steps", "num_steps"]),
    Key::new(
        "training.dtype",
        Training,
        Type::Word(TrainingDtype::WORDS),
        "Precision of activations and products; master weights stay in fp32.",
        "\"bf16\"",
    )
    .aliases(&["precision", "torch_dtype"]),
    Key::new(
        "training.max_norm",
        Training,
        number(Included(0.0), Included(1e6)),
        "Gradients with a larger global L2 norm are scaled down to it; 0 turns clipping off.",
        "0.5",
    )
    .aliases(&["max_grad_norm", "grad_clip"]),
    Key::new("training.seed", Training, count(0, MAX_SEED), "Seed of initialization, order and dropout.", "42"),
    Key::new("optimizer.lr", Training, number(Included(0.0), Included(10.0)), "Peak learning rate.", "3e-4")
        .aliases(&["learning_rate"]),
    Key::new(
        "optimizer.betas",
        Training,
        Type::Pair(interval(Included(0.0), Excluded(1.0))),
        "Share of the first and the second moment that each step keeps.",
        "[0.9, 0.999]",
    ),
    Key::new(
        "optimizer.eps",
        Training,
        number(Excluded(0.0), Included(1.0)),
        "Added to the root of the second moment.",
        "1e-6",
    )
    .aliases(&["adam_epsilon"]),
    Key::new(
        "optimizer.weight_decay",
        Training,
        number(Included(0.0), Included(10.0)),
        "Decoupled weight decay, as a multiple of the learning rate; spares vectors.",
        "0.01",
    ),
    Key::new(
        "lr_scheduler.warmup_steps",
        Training,
        count(0, MAX_STEPS),
        "Length of the linear rise to the peak.",
        "100",
    )
    .unit("optimizer steps"),
    Key::new(
        "lr_scheduler.min_lr_ratio",
        Training,
        number(Included(0.0), Included(1.0)),
        "Learning rate at the end, as a share of the peak.",
        "0.0",
    )
    .aliases(&["min_lr_factor", "min_lr_rate"]),
    Key::new(
        "lr_scheduler.decay",
        Training,
        Type::Word(Decay::WORDS),
        "Shape of the fall: half a cosine, a line, or flat with a line at the end (warm-up, stable, decay).",
        "\"wsd\"",
    )
    .aliases(&["decay_type", "lr_scheduler_type"]),
    Key::new(
        "lr_scheduler.decay_ratio",
        Training,
        number(Excluded(0.0), Included(1.0)),
        "Share of all steps in the decay phase of `wsd`.",
        "0.1",
    ),
    Key::new(
        "activation_checkpoint.mode",
        Execution,
        Type::Word(Recompute::WORDS),
        "Activations that the backward pass computes again: cheap ones, whole blocks, or none.",
        "\"full\"",
    ),
    Key::new(
        "parallelism.world_size",
        Execution,
        Type::CountOrWord { min: 1, max: MAX_RANKS, word: "auto" },
        "Number of data-parallel ranks; `\"auto\"` takes every device, or what the launcher says. Training class unless `training.global_batch_size` is set.",
        "8",
    )
    .unit("ranks")
    .aliases(&["data_parallel_size", "num_gpus"]),
    Key::new(
        "parallelism.launcher",
        Execution,
        Type::Word(Launcher::WORDS),
        "How ranks start: threads, child processes, or already started by `torchrun`, `srun` or `mpirun`.",
        "\"env\"",
    ),
    Key::new(
        "parallelism.reduction",
        Execution,
        Type::Word(Reduction::WORDS),
        "Gradients in buckets, each reduced where the backward pass completes it, or every parameter by itself, in one group at the end.",
        "\"grouped\"",
    ),
    Key::new(
        "parallelism.bucket_mib",
        Execution,
        number(Included(0.0), Included(65_536.0)),
        "Gradients per all-reduce, at least; those of the head are sent by themselves, first. 0 reduces parameter by parameter.",
        "50.0",
    )
    .unit("MiB")
    .aliases(&["bucket_cap_mb"]),
    Key::new("parallelism.overlap", Execution, Type::Bool, "Reduce while the backward pass still runs.", "false"),
    Key::new(
        "parallelism.embedding_exchange",
        Execution,
        Type::Bool,
        "Exchange the rows of the embedding's gradient where that takes fewer bytes than to reduce all of it.",
        "false",
    ),
    Key::new(
        "parallelism.channels",
        Execution,
        count(1, 64),
        "Blocks of a GPU that take part in a collective: fewer leave more of the GPU to the backward pass beside them.",
        "8",
    )
    .unit("channels")
    .unset("NCCL chooses")
    .aliases(&["nccl_max_nchannels"]),
    Key::new(
        "parallelism.check_interval",
        Bookkeeping,
        count(0, MAX_STEPS),
        "Distance of two comparisons of the parameters of all ranks; 0 compares only before saves and at the end.",
        "1000",
    )
    .unit("optimizer steps"),
    Key::new(
        "parallelism.timeout_s",
        Bookkeeping,
        number(Excluded(0.0), Included(1e9)),
        "Time without a sign of a rank after which the run is ended, and in which ranks have to find each other.",
        "60.0",
    )
    .unit("s"),
    Key::new(
        "data.corpus",
        Training,
        Type::NameOrPath(&["stories", "random"]),
        "Training text: generated stories, random tokens, or a file or folder of text or token shards.",
        "\"random\"",
    )
    .aliases(&["dataset", "dataset_path"]),
    Key::new(
        "data.tokenizer",
        Training,
        Type::NameOrPath(&["gpt2", "byte", "stories"]),
        "How text becomes tokens: built in, or a `tokenizer.json`.",
        "\"gpt2\"",
    )
    .aliases(&["tokenizer_path"]),
    Key::new(
        "data.document_separator",
        Training,
        Type::Text,
        "Text between two documents of a text corpus.",
        "\"<|endoftext|>\"",
    )
    .unset("each file is one document"),
    Key::new(
        "data.cross_documents",
        Training,
        Type::Bool,
        "Whether a training window may run from one document into the next.",
        "false",
    ),
    Key::new(
        "data.validation",
        Training,
        Type::FractionOrPath(interval(Excluded(0.0), Excluded(1.0))),
        "Share of a corpus that is held out, from its end; or a corpus of its own.",
        "0.1",
    ),
    Key::new("data.train_tokens", Training, count(1, MAX_TOKENS), "Size of a generated corpus.", "500_000")
        .unit("tokens"),
    Key::new(
        "data.validation_tokens",
        Training,
        count(1, MAX_TOKENS),
        "Held-out size of a generated corpus.",
        "65_536",
    )
    .unit("tokens"),
    Key::new("data.seed", Training, count(0, MAX_SEED), "Seed of the generator.", "7"),
    Key::new(
        "checkpoint.interval",
        Bookkeeping,
        count(0, MAX_STEPS),
        "Distance of two checkpoints; 0 saves only at the end.",
        "500",
    )
    .unit("optimizer steps")
    .aliases(&["save_steps"]),
    Key::new(
        "checkpoint.keep",
        Bookkeeping,
        count(0, 1_000_000),
        "How many of the newest checkpoints stay; 0 saves none at all, for runs that only measure.",
        "5",
    )
    .unit("checkpoints")
    .aliases(&["keep_latest_k", "save_total_limit"]),
    Key::new(
        "checkpoint.resume",
        Bookkeeping,
        Type::Word(Resume::WORDS),
        "Whether to go on from the newest complete checkpoint of this recipe.",
        "\"auto\"",
    ),
    Key::new(
        "validation.interval",
        Bookkeeping,
        count(0, MAX_STEPS),
        "Distance of two evaluations; 0 evaluates only at the end.",
        "100",
    )
    .unit("optimizer steps")
    .aliases(&["eval_steps", "eval_interval", "freq"]),
    Key::new(
        "validation.steps",
        Bookkeeping,
        count(0, MAX_STEPS),
        "Length of an evaluation, in batches of the global size; 0 takes every held-out window.",
        "20",
    )
    .unit("batches")
    .aliases(&["eval_iters"]),
    Key::new(
        "generation.interval",
        Bookkeeping,
        count(0, MAX_STEPS),
        "Distance of two generations; 0 generates only at the end.",
        "500",
    )
    .unit("optimizer steps"),
    Key::new("generation.samples", Bookkeeping, count(0, 4096), "Samples each time; 0 generates nothing.", "2")
        .unit("samples")
        .aliases(&["num_return_sequences"]),
    Key::new("generation.tokens", Bookkeeping, count(1, 1_048_576), "New tokens per sample.", "128")
        .unit("tokens")
        .aliases(&["max_new_tokens"]),
    Key::new("generation.prompt", Bookkeeping, Type::Text, "Text that every sample goes on from.", "\"Once upon\""),
    Key::new(
        "generation.temperature",
        Bookkeeping,
        number(Included(0.0), Included(100.0)),
        "Divides the logits; 0 takes the likeliest token.",
        "1.0",
    ),
    Key::new(
        "generation.top_k",
        Bookkeeping,
        count(0, 1_048_576),
        "Sample among this many likeliest tokens; 0 among all.",
        "40",
    )
    .unit("tokens"),
    Key::new(
        "generation.top_p",
        Bookkeeping,
        number(Excluded(0.0), Included(1.0)),
        "Sample among the likeliest tokens that together hold this much; 1 among all.",
        "0.9",
    )
    .unit("probability"),
    Key::new("generation.seed", Bookkeeping, count(0, MAX_SEED), "Seed of the sampling.", "1"),
    Key::new(
        "metrics.interval",
        Bookkeeping,
        count(1, MAX_STEPS),
        "Distance of two lines of progress; `metrics.csv` has a row for every step.",
        "1",
    )
    .unit("optimizer steps")
    .aliases(&["log_freq", "logging_steps", "log_interval"]),
    Key::new("metrics.warmup", Bookkeeping, count(0, MAX_STEPS), "First steps, never counted as steady state.", "10")
        .unit("optimizer steps"),
    Key::new(
        "engine.device",
        Execution,
        Type::Word(DeviceChoice::WORDS),
        "Where to run; `\"auto\"` takes the GPU where there is one.",
        "\"cpu\"",
    ),
    Key::new("engine.devices", Execution, Type::Counts { max: 1023 }, "Indices of the GPUs, rank by rank.", "[0, 1]")
        .unset("the first `world_size`"),
    Key::new("engine.threads", Execution, count(1, 65_536), "CPU threads.", "4").unit("threads").unset("all"),
    Key::new(
        "engine.memory_limit_gib",
        Execution,
        number(Excluded(0.0), Included(1e6)),
        "A plan that needs more per rank is refused.",
        "32.0",
    )
    .unit("GiB")
    .unset("what the device has"),
    Key::new(
        "engine.placement",
        Execution,
        Type::Word(Placement::WORDS),
        "Who gives tensors their addresses: one planned block, a free list, or an allocation each.",
        "\"naive\"",
    ),
    Key::new("engine.cuda_graphs", Execution, Type::Bool, "Replay whole steps as CUDA graphs.", "false")
        .unset("on a GPU with `placement = \"arena\"`"),
    Key::new("engine.fused", Execution, Type::Bool, "Run fused operations; off expands each into its parts.", "false"),
    Key::new(
        "engine.attention",
        Execution,
        Type::Word(Attention::WORDS),
        "Attention in tiles, or with the matrix of scores in memory.",
        "\"unfused\"",
    ),
    Key::new(
        "engine.batching",
        Execution,
        Type::Word(Batching::WORDS),
        "The sequences of a batch in one product, or one after another.",
        "\"looped\"",
    ),
    Key::new(
        "engine.communication",
        Training,
        Type::Word(Communication::WORDS),
        "Whether ranks exchange gradients; off measures what the exchange costs, and trains nothing useful.",
        "\"off\"",
    ),
    Key::new("engine.poison", Execution, Type::Bool, "Fill dead memory with NaN, so that a stale read shows.", "true"),
    Key::new(
        "sweep.grid",
        Bookkeeping,
        Type::Grid,
        "Values per key; every combination is run.",
        "{ \"optimizer.lr\" = [1e-3, 3e-3], \"model.n_layers\" = [4, 8] }",
    ),
    Key::new(
        "sweep.pairs",
        Bookkeeping,
        Type::SettingsList,
        "Values that change together; each set is combined with the whole grid.",
        "[{ \"model.dim\" = 128, \"model.n_heads\" = 4 }, { \"model.dim\" = 256, \"model.n_heads\" = 8 }]",
    ),
    Key::new(
        "sweep.exclude",
        Bookkeeping,
        Type::SettingsList,
        "Combinations to leave out: those that agree with every value of one set.",
        "[{ \"model.n_layers\" = 8, \"optimizer.lr\" = 3e-3 }]",
    ),
    Key::new(
        "compare.change",
        Bookkeeping,
        Type::Settings,
        "What is different on the changed side.",
        "{ \"engine.fused\" = false }",
    ),
    Key::new(
        "compare.hypothesis",
        Bookkeeping,
        Type::Text,
        "Why the change should matter; printed with the verdict.",
        "\"fewer passes over memory\"",
    ),
    Key::new(
        "compare.predicts",
        Bookkeeping,
        Type::Prediction,
        "What is expected of the changed side: a verdict, or the change of a measured column.",
        "\"tok_s +30..+60%\"",
    )
    .unset("no prediction"),
    Key::new("compare.repeats", Bookkeeping, count(1, 1000), "Runs of each side, in turn.", "5").unit("runs"),
    Key::new(
        "compare.min_effect",
        Bookkeeping,
        number(Included(0.0), Excluded(1.0)),
        "Smallest relative difference in tokens per second that counts.",
        "0.02",
    )
    .unit("share"),
];
