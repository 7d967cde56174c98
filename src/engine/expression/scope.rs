//! The variables of formulas, by the key that they stand in.

/// What a formula is for: its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An activation: of `x`; or of the gate `a` and the other product `b`, with a gate.
    Activation,
    /// A schedule: of `t`, the share of the training after the warm-up that is done, from 0 to 1.
    Schedule,
}

impl Scope {
    /// Returns the sets of variables that a formula may have, each to be used completely.
    pub(super) const fn variables(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Activation => &[&["x"], &["a", "b"]],
            Self::Schedule => &[&["t"]],
        }
    }

    /// Returns true if a formula may have no variable at all.
    pub(super) const fn may_be_constant(self) -> bool {
        matches!(self, Self::Schedule)
    }

    /// Returns what its variables are, for messages and the table of keys.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Activation => "of x, or of a (the gate) and b",
            Self::Schedule => "of t, the share done",
        }
    }
}
