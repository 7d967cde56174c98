//! What a template makes of a conversation to train on.

use super::drop_reason::DropReason;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What became of a conversation to train on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is a text.
    Rendered(Rendered),
    /// It is left out.
    Dropped {
        /// Why.
        reason: DropReason,
        /// What the template says; empty if it says nothing.
        says: String,
    },
    /// The template is wrong.
    Wrong(String),
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendered {
    /// The text that the template makes of it.
    pub text: String,
    /// The bytes of the text that are trained on, in order.
    pub trained: Vec<Range<usize>>,
    /// True if only the last answer is trained on, because the template changes earlier ones when the
    /// conversation goes on.
    pub last_alone: bool,
}
