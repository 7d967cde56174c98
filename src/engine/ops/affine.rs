//! Which parameter vectors a norm has.

/// The vectors by which a norm scales and shifts its rows, one number per feature. A vector that is absent is
/// neither an input of the norm's ops nor an output of their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affine {
    /// Neither a weight nor a bias.
    None,
    /// A weight only.
    Weight,
    /// A weight and a bias.
    WeightAndBias,
}

impl Affine {
    /// Returns the number of vectors.
    pub(super) fn count(self) -> usize {
        usize::from(self.weight()) + usize::from(self.bias())
    }

    /// True if there is a weight.
    pub(super) fn weight(self) -> bool {
        self != Self::None
    }

    /// True if there is a bias.
    pub(super) fn bias(self) -> bool {
        self == Self::WeightAndBias
    }
}
