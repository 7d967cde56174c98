//! Sharded state: writes and gathers tensors of which every rank owns a part.

use crate::device::communicator::Communicator;
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::ir::{FlatBuffer, Param, Shards, Spec, State};
use crate::model::is_of_average;
use std::sync::Arc;

/// A tensor of a checkpoint: the index of its buffer among the checkpoint's, and the index of its parameter.
pub(super) type BufferTensor = [u64; 2];

/// Name of the collective with which rank 0 requests a tensor while it saves.
const REQUEST: &str = "the next tensor to save";

/// A state buffer that a checkpoint holds, one tensor per parameter.
#[derive(Clone, Debug)]
pub(super) struct CheckpointBuffer<'a> {
    /// Name of the buffer.
    pub name: FlatBuffer,
    /// Prefix of its tensors' names, before the name of the parameter.
    pub prefix: &'static str,
    /// Indices of the parameters that have a tensor in it.
    pub params: Vec<usize>,
    /// If the buffer is sharded, the owners of its elements and where these lie in the owners' parts.
    pub shards: Option<&'a Shards>,
}

impl CheckpointBuffer<'_> {
    /// Returns the parameters that have a tensor in it.
    pub fn params<'a>(&self, layout: &'a State) -> impl Iterator<Item = &'a Param> {
        self.params.iter().map(|&index| &layout.params[index])
    }
}

/// Returns the state buffers that a checkpoint holds: the parameters and, if the state is for training, the
/// slots of every group.
pub(super) fn checkpoint_buffers(layout: &State) -> Vec<CheckpointBuffer<'_>> {
    let mut buffers = vec![CheckpointBuffer {
        name: FlatBuffer::Params,
        prefix: "",
        params: (0..layout.params.len()).collect(),
        shards: layout.shards.as_deref(),
    }];
    for group in &layout.groups {
        buffers.extend(group.slots.iter().map(|slot| CheckpointBuffer {
            name: group.buffer(slot),
            prefix: slot.checkpoint_prefix,
            params: group.params.clone(),
            shards: layout.shards.as_ref().map(|_| &group.places),
        }));
    }
    buffers
}

/// Returns the buffers of [`checkpoint_buffers`] that hold the optimizer's state: neither the parameters nor
/// their moving average.
pub(super) fn optimizer_buffers(layout: &State) -> Vec<CheckpointBuffer<'_>> {
    let mut buffers = checkpoint_buffers(layout);
    buffers.retain(|buffer| buffer.name != FlatBuffer::Params && !is_of_average(buffer.prefix));
    buffers
}

/// Returns the spec of a parameter's whole tensor in a state buffer.
///
/// # Errors
/// If the state has no such buffer.
pub(super) fn whole_spec(layout: &State, buffer: &FlatBuffer, param: &Param) -> Result<Spec> {
    let slot = layout.slot(buffer.clone());
    let flat = slot.ok_or_else(|| Error::failed(format!("the state has no {buffer}")))?;
    Ok(param.spec.with_dtype(layout.get(flat).spec.dtype))
}

/// Writes the bytes of a parameter's whole tensor, including padding, to a state buffer. If the buffer is
/// sharded, writes only this rank's part by `shards`.
///
/// # Errors
/// If the state has no such buffer, or the device reports an error.
pub(super) fn write_tensor(
    engine: &mut Engine,
    buffer: &FlatBuffer,
    shards: Option<&Shards>,
    param: &Param,
    bytes: &[u8],
) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    if let Some(slot) = layout.slot(buffer.param(&param.name)) {
        return engine.state.write(slot, bytes);
    }
    let (rank, size) = (engine.comm.rank(), bytes.len() / param.spec.elements());
    let flat = engine.state.slot(buffer.clone())?;
    for range in shards.iter().flat_map(|shards| shards.within(param.flat())) {
        if range.rank == rank {
            let from = &bytes[(range.start - param.start) * size..][..range.len * size];
            engine.state.write_bytes(flat, range.offset * size, from)?;
        }
    }
    Ok(())
}

/// Gathers a parameter's whole tensor from a sharded buffer. Returns its bytes, including padding, on rank 0
/// and nothing on other ranks. Every rank must call it.
///
/// # Errors
/// If a rank is lost.
fn gather_tensor(engine: &Engine, buffer: &CheckpointBuffer<'_>, param: &Param) -> Result<Vec<u8>> {
    let (state, layout) = (&engine.state, engine.state.layout());
    let name = &buffer.name;
    let spec = whole_spec(layout, name, param)?;
    let size = spec.dtype.size();
    let ranges: Vec<_> = buffer.shards.iter().flat_map(|shards| shards.within(param.flat())).collect();
    let shard = state.slot(name.clone())?;
    let own = ranges.iter().filter(|range| range.rank == engine.comm.rank());
    let own: Vec<_> = own
        .map(|range| state.read_bytes(shard, range.offset * size, range.len * size))
        .collect::<Result<_>>()?;
    let all = engine.comm.gather(&name.param(&param.name).to_string(), own.concat())?;
    if engine.comm.rank() > 0 {
        return Ok(Vec::new());
    }
    let mut whole = vec![0; spec.bytes()];
    for (rank, mut bytes) in all.parts().enumerate() {
        for range in ranges.iter().filter(|range| range.rank == rank) {
            let (first, rest) = bytes.split_at_checked(range.len * size).ok_or_else(|| {
                Error::failed(format!("rank {rank} sent less of {name}.{} than it owns", param.name))
            })?;
            whole[(range.start - param.start) * size..][..first.len()].copy_from_slice(first);
            bytes = rest;
        }
    }
    Ok(whole)
}

/// Requests all ranks' parts of a tensor, and returns the whole tensor. Called on rank 0.
///
/// # Errors
/// If a rank is lost.
pub(super) fn request_tensor(engine: &Engine, tensor: BufferTensor) -> Result<Vec<u8>> {
    engine.comm.broadcast(REQUEST, bytemuck::cast_slice(&tensor).to_vec())?;
    gather_by_index(engine, tensor)
}

/// Ends the requests that other ranks wait for. Called on rank 0.
///
/// # Errors
/// If a rank is lost.
pub(super) fn end_requests(comm: &dyn Communicator) -> Result<()> {
    comm.broadcast(REQUEST, Vec::new()).map(drop)
}

/// Answers requests until they end. Called on all ranks except 0.
///
/// # Errors
/// If a rank is lost.
pub(super) fn answer_requests(engine: &Engine) -> Result<()> {
    // The last request is empty.
    while let Ok(tensor) = bytemuck::try_pod_read_unaligned(&engine.comm.broadcast(REQUEST, Vec::new())?) {
        gather_by_index(engine, tensor)?;
    }
    Ok(())
}

fn gather_by_index(engine: &Engine, tensor: BufferTensor) -> Result<Vec<u8>> {
    let layout = engine.state.layout();
    let [buffer, param] = tensor.map(|index| index as usize);
    match (checkpoint_buffers(layout).get(buffer), layout.params.get(param)) {
        (Some(buffer), Some(param)) => gather_tensor(engine, buffer, param),
        _ => Err(Error::failed("rank 0 requested a tensor that only its own state has")),
    }
}
