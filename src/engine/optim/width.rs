//! How the update of a parameter follows the width of its model, as an optimizer declares it.

/// A power of the ratio of widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Over it.
    Inverse,
    /// Over its root.
    InverseRoot,
    /// As at the base width.
    Zero,
    /// Times its root.
    Root,
    /// Times it.
    One,
}

impl Power {
    /// Returns the factor at a ratio of widths: exactly 1 at the base width.
    pub fn factor(self, ratio: f64) -> f64 {
        match self {
            Self::Inverse => 1.0 / ratio,
            Self::InverseRoot => 1.0 / ratio.sqrt(),
            Self::Zero => 1.0,
            Self::Root => ratio.sqrt(),
            Self::One => ratio,
        }
    }
}

/// What follows the width of a parameter's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WidthRule {
    /// Factor of the learning rate.
    pub lr: Power,
    /// Factor of epsilon, where the optimizer has one that gradients are compared with.
    pub eps: Power,
    /// Factor of the decay, where it is a multiple of the rate.
    pub decay: Power,
}

/// Which sides of a parameter grow with the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// The outputs alone: tables of vectors, and vectors.
    Outputs,
    /// Both: matrices of blocks.
    Both,
    /// The inputs alone: the head.
    Inputs,
}

impl WidthRule {
    /// The rule of an update that stays as at the base width.
    pub const UNCHANGED: Self = Self::new(Power::Zero, Power::Zero, Power::Zero);

    /// Returns the rule with these factors.
    pub const fn new(lr: Power, eps: Power, decay: Power) -> Self {
        Self { lr, eps, decay }
    }
}
