//! Inputs and outputs of the plain reference implementation of an op.

/// A tensor of a reference: logical shape, row-major, f64. Integers are stored as their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements.
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

/// Contents of an input of a case, from a generator seeded by the case's name.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Normal with mean and standard deviation.
    Normal(f64, f64),
    /// Uniform between two bounds.
    Uniform(f64, f64),
    /// Integers below a bound.
    Below(u32),
    /// These values.
    Values(Vec<f64>),
}
