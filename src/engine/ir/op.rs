//! An operation, and the types that are defined in terms of it.
//!
//! An [`Op`] records its gradient with a [`Vjp`] over a [`Builder`], which appends [`Node`]s to a
//! [`Program`], whose nodes hold ops. These types refer to each other, so they are defined together; the
//! methods of each are in a file of their own.

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

/// An output that may be given the memory of an input whose last use is this node.
///
/// Declaring it promises that each task reads elements of the input only where it writes the same elements of
/// the output, and reads them before it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MayAlias {
    /// Index of the output.
    pub output: usize,
    /// Index of the input.
    pub input: usize,
}

/// A tensor that a gradient can write besides gradients: what its forward made, computed again.
///
/// A gradient reads all that determines the output of its forward, so writing that output along with the
/// gradients saves a node that would read it all once more.
#[derive(Clone, Debug)]
pub struct Emission {
    /// The op that computes the tensor.
    pub of: Arc<dyn Op>,
    /// Indices of the gradient's inputs that are that op's inputs, in its order.
    pub inputs: Vec<usize>,
    /// The gradient that writes the tensor too, as a further, last output and with the bits of `of`.
    pub by: Arc<dyn Op>,
}

/// The cost of a node, from which step times and op budgets are predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations of matrix products, a multiply-add counted as two.
    pub product_flops: f64,
    /// Bytes of memory traffic: inputs read once, outputs written once.
    pub bytes: f64,
}

impl Cost {
    /// Returns the FLOPs of products, or the bytes of an op that has none.
    pub fn work(&self) -> f64 {
        if self.product_flops > 0.0 { self.product_flops } else { self.bytes }
    }

    /// Returns the cost of an op that streams its tensors once.
    pub fn streaming(inputs: &[Spec], outputs: &[Spec]) -> Self {
        let bytes = inputs.iter().chain(outputs).map(|s| s.bytes() as f64).sum();
        Self { product_flops: 0.0, bytes }
    }

    /// Sets the operations of products.
    #[must_use]
    pub fn with_flops(self, product_flops: f64) -> Self {
        Self { product_flops, ..self }
    }
}

/// Comparison of ops behind `dyn Op`. Every op that implements `PartialEq` has it.
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
    /// Returns its name in prints and profiles.
    fn name(&self) -> &'static str;

    /// Returns its constants in prints, such as `eps=1e-6`; empty if there are none.
    fn attributes(&self) -> String {
        String::new()
    }

    /// Returns the specs of its outputs.
    ///
    /// # Errors
    /// When the inputs do not fit: what it takes.
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String>;

    /// Records the gradients of its inputs.
    ///
    /// # Errors
    /// At plan time, for an op that has none.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        Err(Error::failed(format!("{} ({}) has no gradient", self.name(), v.scope())))
    }

    /// Returns its cost. By default it streams every tensor once.
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

    /// Returns the elements of an input between which the op reads some on a rank; `None`: all.
    fn input_range(&self, _input: usize, _rank: usize) -> Option<Range<usize>> {
        None
    }

    /// Returns the elements of an output between which the op touches some on a rank; `None`: all.
    fn output_range(&self, _output: usize, _rank: usize) -> Option<Range<usize>> {
        None
    }

    /// Returns true if recomputing this output before the backward is cheaper than keeping it.
    fn cheap_to_recompute(&self, _output: usize) -> bool {
        false
    }

    /// Returns a cheaper computation of the same bits of `output` from the node's other, kept outputs, if
    /// there is one: an op and its inputs, among `inputs` and `outputs` of the node.
    fn rederive(
        &self,
        _inputs: &[TensorId],
        _outputs: &[TensorId],
        _output: usize,
    ) -> Option<(Arc<dyn Op>, Vec<TensorId>)> {
        None
    }

    /// For a gradient: returns what it can write besides gradients.
    fn emission(&self) -> Option<Emission> {
        None
    }

    /// Records the same function with smaller ops and returns the outputs, for `engine.fused = false`. `None`
    /// for an op that is already small.
    ///
    /// # Errors
    /// When recording fails.
    fn unfused(&self, _b: &mut Builder, _inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        Ok(None)
    }

    /// Runs on the CPU.
    ///
    /// # Errors
    /// When a rank is lost; arithmetic does not fail.
    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()>;

    /// Runs on a GPU: puts kernels and products into the node's queue, in order.
    ///
    /// # Errors
    /// When the driver or a library refuses.
    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()>;

    /// Returns the test cases of this type of op at a precision, or names the op whose gradient it is.
    fn cases(precision: Precision) -> Cases
    where
        Self: Sized;
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

/// Records nodes in order, under scoped names.
#[derive(Debug)]
pub struct Builder {
    pub(super) program: Program,
    pub(super) scope: Vec<String>,
    pub(super) block: Option<usize>,
    pub(super) phase: Phase,
    pub(super) stream: Stream,
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
    /// Into the gradient of a parameter, which the first contribution overwrites and later ones add to.
    Into(TensorId, Mode),
}

/// Records the vector-Jacobian product of one node: from the gradients of its outputs, those of its inputs.
#[derive(Debug)]
pub struct Vjp<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) node: &'a Node,
    pub(super) upstream: &'a [Option<Upstream>],
    pub(super) destinations: Vec<GradDestination>,
    pub(super) input_grads: Vec<Option<TensorId>>,
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
    /// The queue that its work is put into.
    pub queue: &'a dyn Queue,
}

/// A plain implementation in f64. Takes the inputs, followed by the initial contents of outputs that are
/// accumulated into, and returns all outputs. An empty array stands for a scratch output, which is not
/// compared.
pub type Reference = Arc<dyn Fn(&[Array]) -> Vec<Array> + Send + Sync>;

/// One op with concrete inputs. One case serves several modes: forward against the reference, the gradient
/// against finite differences, narrow formats against f64, poison, bit equality over thread counts.
#[derive(Clone)]
pub struct Case {
    /// Name that says what sets the case apart, such as `t17 hd64 gqa2 dropout`.
    pub name: String,
    /// The op.
    pub op: Arc<dyn Op>,
    /// Its inputs.
    pub inputs: Vec<(Spec, Fill)>,
    /// Write mode of each output, and the initial contents of those accumulated into. Outputs beyond the end
    /// use `Write`.
    pub outputs: Vec<(Mode, Fill)>,
    /// The reference implementation.
    pub reference: Reference,
    /// Inputs that are parameters: read straight from the state, with a gradient in the accumulator format.
    pub weights: Vec<usize>,
    /// Inputs whose gradient is checked. Empty for ops without one.
    pub differentiable: Vec<usize>,
    /// Outputs that carry a gradient upstream.
    pub upstream: Vec<usize>,
    /// The longest sum in the op: errors may grow with its square root.
    pub depth: usize,
}

/// How an op is tested. Every op must declare it.
#[derive(Debug)]
pub enum Cases {
    /// By these cases.
    Own(Vec<Case>),
    /// By the gradient checks of the op of this type.
    GradientOf(TypeId),
}
