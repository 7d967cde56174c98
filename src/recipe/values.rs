//! The value types that are more than a number, a flag or a text: words out of a fixed set, and two either-or values.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Defines an enum whose variants are the words that a recipe may use.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// The words a recipe may use, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word for this value, as a recipe spells it.
            pub fn word(self) -> &'static str {
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

words! {
    /// Precision of activations and matrix products; master weights and moments stay in fp32.
    Dtype {
        /// bfloat16 activations, fp32 accumulation.
        Bf16 = "bf16",
        /// IEEE single precision throughout.
        Fp32 = "fp32",
        /// fp32 storage, products with TF32 inputs where the device has them.
        Tf32 = "tf32",
    }
}

words! {
    /// Shape of the learning-rate schedule after the warm-up.
    Decay {
        /// Half a cosine from the peak to the floor.
        Cosine = "cosine",
        /// A straight line from the peak to the floor.
        Linear = "linear",
        /// Warm-up, stable, decay: flat, then a straight line over the last `decay_ratio` of the steps.
        Wsd = "wsd",
    }
}

words! {
    /// Which activations the backward pass computes again instead of keeping.
    Recompute {
        /// What is cheap: norms, SwiGLU, rotary embedding, casts.
        Selective = "selective",
        /// Whole blocks.
        Full = "full",
        /// Nothing.
        None = "none",
    }
}

words! {
    /// How ranks are started.
    Launcher {
        /// Threads of this process.
        Thread = "thread",
        /// One child process per rank.
        Process = "process",
        /// Somebody else has: rank and world come from the environment.
        Env = "env",
    }
}

words! {
    /// How gradients are reduced over ranks.
    Reduction {
        /// In ranges of at least `bucket_mib`, each where the backward pass completes it.
        Bucketed = "bucketed",
        /// Every parameter by itself, all in one group after the backward pass.
        Grouped = "grouped",
    }
}

words! {
    /// Whether a run goes on from the last checkpoint.
    Resume {
        /// Always start afresh.
        Never = "never",
        /// Go on from the newest complete checkpoint of this recipe, where there is one.
        Auto = "auto",
    }
}

words! {
    /// Where the program runs.
    Device {
        /// The GPU where there is one, else the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
    }
}

words! {
    /// Who gives tensors their addresses.
    Placement {
        /// One block, every offset planned ahead.
        Arena = "arena",
        /// A free list by size class.
        Caching = "caching",
        /// An allocation per tensor.
        Naive = "naive",
    }
}

words! {
    /// How attention is computed.
    Attention {
        /// Tiled, with the softmax running along: no matrix of scores in memory.
        Flash = "flash",
        /// Scores, softmax and product as separate operations.
        Unfused = "unfused",
    }
}

words! {
    /// How the sequences of a batch reach the matrix products.
    Batching {
        /// All rows in one product.
        Batched = "batched",
        /// One sequence after another.
        Looped = "looped",
    }
}

words! {
    /// Whether ranks exchange gradients; off measures what the exchange costs.
    Communication {
        /// Gradients are summed over the ranks.
        On = "on",
        /// Each rank keeps its own.
        Off = "off",
    }
}

/// Number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorldSize {
    /// One rank per device found, or what the launcher's environment says.
    Auto,
    /// Exactly this many.
    Fixed(usize),
}

impl Serialize for WorldSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(ranks) => serializer.serialize_u64(*ranks as u64),
        }
    }
}

impl<'de> Deserialize<'de> for WorldSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Ranks(usize),
            Word(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Ranks(ranks) => Ok(Self::Fixed(ranks)),
            Written::Word(word) if word == "auto" => Ok(Self::Auto),
            Written::Word(word) => Err(serde::de::Error::custom(format!(
                "expected a number of ranks or \"auto\", found {word:?}"
            ))),
        }
    }
}

impl fmt::Display for WorldSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(ranks) => write!(f, "{ranks}"),
        }
    }
}

/// What the model is evaluated on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Validation {
    /// This share of the corpus, taken from its end.
    Fraction(f64),
    /// A corpus of its own.
    Path(String),
}
