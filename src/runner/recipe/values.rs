//! The two value types that are either a number or a word: world size and held-out data.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorldSize {
    /// One rank per device found, or the number in the launcher's environment.
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

/// The held-out data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Validation {
    /// This fraction of the corpus: whole documents, or the end of a single one.
    Fraction(f64),
    /// A separate corpus.
    Path(String),
}
