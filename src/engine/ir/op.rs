//! An operation, and the types defined in terms of it.
//!
//! An [`Op`] records its gradient with a [`Vjp`] over a [`Builder`], which appends [`Node`]s to a
//! [`Program`], whose nodes hold ops. These types refer to each other, so one file defines them all; their
//! methods are in a file for each type.

use super::{Array, Fill, Mode, Phase, SlotId, Spec, State, Stream, Tensor, TensorId};
use crate::device::Precision;
use crate::device::communicator::Communicator;
use crate::device::cpu::{Address, Pool};
use crate::device::gpu::{DevicePtr, Queue};
use crate::error::{Error, Result};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// Permission to give an output the memory of an input whose last use is this node.
///
/// An op that grants it promises that each task reads elements of the input only where it writes the same
/// elements of the output, and reads them before it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MayAlias {
    /// Index of the output.
    pub output: usize,
    /// Index of the input.
    pub input: usize,
}

/// A forward tensor that a gradient op can recompute along with the gradients.
///
/// A gradient reads everything that determines its forward's output, so writing that output too saves a node
/// that would read it all again.
#[derive(Clone, Debug)]
pub struct Emission {
    /// The op that computes the tensor.
    pub of: Arc<dyn Op>,
    /// Indices of the gradient's inputs that this op takes, in its order.
    pub inputs: Vec<usize>,
    /// A variant of the gradient that also writes the tensor, as its last output and with the same bits as
    /// the op.
    pub gradient: Arc<dyn Op>,
}

/// The cost of a node, from which step times and op budgets are predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations in matrix products; a multiply-add counts as two.
    pub product_flops: f64,
    /// Bytes of memory traffic: inputs read once, outputs written once.
    pub bytes: f64,
}

impl Cost {
    /// Returns the product FLOPs, or the bytes if the op has no products.
    pub fn work(&self) -> f64 {
        if self.product_flops > 0.0 { self.product_flops } else { self.bytes }
    }

    /// Returns the cost of an op that reads or writes each of its tensors once.
    pub fn streaming(inputs: &[Spec], outputs: &[Spec]) -> Self {
        let bytes = inputs.iter().chain(outputs).map(|s| s.bytes() as f64).sum();
        Self { product_flops: 0.0, bytes }
    }

    /// Sets the product FLOPs.
    #[must_use]
    pub fn with_flops(self, product_flops: f64) -> Self {
        Self { product_flops, ..self }
    }
}

/// Comparison of ops behind `dyn Op`, implemented for every op that is `PartialEq`.
pub trait SameAs {
    /// Returns true if `other` is the same op with the same constants.
    fn same_as(&self, other: &dyn Op) -> bool;
}

impl<T: Op + PartialEq> SameAs for T {
    fn same_as(&self, other: &dyn Op) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// A coarse operation: shapes, gradient, cost and implementations in one place.
pub trait Op: Any + Debug + SameAs + Send + Sync {
    /// Returns the op's name in prints and profiles.
    fn name(&self) -> &'static str;

    /// Returns the op's constants for prints, such as `eps=1e-6`; empty if there are none.
    fn attributes(&self) -> String {
        String::new()
    }

    /// Returns the specs of the outputs.
    ///
    /// # Errors
    /// If the inputs do not fit; the message says what the op takes.
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String>;

    /// Records the gradients of the inputs.
    ///
    /// # Errors
    /// If the op has no gradient. This shows at plan time.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        Err(Error::failed(format!("{} ({}) has no gradient", self.name(), v.scope())))
    }

    /// Returns the op's cost. By default it reads or writes every tensor once.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs)
    }

    /// Returns the outputs that may take over the memory of an input.
    fn may_alias(&self) -> Vec<MayAlias> {
        Vec::new()
    }

    /// Returns true if `Mode::Add` is implemented for this output.
    fn accumulates(&self, _output: usize) -> bool {
        false
    }

    /// Returns the range of elements outside which the op reads nothing of an input on a rank; `None`: all of
    /// them.
    fn input_range(&self, _input: usize, _rank: usize) -> Option<Range<usize>> {
        None
    }

    /// Returns the range of elements outside which the op touches nothing of an output on a rank; `None`: all
    /// of them.
    fn output_range(&self, _output: usize, _rank: usize) -> Option<Range<usize>> {
        None
    }

    /// Returns true if recomputing this output before the backward is cheaper than keeping it.
    fn cheap_to_recompute(&self, _output: usize) -> bool {
        false
    }

    /// Returns a cheaper way to compute the same bits of `output` from the node's other, kept outputs, if
    /// there is one: an op and its inputs, taken from the node's `inputs` and `outputs`.
    fn rederive(
        &self,
        _inputs: &[TensorId],
        _outputs: &[TensorId],
        _output: usize,
    ) -> Option<(Arc<dyn Op>, Vec<TensorId>)> {
        None
    }

    /// For a gradient op, returns the forward tensor that it can recompute along with the gradients.
    fn emission(&self) -> Option<Emission> {
        None
    }

    /// Records the same function with smaller ops and returns the outputs, for `engine.fused = false`.
    /// Returns `None` if the op is already small.
    ///
    /// # Errors
    /// If recording fails.
    fn unfused(&self, _b: &mut Builder, _inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        Ok(None)
    }

    /// Runs the op on the CPU.
    ///
    /// # Errors
    /// If a rank is lost; arithmetic does not fail.
    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()>;

    /// Runs the op on a GPU: puts kernels and products into the node's queue, in order.
    ///
    /// # Errors
    /// If the driver or a library reports an error.
    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()>;

    /// Returns the test cases of this op type at a precision, or names the op whose gradient it is.
    fn cases(precision: Precision) -> Cases
    where
        Self: Sized;
}

/// One operation applied to tensors.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation.
    pub op: Arc<dyn Op>,
    /// Tensors that the op reads.
    pub inputs: Vec<TensorId>,
    /// Tensors that the op writes.
    pub outputs: Vec<TensorId>,
    /// Write mode of each output.
    pub modes: Vec<Mode>,
    /// Scope, such as `blocks.0`, for listings and messages.
    pub scope: Arc<str>,
    /// Index of the node's block, counted from the input; `None` outside the blocks.
    pub block: Option<usize>,
    /// Index of the statement of the model's text that the node computes, or whose gradient; `None` if it
    /// belongs to no statement.
    pub statement: Option<usize>,
    /// Part of the step.
    pub phase: Phase,
    /// Stream that the node is issued to.
    pub stream: Stream,
}

/// A flat, ordered list of nodes over a state: one section of a step, an evaluation, a generation step.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name, such as `micro(first,last)`.
    pub name: String,
    /// Layout of the state, which outlives the program.
    pub state: Arc<State>,
    /// All tensors that nodes refer to.
    pub tensors: Vec<Tensor>,
    /// The nodes, in order.
    pub nodes: Vec<Node>,
}

/// Records nodes in order, under scoped names.
#[derive(Debug)]
pub struct Builder {
    /// The program recorded so far.
    pub program: Program,
    /// The phase of the following nodes.
    pub phase: Phase,
    /// The stream of the following nodes.
    pub stream: Stream,
    /// The statement of the following nodes.
    pub statement: Option<usize>,
    pub(super) scope: Vec<String>,
    pub(super) block: Option<usize>,
    pub(super) state_tensors: HashMap<SlotId, TensorId>,
}

/// Upstream gradient of a node's output: the derivative of the loss with respect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// Exactly 1 in every element: the loss itself.
    One,
    /// A recorded tensor.
    Tensor(TensorId),
}

/// Where the gradient of an input of a node is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradDestination {
    /// Nowhere: the input depends on no parameter.
    NotNeeded,
    /// Into a new transient tensor.
    New,
    /// Into the gradient of a parameter: the first contribution overwrites it, later ones add to it.
    Into(TensorId, Mode),
}

/// Records the vector-Jacobian product of one node: from the gradients of its outputs, the gradients of its
/// inputs.
#[derive(Debug)]
pub struct Vjp<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) node: &'a Node,
    pub(super) upstream: &'a [Option<Upstream>],
    pub(super) destinations: Vec<GradDestination>,
    /// For each input, the sum of the gradients that other ops have recorded, if the op may add to it.
    pub(super) sums: Vec<Option<TensorId>>,
    pub(super) input_grads: Vec<Option<InputGrad>>,
}

/// The recorded gradient of an input of a node.
#[derive(Clone, Copy, Debug)]
pub struct InputGrad {
    /// The gradient.
    pub tensor: TensorId,
    /// True if it includes the gradients that other ops have recorded.
    pub is_total: bool,
}

/// A node about to run on the CPU: its specs, its memory, the pool, the other ranks.
#[derive(Clone, Copy, Debug)]
pub struct CpuNode<'a> {
    /// The program, for specs.
    pub program: &'a Program,
    /// The node.
    pub node: &'a Node,
    /// Addresses of the inputs.
    pub inputs: &'a [Address],
    /// Addresses of the outputs.
    pub outputs: &'a [Address],
    /// The worker threads.
    pub pool: &'a Pool,
    /// The other ranks.
    pub comm: &'a dyn Communicator,
}

/// A node about to be put into the queue of a GPU: its specs, its addresses, the queue.
#[derive(Clone, Copy)]
pub struct GpuNode<'a> {
    /// The program, for specs.
    pub program: &'a Program,
    /// The node.
    pub node: &'a Node,
    /// Addresses of the inputs.
    pub inputs: &'a [DevicePtr],
    /// Addresses of the outputs.
    pub outputs: &'a [DevicePtr],
    /// The queue that takes the node's work.
    pub queue: &'a dyn Queue,
}

/// A reference implementation in f64. It takes the inputs, followed by the initial contents of outputs in
/// mode `Add`, and returns all outputs. An empty array stands for a scratch output, which is not compared.
pub type Reference = Arc<dyn Fn(&[Array]) -> Vec<Array> + Send + Sync>;

/// One op with concrete inputs. Each case is used several times: forward against the reference, gradient
/// against finite differences, narrow formats against f64, poisoned memory, and equal bits over thread
/// counts.
#[derive(Clone)]
pub struct Case {
    /// What sets the case apart, such as `t17 hd64 gqa2 dropout`.
    pub name: String,
    /// The op.
    pub op: Arc<dyn Op>,
    /// Spec and contents of each input.
    pub inputs: Vec<(Spec, Fill)>,
    /// Write mode of each output, and the initial contents of outputs in mode `Add`. Outputs beyond the end
    /// use `Write`.
    pub outputs: Vec<(Mode, Fill)>,
    /// The reference implementation.
    pub reference: Reference,
    /// Inputs that are parameters: read straight from the state, with gradients in the accumulator format.
    pub weights: Vec<usize>,
    /// Inputs whose gradients are checked; empty for ops without a gradient.
    pub differentiable: Vec<usize>,
    /// Outputs that receive an upstream gradient.
    pub upstream: Vec<usize>,
    /// The number of terms in the op's longest sum: errors may grow with its square root.
    pub depth: usize,
    /// True if GPUs sum in fewer bits than fp32 has, as their tensor cores sum products of 8-bit floats.
    pub narrow_sums: bool,
    /// For each output, the sum of the magnitudes of the terms of every element, which bounds the error of
    /// the element. `None` if only whole tensors are compared.
    pub magnitudes: Option<Reference>,
}

/// How an op is tested. Every op must declare it.
#[derive(Debug)]
pub enum Cases {
    /// By these cases.
    Own(Vec<Case>),
    /// By the gradient checks of the op with this type.
    GradientOf(TypeId),
}
