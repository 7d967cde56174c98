//! Search for the first value that is not finite.

use super::Section;

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
