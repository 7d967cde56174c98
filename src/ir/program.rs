//! Tensors, nodes, programs.

use super::{Op, SlotId, Spec, State};
use std::sync::Arc;

/// Identifies a [`Tensor`] of one [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Storage of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In transient memory assigned by the memory plan, from the node that writes it to the last that reads
    /// it.
    Transient,
    /// In the state, under this slot.
    State(SlotId),
    /// Inside another tensor, `offset` bytes from its start: a zero-copy view of whole rows.
    View {
        /// The tensor viewed. Never itself a view.
        of: TensorId,
        /// Offset in bytes from its start.
        offset: usize,
    },
}

/// A tensor of a program.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Scoped name, such as `blocks.0.qkv`.
    pub name: String,
    /// Shape and format.
    pub spec: Spec,
    /// Its storage.
    pub home: Home,
}

/// Write mode of a node's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Overwrites the output, so nothing has to be zeroed before.
    Write,
    /// Adds to the output (accumulation).
    Add,
}

/// Stream that a node is issued to. The CPU has only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Stream {
    /// The compute stream of the model.
    #[default]
    Main,
    /// The stream of collectives that overlap with the backward.
    Communication,
}

/// The part of a step that a node belongs to, for profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The model, as recorded.
    Forward,
    /// Appended by autodiff.
    Backward,
    /// A forward node that runs again before its backward.
    Recompute,
    /// Collectives.
    Communication,
    /// Norm, clip, update.
    Optimizer,
}

/// One operation applied to tensors.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation.
    pub op: Arc<dyn Op>,
    /// Tensors that it reads.
    pub inputs: Vec<TensorId>,
    /// Tensors that it writes.
    pub outputs: Vec<TensorId>,
    /// Write mode of each output.
    pub modes: Vec<Mode>,
    /// Scope, such as `blocks.0`, for listings and messages.
    pub scope: Arc<str>,
    /// Index of the block that it belongs to, counted from the input; `None` outside the blocks.
    pub block: Option<usize>,
    /// Part of the step.
    pub phase: Phase,
    /// Stream that it is issued to.
    pub stream: Stream,
}

/// A flat, ordered list of nodes over a state: one section of a step, an evaluation, a generation step.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name, such as `micro(first,last)`.
    pub name: String,
    /// Layout of the state, which outlives the program.
    pub state: Arc<State>,
    /// All tensors that nodes refer to.
    pub tensors: Vec<Tensor>,
    /// The nodes, in order.
    pub nodes: Vec<Node>,
}

impl Program {
    /// Returns the tensor with this id.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// Returns the spec of the tensor with this id.
    pub fn spec(&self, id: TensorId) -> &Spec {
        &self.tensors[id.0].spec
    }

    /// Returns the tensor that owns this one's memory: itself, or the tensor that it is a view of.
    pub fn base(&self, id: TensorId) -> TensorId {
        match self.tensors[id.0].home {
            Home::View { of, .. } => of,
            _ => id,
        }
    }

    /// Returns, for each tensor, the index of the first node that writes it; `None` if only the state
    /// provides it.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.tensors.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for &out in &node.outputs {
                producers[out.0].get_or_insert(i);
            }
        }
        producers
    }

    /// Returns the cost of one node.
    pub fn cost(&self, node: &Node) -> super::Cost {
        let spec = |ids: &[TensorId]| ids.iter().map(|&id| self.spec(id).clone()).collect::<Vec<_>>();
        node.op.cost(&spec(&node.inputs), &spec(&node.outputs))
    }
}
