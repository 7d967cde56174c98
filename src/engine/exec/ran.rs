//! A node that has just run, for callbacks that read its outputs before the next node runs.

use super::bad::NonFiniteOutput;
use super::memory::widened_bytes;
use crate::device::cpu::Address;
use crate::device::gpu::DevicePtr;
use crate::device::{DType, Device};
use crate::error::Result;
use crate::ir::{Node, Program, Spec};

/// A node that ran, while its outputs are still allocated.
pub(super) struct FinishedNode<'a> {
    pub program: &'a Program,
    pub node: &'a Node,
    /// Index of the node in the program.
    pub at: usize,
    pub outputs: &'a [Address],
    pub device: &'a Device,
}

impl FinishedNode<'_> {
    pub fn output_spec(&self, k: usize) -> &Spec {
        self.program.spec(self.node.outputs[k])
    }

    /// Returns the bytes of an output, padding included.
    pub fn output_bytes(&self, k: usize) -> Result<Vec<u8>> {
        self.output_start(k, self.output_spec(k).bytes())
    }

    /// Returns the first `bytes` of an output, at most all of them.
    pub fn output_start(&self, k: usize, bytes: usize) -> Result<Vec<u8>> {
        debug_assert!(bytes <= self.output_spec(k).bytes());
        match self.device {
            Device::Cpu(_) => Ok(crate::device::cpu::view::copy_tensor_bytes(self.outputs[k], bytes)),
            Device::Cuda(gpu, _) => gpu.read(self.outputs[k].0.addr() as DevicePtr, bytes),
        }
    }

    /// Returns the first output that is not finite, ignoring `scratch` outputs.
    pub fn first_non_finite(&self, scratch: &[bool]) -> Result<Option<NonFiniteOutput>> {
        for output in 0..self.node.outputs.len() {
            let spec = self.output_spec(output);
            if spec.dtype == DType::U32 || scratch[self.node.outputs[output].0] {
                continue;
            }
            let values = widened_bytes(spec.dtype, &self.output_bytes(output)?);
            if let Some(value) = values.into_iter().find(|v| !v.is_finite()) {
                return Ok(Some(NonFiniteOutput { node: self.at, output, value }));
            }
        }
        Ok(None)
    }
}
