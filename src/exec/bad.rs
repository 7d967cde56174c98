//! Search for the first value that is not finite.

use super::memory::widened_bytes;
use super::{Ran, Section};
use crate::device::DType;
use crate::error::Result;

/// The first tensor that held a value which is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTensor {
    /// Its scoped name.
    pub tensor: String,
    /// Name of the op that wrote it.
    pub op: &'static str,
    /// The value, as text: `NaN`, `inf`, `-inf`.
    pub value: String,
}

/// An output of a node that holds a value which is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadOutput {
    /// Index of the node in its program.
    pub node: usize,
    /// Index of the output among those of the node.
    pub output: usize,
    /// The first such value in it.
    pub value: f64,
}

impl BadOutput {
    /// Returns the tensor's name, op and value. `section` is the one that was run.
    pub fn describe(&self, section: &Section) -> BadTensor {
        let node = &section.program.nodes[self.node];
        let tensor = section.program.tensor(node.outputs[self.output]).name.clone();
        BadTensor { tensor, op: node.op.name(), value: self.value.to_string() }
    }
}

impl Ran<'_> {
    /// Returns the first output that is not finite.
    pub(super) fn first_bad(&self) -> Result<Option<BadOutput>> {
        for output in 0..self.node.outputs.len() {
            let spec = self.output_spec(output);
            if spec.dtype == DType::U32 {
                continue;
            }
            let values = widened_bytes(spec.dtype, &self.output_bytes(output)?);
            if let Some(value) = values.into_iter().find(|v| !v.is_finite()) {
                return Ok(Some(BadOutput { node: self.at, output, value }));
            }
        }
        Ok(None)
    }
}
