//! Programs: flat, ordered lists of coarse operations over planned tensors, and how they print.
//!
//! A [`Builder`] records a program once, passes transform it, and the executor runs it node by node. Nothing
//! here holds tensor data.

pub mod builder;
pub mod case;
mod gpu_node;
pub mod op;
pub mod print;
pub mod program;
pub mod role;
pub mod spec;
pub mod state;
pub mod vjp;

pub use builder::{Builder, Out};
pub use case::{Array, Case, Cases, Fill};
pub use gpu_node::GpuNode;
pub use op::{Cost, CpuNode, MayAlias, Op};
pub use program::{Home, Mode, Node, Phase, Program, Stream, Tensor, TensorId};
pub use role::{Role, Sublayer};
pub use spec::Spec;
pub use state::{Init, OptimizerSlot, Param, SlotId, State, StateBuilder};
pub use vjp::Vjp;

pub use crate::device::Precision;
