//! Choices among named alternatives that recipe, plan, passes and executor share.
//!
//! Each enum is defined here once, with the word that a recipe uses for every variant. Serde reads and writes
//! those words, `Display` prints them, and the table of recipe keys lists them through `WORDS`. Where a
//! recipe may also have a formula, the choice is [`OrFormula`].

mod corpus_source;
mod or_formula;

pub use corpus_source::CorpusSource;
pub use or_formula::{HasFormulas, OrFormula};

use crate::expression::Scope;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Defines an enum whose variants are the words that a recipe may use.
macro_rules! policy {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// The words of all variants, in the order of declaration.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Every variant, in the order of declaration.
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
    /// Precision of activations and matrix products; master weights and moments stay in fp32.
    TrainingDtype {
        /// bfloat16 activations, fp32 accumulation.
        Bf16 = "bf16",
        /// IEEE single precision throughout.
        Fp32 = "fp32",
        /// fp32 storage, products with TF32 inputs where the device has them.
        Tf32 = "tf32",
    }
}

policy! {
    /// What evaluations measure on held-out sets besides the loss.
    EvaluationTask {
        /// The share of tokens that are the likeliest.
        NextTokenAccuracy = "next_token_accuracy",
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
    /// Where the norms of a block stand.
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
        /// As [`Activation::Geglu`], with GELU's approximation by tanh.
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

    /// Returns the formula of the same function.
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

    fn of_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.word() == word)
    }
}

impl OrFormula<Activation> {
    /// Returns true if two products are activated together: if a formula is one of `a` and `b`.
    pub fn is_gated(&self) -> bool {
        match self {
            Self::Word(word) => word.is_gated(),
            Self::Formula(formula) => formula.variables().len() == 2,
        }
    }

    /// Returns the built-in activation of the same function: the chosen word, or the one whose formula is
    /// chosen.
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
        /// A trained vector of each position is added to the embedding.
        Learned = "learned",
        /// Only by the causal mask.
        None = "none",
    }
}

policy! {
    /// Sense in which the rotary embedding turns pairs of elements.
    RopeDirection {
        /// By `+position · frequency`, as in most models.
        Positive = "positive",
        /// By `-position · frequency`, as in nanochat.
        Negative = "negative",
    }
}

policy! {
    /// Change of the rotary frequencies for contexts longer than those that they were chosen for.
    RopeScaling {
        /// None.
        None = "none",
        /// All are divided by the factor.
        Linear = "linear",
        /// Low ones are divided by the factor, high ones kept, with a ramp between (Peng et al. 2023).
        Yarn = "yarn",
        /// As in Llama 3: by the wavelength relative to the original context.
        Llama3 = "llama3",
    }
}

policy! {
    /// Order of the norm of queries and keys and of their rotation.
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
        /// As those of other products.
        Unscaled = "unscaled",
        /// Zero: every block begins as the identity.
        Zero = "zero",
    }
}

policy! {
    /// Initial values of the head, where it is not the embedding.
    HeadInit {
        /// As those of other matrices.
        Normal = "normal",
        /// Zero: all tokens begin as equally probable, at every width.
        Zero = "zero",
    }
}

policy! {
    /// What follows the width of a model besides its shapes.
    Parametrization {
        /// The initial values of each matrix, by its own inputs. One learning rate for everything.
        Standard = "standard",
        /// The maximal update parametrization: initial values, the factor of logits, and by role the rate,
        /// the epsilon and the decay of the optimizer follow from the ratio of the width to a base width.
        Mup = "mup",
    }
}

policy! {
    /// What the initial values of a parameter are drawn by, besides the seed and the element.
    SeedScheme {
        /// Its name: a parameter more or less in the model leaves those of all others as they are.
        Name = "name",
        /// Its index among all parameters, as before names counted.
        Index = "index",
    }
}

policy! {
    /// How a sweep draws samples from ranges.
    Sampler {
        /// Points of Sobol's sequence, scrambled: they fill the ranges evenly.
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
        /// As [`Decay::Linear`].
        Linear = "linear",
        /// As [`Decay::OneMinusSqrt`].
        OneMinusSqrt = "one_minus_sqrt",
        /// As [`Decay::Exponential`].
        Exponential = "exponential",
        /// As [`Decay::Cosine`].
        Cosine = "cosine",
    }
}

impl HasFormulas for Decay {
    const SCOPE: Scope = Scope::Schedule;

    fn of_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.word() == word)
    }
}

policy! {
    /// Activations that the backward pass recomputes instead of keeping.
    Recompute {
        /// Nothing: every activation is kept.
        None = "none",
        /// Outputs that their gradients write again beside what they compute: no node runs twice.
        Emitted = "emitted",
        /// Outputs of cheap ops (norms, SwiGLU, rotary embedding, casts) whose inputs are kept anyway.
        Selective = "selective",
        /// Everything inside a block: only what passes from block to block is kept.
        Full = "full",
    }
}

policy! {
    /// What a recipe says of recomputation.
    RecomputeMode {
        /// The fastest of the others that fits the memory of the device.
        Auto = "auto",
        /// As [`Recompute::Emitted`].
        Emitted = "emitted",
        /// As [`Recompute::Selective`].
        Selective = "selective",
        /// As [`Recompute::Full`].
        Full = "full",
        /// As [`Recompute::None`].
        None = "none",
    }
}

impl RecomputeMode {
    /// Returns the mode that the recipe fixes; `None` for `auto`.
    pub const fn fixed(self) -> Option<Recompute> {
        match self {
            Self::Auto => None,
            Self::Emitted => Some(Recompute::Emitted),
            Self::Selective => Some(Recompute::Selective),
            Self::Full => Some(Recompute::Full),
            Self::None => Some(Recompute::None),
        }
    }
}

impl From<Recompute> for RecomputeMode {
    fn from(mode: Recompute) -> Self {
        match mode {
            Recompute::Emitted => Self::Emitted,
            Recompute::Selective => Self::Selective,
            Recompute::Full => Self::Full,
            Recompute::None => Self::None,
        }
    }
}

policy! {
    /// What decoupled weight decay is relative to.
    WeightDecay {
        /// The learning rate: a step multiplies by `1 − lr·weight_decay`.
        Coupled = "coupled",
        /// The learning rate's share of its peak, whatever that is: `1 − (lr / peak)·weight_decay`.
        Independent = "independent",
    }
}

policy! {
    /// How Muon's learning rate follows the shape of a matrix.
    RateAdjustment {
        /// `√max(1, outputs / inputs)` (Jordan et al. 2024).
        Original = "original",
        /// `0.2·√max(outputs, inputs)`: updates have the root mean square of AdamW's (Liu et al. 2025).
        MatchRmsAdamw = "match_rms_adamw",
    }
}

policy! {
    /// What ranks divide among themselves instead of each holding all of it.
    Shard {
        /// As [`Shard::Optimizer`] where two to four GPUs of one host exchange data by copies, as
        /// [`Shard::None`] otherwise.
        Auto = "auto",
        /// Nothing: every rank updates all parameters.
        None = "none",
        /// The optimizer's slots, and the masters where products read a compute copy: a rank updates what it
        /// owns, and gathers what others have updated (Rajbhandari et al., ZeRO, 2020, stage 1).
        Optimizer = "optimizer",
    }
}

policy! {
    /// Ways in which GPUs exchange data.
    Transport {
        /// As [`Transport::Copies`] where ranks divide the optimizer's slots and have access to each other's
        /// memory, as [`Transport::Nccl`] otherwise.
        Auto = "auto",
        /// Copies between the memories of GPUs of one host, by their copy engines.
        Copies = "copies",
        /// NCCL's collectives, which run on multiprocessors.
        Nccl = "nccl",
    }
}

impl Transport {
    /// Most ranks that exchange data by copies: kernels take an address of each.
    pub const MOST_COPYING: usize = 8;
}

policy! {
    /// Ways to start the ranks of a run.
    Launcher {
        /// As threads of this process.
        Thread = "thread",
        /// One child process per rank.
        Process = "process",
        /// By an external launcher (torchrun, srun, mpirun), whose environment variables give rank and world
        /// size.
        Env = "env",
    }
}

policy! {
    /// Ways to reduce gradients over ranks.
    Reduction {
        /// In contiguous ranges of at least `bucket_mib`, each as soon as the backward pass completes it.
        Bucketed = "bucketed",
        /// Parameter by parameter, all in one group after the backward pass.
        Grouped = "grouped",
    }
}

policy! {
    /// Resuming from the last checkpoint of an earlier run.
    Resume {
        /// Always start a new run.
        Never = "never",
        /// Resume the newest unfinished run of this recipe, if there is one.
        Auto = "auto",
    }
}

policy! {
    /// Writing checkpoints beside training.
    BackgroundSaves {
        /// Where the copy of the state fits the memory.
        Auto = "auto",
        /// Always: a copy that does not fit is an error.
        Always = "always",
        /// Never: training waits for every save.
        Never = "never",
    }
}

policy! {
    /// Checkpoints without the optimizer's state, which can be sampled, exported and evaluated, and not
    /// resumed.
    WeightsOnly {
        /// None.
        None = "none",
        /// Those that stay besides the newest, unless a resume may need them.
        Kept = "kept",
        /// All: the run cannot be resumed.
        All = "all",
    }
}

policy! {
    /// Requested devices of a run.
    DeviceChoice {
        /// On GPUs where there are any, else on the CPU.
        Auto = "auto",
        /// On the CPU.
        Cpu = "cpu",
        /// On NVIDIA GPUs.
        Cuda = "cuda",
    }
}

policy! {
    /// Memory of transient tensors. Results have the same bits for all.
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
    /// Ways in which the sequences of a batch reach the matrix products.
    Batching {
        /// All rows in one product.
        Batched = "batched",
        /// One sequence after another.
        Looped = "looped",
    }
}

policy! {
    /// Exchange of gradients between ranks; `off` measures what the exchange costs.
    Communication {
        /// Gradients are summed over ranks.
        On = "on",
        /// Each rank keeps its own gradients.
        Off = "off",
    }
}
