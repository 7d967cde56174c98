//! The first NaN or infinity of a step, and the tensor and op that it is in.

use super::Section;

/// The first tensor that held NaN or an infinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonFiniteTensor {
    /// Its scoped name.
    pub tensor: String,
    /// Name of the op that wrote it.
    pub op: &'static str,
    /// The value, as text: `NaN`, `inf`, `-inf`.
    pub value: String,
}

/// An output of a node that holds NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonFiniteOutput {
    /// Index of the node in its program.
    pub node: usize,
    /// Index of the output among those of the node.
    pub output: usize,
    /// The first such value in it.
    pub value: f64,
}

impl NonFiniteOutput {
    /// Returns the tensor's name, op and value. `section` is the one that was run.
    pub fn describe(&self, section: &Section) -> NonFiniteTensor {
        let node = &section.program.nodes[self.node];
        let tensor = section.program.tensor(node.outputs[self.output]).name.clone();
        NonFiniteTensor { tensor, op: node.op.name(), value: self.value.to_string() }
    }
}
