//! How a parameter's update follows the width of its model, as declared by an optimizer.

/// A power of the ratio of widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Divides by the ratio.
    Inverse,
    /// Divides by the root of the ratio.
    InverseRoot,
    /// No change from the base width.
    Zero,
    /// Multiplies by the root of the ratio.
    Root,
    /// Multiplies by the ratio.
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

/// How a parameter's update depends on the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WidthRule {
    /// Factor of the learning rate.
    pub lr: Power,
    /// Factor of epsilon, if the optimizer compares gradients with one.
    pub eps: Power,
    /// Factor of the decay, if it is a multiple of the rate.
    pub decay: Power,
}

impl WidthRule {
    /// The rule for updates that do not depend on the width.
    pub const UNCHANGED: Self = Self::new(Power::Zero, Power::Zero, Power::Zero);

    /// Creates a rule with these factors.
    pub const fn new(lr: Power, eps: Power, decay: Power) -> Self {
        Self { lr, eps, decay }
    }
}
