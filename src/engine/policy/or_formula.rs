//! A choice between the words of a policy and a formula.

use crate::expression::{Formula, Scope};
use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A policy that also accepts formulas.
pub trait HasFormulas: Copy + PartialEq + fmt::Debug + fmt::Display {
    /// The variables that its formulas may use.
    const SCOPE: Scope;
}

/// One of the words of a policy, or a formula. In recipes it is a string: the word, or the formula's
/// canonical text.
#[derive(Clone, Debug, PartialEq)]
pub enum OrFormula<W> {
    /// A built-in choice.
    Word(W),
    /// A formula.
    Formula(Formula),
}

impl<W> From<W> for OrFormula<W> {
    fn from(word: W) -> Self {
        Self::Word(word)
    }
}

/// A built-in choice equals its word. A formula never does, not even a formula for the same function.
impl<W: PartialEq> PartialEq<W> for OrFormula<W> {
    fn eq(&self, word: &W) -> bool {
        matches!(self, Self::Word(chosen) if chosen == word)
    }
}

impl<W: fmt::Display> fmt::Display for OrFormula<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => word.fmt(f),
            Self::Formula(formula) => formula.fmt(f),
        }
    }
}

impl<W: fmt::Display> Serialize for OrFormula<W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, W: HasFormulas + DeserializeOwned> Deserialize<'de> for OrFormula<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let word: Result<W, ValueError> = W::deserialize(text.as_str().into_deserializer());
        if let Ok(word) = word {
            return Ok(Self::Word(word));
        }
        Formula::parse(&text, W::SCOPE).map(Self::Formula).map_err(|e| {
            serde::de::Error::custom(format!("{text:?} is neither a word nor a formula: {}", e.label))
        })
    }
}
