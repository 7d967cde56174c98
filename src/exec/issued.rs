//! A node as the engine issues it.

use crate::device::cpu::Address;
use crate::ir::{Home, Node, Program, TensorId};
use std::ops::Range;

/// A node, with the addresses of its tensors while it runs.
#[derive(Debug)]
pub(super) struct Issued<'a> {
    pub program: &'a Program,
    pub node: &'a Node,
    /// Its index in the program.
    pub at: usize,
    pub inputs: &'a [Address],
    pub outputs: &'a [Address],
}

impl Issued<'_> {
    /// Returns the ranges of addresses that the node reads and writes.
    pub(super) fn memory(&self) -> Vec<Range<usize>> {
        let (inputs, outputs) = (self.node.inputs.iter(), self.node.outputs.iter());
        let tensors = inputs.zip(self.inputs).chain(outputs.zip(self.outputs));
        let range = |(&id, address): (&TensorId, &Address)| {
            let start = address.0.addr();
            start..start + self.program.spec(id).bytes()
        };
        tensors.map(range).collect()
    }

    /// Returns true if the node reads and writes tensors of the state only, none in transient memory.
    pub(super) fn touches_only_state(&self) -> bool {
        let program = self.program;
        let in_state = |id| matches!(program.tensor(program.base(id)).home, Home::State(_));
        self.node.inputs.iter().chain(&self.node.outputs).all(|&id| in_state(id))
    }
}
