//! Programs: flat, ordered lists of coarse operations over planned tensors, and how they print.
//!
//! A [`Builder`] records a program once, passes transform it, and the executor runs it node by node. Nothing
//! here holds tensor data.

mod array;
mod builder;
mod case;
mod cpu_node;
mod fp8;
mod fp8_layout;
mod gpu_node;
mod names;
mod op;
mod param;
mod print;
mod program;
mod role;
mod shards;
mod spec;
mod state;
mod tensor;
mod vjp;

pub use crate::device::Precision;
pub use array::{Array, Fill};
pub use builder::Destination;
pub use case::OpType;
pub use fp8::{
    FP8_HEALTH, FP8_ROLES, Fp8Param, Fp8State, Fp8Weight, INVERSE, SCALES_ROW, SITE_KINDS, Scales, SiteKind,
};
pub use names::{
    BatchSlot, ControlSlot, EvaluationSlot, ExchangeSlot, FlatBuffer, Fp8Slot, GenerationSlot, PromptSlot,
    ScoringSlot, SlotId, SlotName,
};
pub use op::{
    Builder, Case, Cases, Cost, CpuNode, Emission, GpuNode, GradDestination, InputGrad, MayAlias, Node, Op,
    Program, Reference, SameAs, Upstream, Vjp,
};
pub use param::{FrozenParam, Init, LogicalMatrix, Param, ParamRequest};
pub use role::{Role, Sublayer, UpdateOverride};
pub use shards::{OwnedRange, Part, Shards};
pub use spec::Spec;
pub use state::{GroupRequest, OptimizerSlot, Slot, SlotGroup, State, StateBuffer, StateBuilder};
pub use tensor::{Home, Mode, Phase, Stream, Tensor, TensorId};
