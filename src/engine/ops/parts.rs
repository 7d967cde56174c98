//! Runs an op on the CPU as the smaller ops whose work it does.

use crate::device::cpu::Address;
use crate::error::Result;
use crate::ir::{Builder, CpuNode, Spec, StateBuilder, TensorId};
use std::sync::Arc;

/// Runs what `record` records, given the tensors that stand for the node's inputs and outputs. Tensors
/// between the ops live until the end.
///
/// # Errors
/// If an op rejects its inputs or fails.
pub fn run_parts(
    cx: &CpuNode<'_>,
    record: impl FnOnce(&mut Builder, &[TensorId], &[TensorId]) -> Result<()>,
) -> Result<()> {
    let state = StateBuilder::empty(cx.program.state.precision).finish();
    let mut b = Builder::new("parts", Arc::new(state));
    let mut known = |ids: &[TensorId]| -> Vec<TensorId> {
        ids.iter().map(|&id| b.buffer("known", cx.program.spec(id).clone())).collect()
    };
    let (inputs, outputs) = (known(&cx.node.inputs), known(&cx.node.outputs));
    record(&mut b, &inputs, &outputs)?;
    let program = b.finish();
    let between = program.tensors.len() - inputs.len() - outputs.len();
    // Words of eight bytes are aligned for every format.
    let words = |spec: &Spec| vec![0u64; spec.bytes().div_ceil(8)];
    let mut memory: Vec<Vec<u64>> =
        program.tensors[program.tensors.len() - between..].iter().map(|tensor| words(&tensor.spec)).collect();
    let mut addresses: Vec<Address> = cx.inputs.iter().chain(cx.outputs).copied().collect();
    addresses.extend(memory.iter_mut().map(|words| Address(words.as_mut_ptr().cast())));
    for node in &program.nodes {
        let of = |ids: &[TensorId]| ids.iter().map(|id| addresses[id.0]).collect::<Vec<_>>();
        let (inputs, outputs) = (of(&node.inputs), of(&node.outputs));
        let part = CpuNode { program: &program, node, inputs: &inputs, outputs: &outputs, ..*cx };
        node.op.cpu(&part)?;
    }
    Ok(())
}
