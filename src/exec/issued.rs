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
    /// Returns the ranges of addresses between which the node reads and writes on a rank.
    pub(super) fn memory(&self, rank: usize) -> Vec<Range<usize>> {
        let op = &self.node.op;
        let range = |id: TensorId, address: &Address, elements: Option<Range<usize>>| {
            let (start, spec) = (address.0.addr(), self.program.spec(id));
            let elements = elements.unwrap_or(0..spec.elements());
            start + elements.start * spec.dtype.size()..start + elements.end * spec.dtype.size()
        };
        let inputs = self.node.inputs.iter().zip(self.inputs).enumerate();
        let inputs = inputs.map(|(i, (&id, address))| range(id, address, op.input_range(i, rank)));
        let outputs = self.node.outputs.iter().zip(self.outputs).enumerate();
        let outputs = outputs.map(|(i, (&id, address))| range(id, address, op.output_range(i, rank)));
        inputs.chain(outputs).filter(|range| !range.is_empty()).collect()
    }

    /// Returns true if the node reads and writes tensors of the state only, none in transient memory.
    pub(super) fn touches_only_state(&self) -> bool {
        let program = self.program;
        let in_state = |id| matches!(program.tensor(program.base(id)).home, Home::State(_));
        self.node.inputs.iter().chain(&self.node.outputs).all(|&id| in_state(id))
    }
}
