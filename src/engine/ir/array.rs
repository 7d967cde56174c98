//! Inputs and outputs of an op's reference implementation.

/// A tensor in a reference implementation: logical shape, row-major, f64. Integers are stored as their
/// values.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f64>,
}

impl Array {
    /// Returns an array of zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }

    /// The last dimension.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// Contents of a case's input. Random ones come from a generator seeded with the case's name.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Normal with this mean and standard deviation.
    Normal(f64, f64),
    /// Uniform between these bounds.
    Uniform(f64, f64),
    /// Integers below this bound.
    Below(u32),
    /// Exactly these values.
    Values(Vec<f64>),
}
