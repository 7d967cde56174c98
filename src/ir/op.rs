//! The interface of operations.

use super::{Builder, Cases, GpuNode, Mode, Node, Precision, Program, Spec, TensorId, Vjp};
use crate::device::communicator::Communicator;
use crate::device::cpu::{Address, Pool, View, ViewMut};
use crate::device::{DType, Elem};
use crate::error::{Error, Result};
use std::fmt::Debug;

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

/// The cost of a node, from which step times and op budgets are predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations of matrix products, a multiply-add counted as two.
    pub product_flops: f64,
    /// Bytes of memory traffic: inputs read once, outputs written once.
    pub bytes: f64,
}

impl Cost {
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

/// A coarse operation: shapes, gradient, cost and implementations in one place.
pub trait Op: Debug + Send + Sync {
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

    /// Returns true if recomputing this output before the backward is cheaper than keeping it.
    fn cheap_to_recompute(&self, _output: usize) -> bool {
        false
    }

    /// Records a cheaper computation of the same bits of `output` from its other, kept outputs (`outputs`),
    /// if there is one.
    ///
    /// # Errors
    /// When recording fails.
    fn rederive(
        &self,
        _b: &mut Builder,
        _inputs: &[TensorId],
        _outputs: &[TensorId],
        _output: usize,
    ) -> Result<Option<TensorId>> {
        Ok(None)
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

    /// Returns its test cases at a precision: its own, or the op whose gradient it is.
    fn cases(&self, precision: Precision) -> Cases;
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

impl<'a> CpuNode<'a> {
    /// Returns the spec of input `i`.
    pub fn input_spec(&self, i: usize) -> &'a Spec {
        self.program.spec(self.node.inputs[i])
    }

    /// Returns the spec of output `i`.
    pub fn output_spec(&self, i: usize) -> &'a Spec {
        self.program.spec(self.node.outputs[i])
    }

    /// Returns true if output `i` is added to rather than overwritten.
    pub fn adds(&self, i: usize) -> bool {
        self.node.modes[i] == Mode::Add
    }

    /// Returns input `i` as numbers of type `E`, padding included.
    pub fn input<E: Elem>(&self, i: usize) -> View<'a, E> {
        let spec = self.input_spec(i);
        assert_eq!(spec.dtype, E::DTYPE, "{} input {i}", self.node.op.name());
        // SAFETY: the executor resolved this address for a tensor of this spec, and keeps it alive for the
        // node.
        unsafe { View::new(self.inputs[i].0.cast(), spec.elements()) }
    }

    /// Returns input `i` as unsigned integers.
    pub fn input_u32(&self, i: usize) -> &'a [u32] {
        let spec = self.input_spec(i);
        assert_eq!(spec.dtype, DType::U32, "{} input {i}", self.node.op.name());
        // SAFETY: as `input`; no op declares an alias of an integer input, so nothing writes it meanwhile.
        let view: View<'a, u32> = unsafe { View::new(self.inputs[i].0.cast(), spec.elements()) };
        view.slice(0, view.len())
    }

    /// Returns the memory of input `i`, padding included. No op that reads bytes declares an alias of them.
    pub fn input_bytes(&self, i: usize) -> &'a [u8] {
        // SAFETY: as `input`; bytes have no alignment, and nothing writes them meanwhile.
        let view: View<'a, u8> = unsafe { View::new(self.inputs[i].0, self.input_spec(i).bytes()) };
        view.slice(0, view.len())
    }

    /// Returns output `i` as numbers of type `E`, padding included.
    pub fn output<E: Elem>(&self, i: usize) -> ViewMut<'a, E> {
        let spec = self.output_spec(i);
        assert_eq!(spec.dtype, E::DTYPE, "{} output {i}", self.node.op.name());
        // SAFETY: as `input`; the node is the only one that runs, and its tasks write disjoint ranges.
        unsafe { ViewMut::new(self.outputs[i].0.cast(), spec.elements()) }
    }

    /// Returns the memory of output `i`, padding included, for an op of one task.
    pub fn output_bytes(&self, i: usize) -> &'a mut [u8] {
        // SAFETY: as `output`; bytes have no alignment.
        let view: ViewMut<'a, u8> = unsafe { ViewMut::new(self.outputs[i].0, self.output_spec(i).bytes()) };
        view.slice(0, view.len())
    }

    /// Returns output `i` as unsigned integers.
    pub fn output_u32(&self, i: usize) -> ViewMut<'a, u32> {
        let spec = self.output_spec(i);
        assert_eq!(spec.dtype, DType::U32, "{} output {i}", self.node.op.name());
        // SAFETY: as `output`.
        unsafe { ViewMut::new(self.outputs[i].0.cast(), spec.elements()) }
    }
}
