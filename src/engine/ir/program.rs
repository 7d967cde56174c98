//! Queries of a program.

use super::{Cost, Home, Node, Program, Spec, Tensor, TensorId};

impl Program {
    /// Returns the tensor with this id.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// Returns the spec of the tensor with this id.
    pub fn spec(&self, id: TensorId) -> &Spec {
        &self.tensors[id.0].spec
    }

    /// Returns the tensor that owns this one's memory: itself, or for a view the tensor it views.
    pub fn base(&self, id: TensorId) -> TensorId {
        match self.tensors[id.0].home {
            Home::View { of, .. } => of,
            _ => id,
        }
    }

    /// Returns, for each tensor, the index of the first node that writes it; `None` if no node does.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.tensors.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for &out in &node.outputs {
                producers[out.0].get_or_insert(i);
            }
        }
        producers
    }

    /// Returns, for each tensor, whether it is scratch: transient and read by no node. An op need not write
    /// all of it, and its contents mean nothing after the op.
    pub fn scratch(&self) -> Vec<bool> {
        let mut scratch: Vec<bool> = self.tensors.iter().map(|t| t.home == Home::Transient).collect();
        for &input in self.nodes.iter().flat_map(|node| &node.inputs) {
            scratch[self.base(input).0] = false;
        }
        scratch
    }

    /// Returns the cost of one node.
    pub fn cost(&self, node: &Node) -> Cost {
        let spec = |ids: &[TensorId]| ids.iter().map(|&id| self.spec(id).clone()).collect::<Vec<_>>();
        node.op.cost(&spec(&node.inputs), &spec(&node.outputs))
    }
}
