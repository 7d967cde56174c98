//! Tensors, nodes, programs.

use super::{Op, SlotId, Spec, State};
use std::sync::Arc;

/// Identifies a [`Tensor`] of one [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In memory that the memory plan gives it, from the node that writes it to the last that reads it.
    Transient,
    /// In the state, under this slot.
    State(SlotId),
    /// Inside another tensor, `offset` bytes from its start: a zero-copy view of whole rows.
    View {
        /// The tensor that is looked into. Never itself a view.
        of: TensorId,
        /// Bytes from its start.
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
    /// Where it lives.
    pub home: Home,
}

/// What a node does to one of its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Overwrites it: nothing has to be zeroed before.
    Write,
    /// Adds to it.
    Add,
}

/// The queue that a node is issued to. On the CPU all queues are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Stream {
    /// The stream of the model.
    #[default]
    Main,
    /// Collectives, beside the backward.
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
    /// What it does.
    pub op: Arc<dyn Op>,
    /// What it reads.
    pub inputs: Vec<TensorId>,
    /// What it writes.
    pub outputs: Vec<TensorId>,
    /// How it writes each output.
    pub modes: Vec<Mode>,
    /// Scope, such as `blocks.0`: for people, who read it in listings and messages.
    pub scope: Arc<str>,
    /// Index of the block that it belongs to, counted from the input; `None` outside the blocks.
    pub block: Option<usize>,
    /// Part of the step.
    pub phase: Phase,
    /// Queue.
    pub stream: Stream,
}

/// A flat, ordered list of nodes over a state: one section of a step, an evaluation, a generation step.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name, such as `micro(first,last)`.
    pub name: String,
    /// What outlives it.
    pub state: Arc<State>,
    /// All tensors that nodes mention.
    pub tensors: Vec<Tensor>,
    /// The nodes, in order.
    pub nodes: Vec<Node>,
}

impl Program {
    /// The tensor behind an id.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// The spec behind an id.
    pub fn spec(&self, id: TensorId) -> &Spec {
        &self.tensors[id.0].spec
    }

    /// The tensor that holds this one's memory: itself, or what it is a view of.
    pub fn base(&self, id: TensorId) -> TensorId {
        match self.tensors[id.0].home {
            Home::View { of, .. } => of,
            _ => id,
        }
    }

    /// The index of the first node that writes each tensor, `None` for what only the state provides.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.tensors.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for &out in &node.outputs {
                producers[out.0].get_or_insert(i);
            }
        }
        producers
    }

    /// The cost of one node.
    pub fn cost(&self, node: &Node) -> super::Cost {
        let spec = |ids: &[TensorId]| ids.iter().map(|&id| self.spec(id).clone()).collect::<Vec<_>>();
        node.op.cost(&spec(&node.inputs), &spec(&node.outputs))
    }
}
