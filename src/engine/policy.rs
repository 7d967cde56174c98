//! Choices among named alternatives that recipe, plan, passes and executor share.
//!
//! Each enum is defined here once, with the word that a recipe uses for every variant. Serde reads and writes
//! these words, `Display` prints them, and the table of recipe keys lists them through `WORDS`. If a recipe
//! may also contain a formula, the choice is an [`OrFormula`].

mod corpus_source;
mod or_formula;
mod path_list;

pub use corpus_source::{CorpusSource, Validation};
pub use or_formula::{HasFormulas, OrFormula};
pub use path_list::PathList;

use crate::expression::Scope;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Defines an enum whose variants correspond to the words that a recipe may use.
macro_rules! policy {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// The words of all variants, in declaration order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Every variant, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word that a recipe uses for this variant.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

policy! {
    /// How documents are laid into the rows of a training batch.
    Packing {
        /// One stream of documents, cut into windows of equal length.
        Stream = "stream",
        /// Whole documents, packed by best fit decreasing and masked from each other.
        BestFit = "best_fit",
        /// Whole documents, one per row.
        Document = "document",
    }
}

policy! {
    /// Which windows of a corpus are shuffled with each other.
    Shuffle {
        /// All windows of a source.
        All = "all",
        /// The windows of a block, which is some 16 million consecutive tokens. Blocks stay in the order of
        /// the corpus, so training may begin before the rest of it is tokenized.
        Blocks = "blocks",
    }
}

policy! {
    /// Precision of activations and matrix products; master weights and moments stay in fp32.
    TrainingDtype {
        /// bfloat16 activations, fp32 accumulation.
        Bf16 = "bf16",
        /// As bf16, but products of the blocks read 8-bit floats.
        Fp8 = "fp8",
        /// IEEE single precision throughout.
        Fp32 = "fp32",
        /// fp32 storage; products read TF32 inputs on devices that have them.
        Tf32 = "tf32",
    }
}

policy! {
    /// The products that read 8-bit floats, by the role of their weights.
    Fp8Products {
        /// Those of the query, key, value and output projections.
        Attention = "attention",
        /// Those of the feed-forward layers.
        FeedForward = "feed_forward",
        /// Those of the projection to the vocabulary.
        Head = "head",
    }
}

impl Fp8Products {
    /// Width from which on all products gain on an H200 (docs/fp8.md).
    const WIDTH_OF_ALL: usize = 384;

    /// Returns the products that a model of a width gains from.
    pub fn for_width(dim: usize) -> Vec<Self> {
        if dim >= Self::WIDTH_OF_ALL { Self::ALL.to_vec() } else { vec![Self::FeedForward] }
    }
}

policy! {
    /// The 8-bit format of gradients.
    Fp8Gradients {
        /// 2 bits of mantissa and numbers down to 2⁻¹⁶.
        E5m2 = "e5m2",
        /// 3 bits of mantissa and numbers down to 2⁻⁹.
        E4m3 = "e4m3",
    }
}

policy! {
    /// Where the scale of a matrix of 8-bit floats comes from.
    Fp8Scaling {
        /// It follows from the matrix's largest magnitude in the step before.
        Delayed = "delayed",
        /// It puts the largest magnitude of the matrix itself at the largest number of the format, which
        /// takes one more pass over the matrix.
        Current = "current",
    }
}

policy! {
    /// What evaluations measure on held-out sets besides the loss.
    EvaluationTask {
        /// The share of tokens that the model finds likeliest.
        NextTokenAccuracy = "next_token_accuracy",
    }
}

policy! {
    /// What is trained in place of the weights of a model.
    AdapterKind {
        /// Nothing: the weights are trained.
        None = "none",
        /// A product of two matrices beside each matrix of some roles: LoRA (Hu et al., 2021).
        Lora = "lora",
    }
}

policy! {
    /// The loss of pairs of answers, of which one is preferred.
    PairLoss {
        /// Direct preference optimization (Rafailov et al., 2023).
        Dpo = "dpo",
        /// Identity preference optimization (Azar et al., 2023), with log ratios per token.
        Ipo = "ipo",
    }
}

policy! {
    /// The matrices of a model that get adapters.
    AdapterTarget {
        /// Query, key, value and output projections.
        Attention = "attention",
        /// The matrices of the feed-forward layers.
        FeedForward = "feed_forward",
    }
}

policy! {
    /// What the files of a text corpus are.
    TextFormat {
        /// What the ending and the first bytes of each file say.
        Auto = "auto",
        /// Plain text.
        Text = "text",
        /// JSON lines: an object on each line.
        JsonLines = "jsonl",
        /// Parquet tables.
        Parquet = "parquet",
        /// Conversations, in JSON lines, a JSON array or Parquet tables.
        Chat = "chat",
        /// Pairs of answers, of which one is preferred, in such files.
        Preference = "preference",
    }
}

policy! {
    /// What happens to a document that lacks the field with its text, or has null there.
    MissingField {
        /// It is an error.
        Error = "error",
        /// It is left out and counted.
        Skip = "skip",
    }
}

policy! {
    /// Norm of the residual stream.
    Norm {
        /// Root mean square, with a weight.
        RmsNorm = "rms_norm",
        /// Mean and variance, with a weight and a bias.
        LayerNorm = "layer_norm",
    }
}

policy! {
    /// Position of the norms in a block.
    NormPlacement {
        /// Before each sublayer, and before the head: `x + f(norm(x))`.
        Pre = "pre",
        /// After each residual addition: `norm(x + f(x))`, as in the first transformers.
        Post = "post",
        /// Before and after each sublayer: `x + norm(f(norm(x)))`, as in Gemma 2.
        Sandwich = "sandwich",
    }
}

policy! {
    /// Activation of the feed-forward layer. Gated ones multiply the activation of one product by another.
    Activation {
        /// `silu(gate) · up`, gated (Shazeer 2020).
        Swiglu = "swiglu",
        /// `gelu(gate) · up`, gated, with the exact GELU.
        Geglu = "geglu",
        /// Like [`Activation::Geglu`], with GELU approximated by tanh.
        GegluTanh = "geglu_tanh",
        /// `max(gate, 0) · up`, gated.
        Reglu = "reglu",
        /// `x · Φ(x)`, where Φ is the normal distribution function (Hendrycks and Gimpel 2016).
        Gelu = "gelu",
        /// GELU approximated by tanh, as in GPT-2.
        GeluTanh = "gelu_tanh",
        /// `max(x, 0)²` (So et al. 2021).
        Relu2 = "relu2",
        /// `x · sigmoid(x)`.
        Silu = "silu",
    }
}

impl Activation {
    /// Returns true if one product is activated and multiplied by another.
    pub const fn is_gated(self) -> bool {
        matches!(self, Self::Swiglu | Self::Geglu | Self::GegluTanh | Self::Reglu)
    }

    /// Returns the formula for the same function.
    pub const fn as_formula(self) -> &'static str {
        match self {
            Self::Swiglu => "silu(a) * b",
            Self::Geglu => "gelu(a) * b",
            Self::GegluTanh => "gelu_tanh(a) * b",
            Self::Reglu => "relu(a) * b",
            Self::Gelu => "gelu(x)",
            Self::GeluTanh => "gelu_tanh(x)",
            Self::Relu2 => "relu(x)^2",
            Self::Silu => "silu(x)",
        }
    }
}

impl HasFormulas for Activation {
    const SCOPE: Scope = Scope::Activation;
}

impl OrFormula<Activation> {
    /// Returns true if two products are activated together, which a formula does if it uses `a` and `b`.
    pub fn is_gated(&self) -> bool {
        match self {
            Self::Word(word) => word.is_gated(),
            Self::Formula(formula) => formula.variables().len() == 2,
        }
    }

    /// Returns the built-in activation for the same function: the chosen word, or the word with the chosen
    /// formula.
    pub fn built_in(&self) -> Option<Activation> {
        match self {
            Self::Word(word) => Some(*word),
            Self::Formula(formula) => {
                Activation::ALL.iter().copied().find(|word| word.as_formula() == formula.text())
            }
        }
    }
}

policy! {
    /// How a model knows the positions of tokens.
    Position {
        /// Queries and keys are rotated (Su et al. 2021).
        Rope = "rope",
        /// A trained vector per position is added to the embedding.
        Learned = "learned",
        /// Only through the causal mask.
        None = "none",
    }
}

policy! {
    /// The sense in which the rotary embedding rotates pairs of elements.
    RopeDirection {
        /// By `+position · frequency`, as in most models.
        Positive = "positive",
        /// By `-position · frequency`, as in nanochat.
        Negative = "negative",
    }
}

policy! {
    /// How the rotary frequencies change for contexts longer than the one they were chosen for.
    RopeScaling {
        /// They do not change.
        None = "none",
        /// All frequencies are divided by the factor.
        Linear = "linear",
        /// Low frequencies are divided by the factor and high ones kept, with a ramp between (Peng et al.
        /// 2023).
        Yarn = "yarn",
        /// As in Llama 3, by wavelength relative to the original context.
        Llama3 = "llama3",
    }
}

policy! {
    /// Order of normalization and rotation of queries and keys.
    QkNormPlace {
        /// Normalized, then rotated, as in Qwen3.
        BeforeRope = "before_rope",
        /// Rotated, then normalized, as in nanochat.
        AfterRope = "after_rope",
    }
}

policy! {
    /// Initial values of the two products of a block that write the residual stream.
    ResidualInit {
        /// Their standard deviation is divided by the square root of twice the number of blocks, as in GPT-2.
        DepthScaled = "depth_scaled",
        /// The same as for other products.
        Unscaled = "unscaled",
        /// Zero: every block begins as the identity.
        Zero = "zero",
    }
}

policy! {
    /// Initial values of the head, if it is not the embedding.
    HeadInit {
        /// The same as for other matrices.
        Normal = "normal",
        /// Zero: all tokens start equally probable, at every width.
        Zero = "zero",
    }
}

policy! {
    /// What depends on the width of a model besides its shapes.
    Parametrization {
        /// The initial values of each matrix depend on its own inputs. There is one learning rate for
        /// everything.
        Standard = "standard",
        /// The maximal update parametrization: the initial values, the factor of the logits and, by role, the
        /// optimizer's learning rate, epsilon and decay follow from the ratio of the width to a base width.
        Mup = "mup",
    }
}

policy! {
    /// What determines the initial values of a parameter, besides the seed and the element.
    SeedScheme {
        /// Its name: adding or removing a parameter leaves the values of all others the same.
        Name = "name",
        /// Its index among all parameters, as in runs from before names were used.
        Index = "index",
    }
}

policy! {
    /// How a sweep draws samples from ranges.
    Sampler {
        /// Points of a scrambled Sobol sequence, which fill the ranges evenly.
        Sobol = "sobol",
        /// Independent uniform points.
        Random = "random",
    }
}

policy! {
    /// Shape of the learning-rate schedule after the warm-up.
    Decay {
        /// Half a cosine from the peak to the minimum.
        Cosine = "cosine",
        /// A straight line from the peak to the minimum.
        Linear = "linear",
        /// Warm-up, stable, decay: constant, then a [`Cooldown`] over the last `decay_ratio` of the steps.
        Wsd = "wsd",
        /// `1 − √x` of the share x that is done: fast at first, slower towards the minimum.
        OneMinusSqrt = "one_minus_sqrt",
        /// The same factor in every step, from the peak to the minimum.
        Exponential = "exponential",
    }
}

policy! {
    /// Shape of the decay phase of [`Decay::Wsd`].
    Cooldown {
        /// See [`Decay::Linear`].
        Linear = "linear",
        /// See [`Decay::OneMinusSqrt`].
        OneMinusSqrt = "one_minus_sqrt",
        /// See [`Decay::Exponential`].
        Exponential = "exponential",
        /// See [`Decay::Cosine`].
        Cosine = "cosine",
    }
}

impl HasFormulas for Decay {
    const SCOPE: Scope = Scope::Schedule;
}

policy! {
    /// Activations that the backward pass recomputes instead of keeping.
    Recompute {
        /// Nothing: every activation is kept.
        None = "none",
        /// Outputs that gradient ops write again as by-products, so no node runs twice.
        Emitted = "emitted",
        /// Outputs of cheap ops (norms, SwiGLU, rotary embedding, casts) whose inputs are kept anyway.
        Selective = "selective",
        /// Everything inside a block; only what passes between blocks is kept.
        Full = "full",
    }
}

/// The recompute mode as a recipe sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecomputeMode {
    /// The fastest of the other modes that fits the memory of the device.
    #[serde(rename = "auto")]
    Auto,
    /// This mode.
    #[serde(untagged)]
    Fixed(Recompute),
}

impl RecomputeMode {
    /// The words that a recipe may use.
    pub const WORDS: &'static [&'static str] = &["auto", "emitted", "selective", "full", "none"];

    /// Returns the mode that the recipe fixes; `None` for `auto`.
    pub const fn fixed(self) -> Option<Recompute> {
        match self {
            Self::Auto => None,
            Self::Fixed(mode) => Some(mode),
        }
    }
}

policy! {
    /// What decoupled weight decay is relative to.
    WeightDecay {
        /// The learning rate: a step multiplies by `1 − lr·weight_decay`.
        Coupled = "coupled",
        /// The learning rate's share of its peak, whatever the peak is: `1 − (lr / peak)·weight_decay`.
        Independent = "independent",
    }
}

policy! {
    /// How Muon's learning rate depends on the shape of a matrix.
    RateAdjustment {
        /// `√max(1, outputs / inputs)` (Jordan et al. 2024).
        Original = "original",
        /// `0.2·√max(outputs, inputs)`: updates have the same root mean square as AdamW's (Liu et al. 2025).
        MatchRmsAdamw = "match_rms_adamw",
    }
}

policy! {
    /// The polynomials by which Muon brings singular values near 1.
    Orthogonalization {
        /// One polynomial in every iteration (Jordan et al. 2024).
        NewtonSchulz = "newton_schulz",
        /// A polynomial for each iteration, the best for the singular values that the ones before it leave
        /// (Amsel et al., "The Polar Express", 2025).
        PolarExpress = "polar_express",
    }
}

policy! {
    /// What is divided among the ranks instead of held in full by each.
    Shard {
        /// [`Shard::Optimizer`] if two to four GPUs of one host exchange data by copies, else
        /// [`Shard::None`].
        Auto = "auto",
        /// Nothing: every rank updates all parameters.
        None = "none",
        /// The optimizer's slots, and the master weights if products read a compute copy: a rank updates the
        /// part it owns and gathers the parts that others have updated (Rajbhandari et al., ZeRO, 2020, stage
        /// 1).
        Optimizer = "optimizer",
    }
}

policy! {
    /// How GPUs exchange data.
    Transport {
        /// [`Transport::Copies`] if ranks divide the optimizer's slots and have access to each other's
        /// memory, else [`Transport::Nccl`].
        Auto = "auto",
        /// Copies between the memories of GPUs of one host, made by their copy engines.
        Copies = "copies",
        /// NCCL's collectives, which run on multiprocessors.
        Nccl = "nccl",
    }
}

impl Transport {
    /// Most ranks that exchange data by copies: kernels take one address per rank.
    pub const MOST_COPYING: usize = 8;
}

policy! {
    /// How the ranks of a run are started.
    Launcher {
        /// As threads of this process.
        Thread = "thread",
        /// One child process per rank.
        Process = "process",
        /// By an external launcher (torchrun, srun, mpirun), whose environment variables give the rank and
        /// the world size.
        Env = "env",
    }
}

policy! {
    /// How gradients are reduced over ranks.
    Reduction {
        /// In contiguous ranges of at least `bucket_mib`, each as soon as the backward pass completes it.
        Bucketed = "bucketed",
        /// Parameter by parameter, all in one group after the backward pass.
        Grouped = "grouped",
    }
}

policy! {
    /// Whether a run resumes from the last checkpoint of an earlier run.
    Resume {
        /// Always start a new run.
        Never = "never",
        /// Resume the newest unfinished run of this recipe, if there is one.
        Auto = "auto",
    }
}

policy! {
    /// Whether checkpoints are written while training continues.
    BackgroundSaves {
        /// If the copy of the state fits the memory.
        Auto = "auto",
        /// Always; a copy that does not fit is an error.
        Always = "always",
        /// Never; training waits for every save.
        Never = "never",
    }
}

policy! {
    /// Which checkpoints are saved without the optimizer's state. They can be sampled, exported and
    /// evaluated, but not resumed.
    WeightsOnly {
        /// None.
        None = "none",
        /// Those that are kept besides the newest, unless a resume may need them.
        Kept = "kept",
        /// All: the run cannot be resumed.
        All = "all",
    }
}

policy! {
    /// The devices that a run requests.
    DeviceChoice {
        /// GPUs if there are any, else the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// NVIDIA GPUs.
        Cuda = "cuda",
    }
}

policy! {
    /// How memory of transient tensors is allocated. Results have the same bits with each.
    Placement {
        /// One allocation, every offset planned ahead.
        Arena = "arena",
        /// Freed blocks are kept in lists by size class and reused.
        Caching = "caching",
        /// One system allocation per tensor, returned when the tensor dies.
        Naive = "naive",
    }
}

policy! {
    /// Implementations of attention.
    Attention {
        /// Blocks of keys with an online softmax; no T × T tensor.
        Flash = "flash",
        /// Scores, probabilities and dropout as tensors.
        Unfused = "unfused",
    }
}

policy! {
    /// How the sequences of a batch reach the matrix products.
    Batching {
        /// All rows in one product.
        Batched = "batched",
        /// One sequence after another.
        Looped = "looped",
    }
}

policy! {
    /// Whether ranks exchange gradients; `off` measures what the exchange costs.
    Communication {
        /// Gradients are summed over ranks.
        On = "on",
        /// Each rank keeps its own gradients.
        Off = "off",
    }
}
