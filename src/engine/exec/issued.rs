//! A node as the engine issues it.

use crate::device::cpu::Address;
use crate::ir::{Home, Node, Program, TensorId};
use std::ops::Range;

/// A node, with the addresses of its tensors while it runs.
#[derive(Debug)]
pub(super) struct Issued<'a> {
    pub program: &'a Program,
    pub node: &'a Node,
    /// Index of the node in the program.
    pub at: usize,
    pub inputs: &'a [Address],
    pub outputs: &'a [Address],
}

impl Issued<'_> {
    /// Returns the addresses outside which the node reads and writes nothing on a rank.
    pub(super) fn memory(&self, rank: usize) -> TouchedMemory {
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
        TouchedMemory { read: inputs.collect(), written: outputs.collect() }
    }

    /// Returns true if the node touches only tensors of the state, none in transient memory.
    pub(super) fn touches_only_state(&self) -> bool {
        let program = self.program;
        let in_state = |id| matches!(program.tensor(program.base(id)).home, Home::State(_));
        self.node.inputs.iter().chain(&self.node.outputs).all(|&id| in_state(id))
    }
}

/// Address ranges outside which a node reads and writes nothing.
#[derive(Debug)]
pub(super) struct TouchedMemory {
    read: Vec<Range<usize>>,
    written: Vec<Range<usize>>,
}

impl TouchedMemory {
    /// Returns true if one of two nodes writes what the other reads or writes, so that they must not run at
    /// the same time.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        let meet = |a: &[Range<usize>], b: &[Range<usize>]| {
            a.iter().any(|a| b.iter().any(|b| a.start.max(b.start) < a.end.min(b.end)))
        };
        meet(&self.written, &other.written)
            || meet(&self.written, &other.read)
            || meet(&self.read, &other.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_run_together_and_a_writer_runs_alone() {
        let node = |read: Range<usize>, written: Range<usize>| TouchedMemory {
            read: Vec::from([read]),
            written: Vec::from([written]),
        };
        let first = node(0..10, 20..30);
        for (other, expected) in [
            (node(0..10, 40..50), false),
            (node(20..30, 40..50), true),
            (node(12..15, 9..11), true),
            (node(12..15, 29..35), true),
            (node(10..20, 30..40), false),
            (node(25..25, 5..5), false),
        ] {
            assert_eq!(first.conflicts_with(&other), expected, "{other:?}");
            assert_eq!(other.conflicts_with(&first), expected, "{other:?}");
        }
    }
}
