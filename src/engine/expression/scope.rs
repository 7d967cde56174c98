//! The variables that formulas may use, by recipe key.

/// What a formula is for, which decides its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An activation: a formula of `x`, or, with a gate, of the gate `a` and the other product `b`.
    Activation,
    /// A schedule: a formula of `t`, the share of training after the warm-up that is done, from 0 to 1.
    Schedule,
}

impl Scope {
    /// Returns the sets of variables that a formula may use. A formula must use all variables of one set.
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

    /// Describes the variables, for messages and the table of keys.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Activation => "of x, or of a (the gate) and b",
            Self::Schedule => "of t, the share done",
        }
    }
}
