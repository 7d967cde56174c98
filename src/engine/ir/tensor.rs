//! Tensors of a program, and what a node says about them.

use super::{SlotId, Spec};

/// Identifies a [`Tensor`] of one [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Storage of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In transient memory assigned by the memory plan, from the node that first writes it to the last that
    /// accesses it.
    Transient,
    /// In the state, in this slot.
    State(SlotId),
    /// Inside another tensor: a zero-copy view of whole rows.
    View {
        /// The viewed tensor, never itself a view.
        of: TensorId,
        /// Offset in bytes from the start of that tensor.
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
    /// Storage.
    pub home: Home,
}

/// Write mode of a node's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Overwrites the output, so nothing has to zero it first.
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
    /// The stream for collectives that overlap with the backward.
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
