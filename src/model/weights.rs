//! Weights by the names of parameters, wherever they are.

use crate::checkpoint::Loaded;
use crate::error::Result;

/// Source of weights, by xrun's names.
pub trait Weights {
    /// Returns the names of all parameters.
    fn names(&self) -> Vec<String>;
    /// Returns the fp32 bytes (row-major, little-endian, no padding) of a parameter; an error if it has
    /// another shape.
    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>>;
}

impl Weights for Loaded {
    fn names(&self) -> Vec<String> {
        self.parameter_names().map(str::to_string).collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        Loaded::read(self, name, shape)
    }
}
