//! Inserts all-reduces of gradients: one per bucket when the backward completes it, or a single group of all
//! gradients.

use crate::error::Result;
use crate::ir::{Builder, Destination, Home, Mode, Op, Phase, Program, SlotName, Stream};
use crate::ops::all_reduce::AllReduce;
use crate::ops::reduce_scatter::ReduceScatter;
use std::sync::Arc;

/// A contiguous range of the flat gradient that one call reduces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The bucket's slot.
    pub slot: SlotName,
    /// First element in the flat gradient.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

/// Splits the flat gradient at parameter boundaries into buckets of at least `bytes`; the last may be
/// smaller. Zero makes one bucket per parameter. With `first_alone`, the first parameter is a bucket by
/// itself, whatever its size: its gradient is complete before the backward of the blocks begins and need not
/// wait for their gradients.
pub fn buckets(
    params: &[(usize, usize)],
    flat_len: usize,
    element_bytes: usize,
    bytes: usize,
    first_alone: bool,
) -> Vec<Bucket> {
    let mut buckets = Vec::new();
    let mut start = 0;
    for (i, _) in params.iter().enumerate() {
        let end = params.get(i + 1).map_or(flat_len, |next| next.0);
        let full = (end - start) * element_bytes >= bytes || (i == 0 && first_alone);
        if full || end == flat_len {
            buckets.push(Bucket { slot: SlotName::Bucket(buckets.len()), start, len: end - start });
            start = end;
        }
    }
    buckets
}

/// Inserts an all-reduce per bucket, or a reduce-scatter if the state is sharded. Each follows the node that
/// completes its bucket, on the communication stream; without `overlap`, all are at the end, on the main
/// stream.
///
/// # Errors
/// If the state lacks a bucket's slot.
pub fn insert_all_reduces(program: Program, buckets: &[Bucket], overlap: bool) -> Result<Program> {
    let complete_at: Vec<usize> = buckets.iter().map(|b| completed_at(&program, b)).collect();
    let shards = program.state.shards.clone();
    let mut builder = Builder::resume(program);
    let nodes = builder.take_nodes();
    let last = nodes.len().saturating_sub(1);
    for (at, node) in nodes.into_iter().enumerate() {
        builder.push(node);
        for (bucket, &complete) in buckets.iter().zip(&complete_at) {
            let due = if overlap { complete } else { last };
            if due == at {
                builder.set_scope("gradients", None);
                builder.phase = Phase::Communication;
                builder.stream = if overlap { Stream::Communication } else { Stream::Main };
                let slot = builder.state(bucket.slot.clone())?;
                let like = builder.spec(slot).clone();
                let op: Arc<dyn Op> = match &shards {
                    Some(shards) => {
                        Arc::new(ReduceScatter { like, start: bucket.start, shards: Arc::clone(shards) })
                    }
                    None => Arc::new(AllReduce { like: vec![like] }),
                };
                builder.emit_into(op.name(), Arc::clone(&op), &[], &[Destination::Into(slot, Mode::Add)])?;
            }
        }
    }
    Ok(builder.finish())
}

/// Appends one all-reduce of all parameter gradients in one group, on the main stream: the baseline for
/// bucketed reduction.
///
/// # Errors
/// If the op does not accept the tensors.
pub fn append_group(program: Program) -> Result<Program> {
    let slots: Vec<_> = program.state.params.iter().map(|param| param.grad).collect();
    let mut builder = Builder::resume(program);
    builder.set_scope("gradients", None);
    builder.phase = Phase::Communication;
    builder.stream = Stream::Main;
    let tensors: Vec<_> = slots.into_iter().map(|slot| builder.state_slot(slot)).collect();
    let like = tensors.iter().map(|&tensor| builder.spec(tensor).clone()).collect();
    let outs: Vec<_> = tensors.into_iter().map(|tensor| Destination::Into(tensor, Mode::Add)).collect();
    builder.emit_into("all_reduce", Arc::new(AllReduce { like }), &[], &outs)?;
    Ok(builder.finish())
}

/// Returns the index of the last node that writes a gradient inside the bucket.
fn completed_at(program: &Program, bucket: &Bucket) -> usize {
    let inside = |out: &crate::ir::TensorId| match program.tensor(*out).home {
        Home::State(slot) => program
            .state
            .params
            .iter()
            .any(|p| p.grad == slot && (bucket.start..bucket.start + bucket.len).contains(&p.start)),
        _ => false,
    };
    program.nodes.iter().rposition(|n| n.outputs.iter().any(inside)).unwrap_or(0)
}
