//! What is wrong with a model text, and where.

use std::ops::Range;

/// A mistake in a model text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The byte range of the text to point at.
    pub at: Range<usize>,
    /// What is wrong with it.
    pub label: String,
    /// The next step; empty if the label says enough.
    pub help: String,
    /// The layer for which the text is wrong, if it may be right for others.
    pub layer: Option<usize>,
}

impl Mistake {
    pub(super) fn new(at: Range<usize>, label: impl Into<String>, help: impl Into<String>) -> Self {
        Self { at, label: label.into(), help: help.into(), layer: None }
    }
}

/// Fails with what is wrong at `at`, and the next step.
pub(super) fn fail<T>(
    at: &Range<usize>,
    label: impl Into<String>,
    help: impl Into<String>,
) -> Result<T, Mistake> {
    Err(Mistake::new(at.clone(), label, help))
}
