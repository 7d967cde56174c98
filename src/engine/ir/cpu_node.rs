//! A node as its op sees it on the CPU.

use super::{CpuNode, Mode, Spec};
use crate::device::cpu::{View, ViewMut};
use crate::device::{DType, Elem};

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
        // SAFETY: see `input`; no op declares an alias of an integer input, so nothing writes it during the
        // node.
        let view: View<'a, u32> = unsafe { View::new(self.inputs[i].0.cast(), spec.elements()) };
        view.slice(0, view.len())
    }

    /// Returns the memory of input `i`, padding included. No op that reads an input as bytes may declare an
    /// alias of it.
    pub fn input_bytes(&self, i: usize) -> &'a [u8] {
        // SAFETY: see `input`; bytes need no alignment, and nothing writes them during the node.
        let view: View<'a, u8> = unsafe { View::new(self.inputs[i].0, self.input_spec(i).bytes()) };
        view.slice(0, view.len())
    }

    /// Returns output `i` as numbers of type `E`, padding included.
    pub fn output<E: Elem>(&self, i: usize) -> ViewMut<'a, E> {
        let spec = self.output_spec(i);
        assert_eq!(spec.dtype, E::DTYPE, "{} output {i}", self.node.op.name());
        // SAFETY: see `input`; no other node runs, and this node's tasks write disjoint ranges.
        unsafe { ViewMut::new(self.outputs[i].0.cast(), spec.elements()) }
    }

    /// Returns the memory of output `i`, padding included, for an op that runs as one task.
    pub fn output_bytes(&self, i: usize) -> &'a mut [u8] {
        // SAFETY: see `output`; bytes need no alignment.
        let view: ViewMut<'a, u8> = unsafe { ViewMut::new(self.outputs[i].0, self.output_spec(i).bytes()) };
        view.slice(0, view.len())
    }

    /// Returns output `i` as unsigned integers.
    pub fn output_u32(&self, i: usize) -> ViewMut<'a, u32> {
        let spec = self.output_spec(i);
        assert_eq!(spec.dtype, DType::U32, "{} output {i}", self.node.op.name());
        // SAFETY: see `output`.
        unsafe { ViewMut::new(self.outputs[i].0.cast(), spec.elements()) }
    }
}
