//! The vectors of a norm.

/// What a norm multiplies its rows by and adds to them, one number per feature. What it lacks is absent from
/// the inputs of its ops and from the outputs of their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affine {
    /// Neither.
    None,
    /// A weight.
    Weight,
    /// A weight and a bias.
    WeightAndBias,
}

impl Affine {
    /// Returns the number of the vectors.
    pub(super) fn count(self) -> usize {
        usize::from(self.weight()) + usize::from(self.bias())
    }

    /// True if it has a weight.
    pub(super) fn weight(self) -> bool {
        self != Self::None
    }

    /// True if it has a bias.
    pub(super) fn bias(self) -> bool {
        self == Self::WeightAndBias
    }
}
