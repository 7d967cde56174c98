//! Reasons why a block is not current.

/// A reason why a block is not current, and the step that fixes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The reason.
    pub why: String,
    /// The step that fixes it; `None` to render the page again.
    pub fix: Option<String>,
}

impl Why {
    /// Creates a reason that is fixed by rendering the page again.
    pub fn stale(why: impl Into<String>) -> Self {
        Self { why: why.into(), fix: None }
    }

    /// Creates a reason that another step fixes.
    pub fn fixed_by(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { why: why.into(), fix: Some(fix.into()) }
    }
}
