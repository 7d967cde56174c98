//! The values of expressions.

use crate::expression::number;
use crate::model_text::graph::{Initial, Shape};
use std::sync::Arc;

/// The value of an expression. Only tensors are computed when a model runs.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(f64),
    Bool(bool),
    /// A word, and the words that it was chosen from if a key has it.
    Word(Arc<str>, &'static [&'static str]),
    None,
    Initial(Initial),
    /// The result of the operation with this index.
    Tensor(usize),
    Tokens,
    Positions,
}

impl Value {
    /// Describes the value for messages; `shape` returns the shape of a tensor.
    pub(super) fn described(&self, shape: impl Fn(usize) -> Shape) -> String {
        let text = self.text(shape);
        match self {
            Self::Number(_) => format!("the number {text}"),
            Self::Word(..) => format!("the word {text}"),
            _ => text,
        }
    }

    /// Returns the value as a text has it, or the shape of a tensor.
    pub(super) fn text(&self, shape: impl Fn(usize) -> Shape) -> String {
        match self {
            Self::Number(value) => number::text(*value),
            Self::Bool(value) => value.to_string(),
            Self::Word(word, _) => format!("\"{word}\""),
            Self::None => "none".to_owned(),
            Self::Initial(_) => "initial values".to_owned(),
            Self::Tensor(tensor) => shape(*tensor).to_string(),
            Self::Tokens => "tokens".to_owned(),
            Self::Positions => "positions".to_owned(),
        }
    }
}
