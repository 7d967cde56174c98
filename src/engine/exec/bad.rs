//! The first NaN or infinity in a step: the tensor that holds it and the op that wrote it.

use super::Section;

/// The first tensor that held NaN or an infinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFiniteTensor {
    /// Scoped name of the tensor.
    pub tensor: String,
    /// Name of the op that wrote it.
    pub op: &'static str,
    /// The value, as text: `NaN`, `inf`, `-inf`.
    pub value: String,
}

/// A node's output that holds NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonFiniteOutput {
    /// Index of the node in its program.
    pub node: usize,
    /// Index of the output among the node's outputs.
    pub output: usize,
    /// The first such value in the output.
    pub value: f64,
}

impl NonFiniteOutput {
    /// Returns the names of the tensor and its op, and the value. `section` must be the one that ran.
    pub fn describe(&self, section: &Section) -> NonFiniteTensor {
        let node = &section.program.nodes[self.node];
        let tensor = section.program.tensor(node.outputs[self.output]).name.clone();
        NonFiniteTensor { tensor, op: node.op.name(), value: self.value.to_string() }
    }
}
