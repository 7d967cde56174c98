//! Reads the state of a checkpoint into an engine, and broadcasts it from rank 0.

use super::initial::{refresh_compute_copy, write_parameter};
use super::shards::{
    CheckpointBuffer, checkpoint_buffers, optimizer_buffers, request_tensor, whole_spec, write_tensor,
};
use crate::checkpoint::{Loaded, TensorView};
use crate::device::DType;
use crate::device::communicator::Communicator;
use crate::error::{Error, Result};
use crate::exec::{Engine, StateCopy};
use crate::ir::{FlatBuffer, Param, Spec, State};
use crate::liveness::report_progress;
use bytemuck::pod_collect_to_vec;
use half::bf16;
use safetensors::Dtype;
use std::borrow::Cow;
use std::sync::Arc;

/// Reads a checkpoint into an engine: the parameters and, if the engine trains, the optimizer's slots.
///
/// # Errors
/// If a tensor is missing or has a different shape.
pub(super) fn restore(engine: &mut Engine, loaded: &Loaded) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for buffer in checkpoint_buffers(&layout) {
        for param in buffer.params(&layout) {
            let slot = engine.state.slot(buffer.name.param(&param.name))?;
            let spec = &layout.get(slot).spec;
            let stored = loaded.read(&format!("{}{}", buffer.prefix, param.name), &spec.shape)?;
            engine.state.write(slot, &from_stored(spec, stored))?;
        }
    }
    refresh_compute_copy(engine)
}

/// Broadcasts the parameters and the optimizer's slots from rank 0, so that only rank 0 needs to see the
/// checkpoint. Goes directly between GPUs if possible, and through the host otherwise.
///
/// # Errors
/// If a rank is lost or plans a different model.
pub(super) fn broadcast_state(engine: &mut Engine, comm: &dyn Communicator) -> Result<()> {
    if comm.world_size() == 1 {
        return Ok(());
    }
    let layout = Arc::clone(engine.state.layout());
    for buffer in checkpoint_buffers(&layout) {
        for param in buffer.params(&layout) {
            let slot = engine.state.slot(buffer.name.param(&param.name))?;
            let expected = layout.get(slot).spec.bytes();
            if engine.broadcast_from_rank_0(slot)? {
                continue;
            }
            let mine =
                if comm.rank() == 0 { engine.state.read::<u8>(slot)?.into_owned() } else { Vec::new() };
            let bytes = comm.broadcast(&buffer.name.param(&param.name).to_string(), mine)?;
            check_length(param, bytes.len(), expected)?;
            if comm.rank() != 0 {
                engine.state.write(slot, &bytes)?;
            }
        }
    }
    if let Some(gpu) = engine.gpu() {
        gpu.synchronize()?;
    }
    refresh_compute_copy(engine)
}

/// Restores ranks that each hold a part of the state. Rank 0 reads the tensors of its checkpoint. Each rank
/// keeps the parts that it owns, and the parameters that its ops read.
///
/// # Errors
/// If a tensor is missing or has a different shape, or a rank is lost or plans a different model.
pub(super) fn restore_shards(
    engine: &mut Engine,
    comm: &dyn Communicator,
    loaded: Option<&Loaded>,
) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for buffer in checkpoint_buffers(&layout) {
        for param in buffer.params(&layout) {
            let bytes = from_rank_0(comm, loaded, (&layout, &buffer), param)?;
            // Masters of a sharded state are fp32.
            match &buffer.name {
                FlatBuffer::Params => write_parameter(engine, param, pod_collect_to_vec::<u8, f32>(&bytes))?,
                name => write_tensor(engine, name, buffer.shards, param, &bytes)?,
            }
        }
    }
    Ok(())
}

/// Sets the optimizer's slots to those of a checkpoint that rank 0 reads. The parameters and their moving
/// average stay as they are. Every rank must call it.
///
/// # Errors
/// If a tensor is missing or has a different shape, or a rank is lost or plans a different model.
pub(super) fn restore_optimizer(
    engine: &mut Engine,
    comm: &dyn Communicator,
    loaded: Option<&Loaded>,
) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for buffer in optimizer_buffers(&layout) {
        for param in buffer.params(&layout) {
            let bytes = from_rank_0(comm, loaded, (&layout, &buffer), param)?;
            write_tensor(engine, &buffer.name, buffer.shards, param, &bytes)?;
        }
    }
    Ok(())
}

/// Returns a parameter's whole tensor in a state buffer, including padding, which rank 0 reads from its
/// checkpoint.
fn from_rank_0(
    comm: &dyn Communicator,
    loaded: Option<&Loaded>,
    (layout, buffer): (&State, &CheckpointBuffer<'_>),
    param: &Param,
) -> Result<Vec<u8>> {
    report_progress();
    let spec = whole_spec(layout, &buffer.name, param)?;
    let name = format!("{}{}", buffer.prefix, param.name);
    let mine = match loaded {
        Some(loaded) => from_stored(&spec, loaded.read(&name, &spec.shape)?),
        None => Vec::new(),
    };
    let bytes = if comm.world_size() == 1 { mine } else { comm.broadcast(&name, mine)? };
    check_length(param, bytes.len(), spec.bytes())?;
    Ok(bytes)
}

fn check_length(param: &Param, bytes: usize, expected: usize) -> Result<()> {
    if bytes == expected {
        return Ok(());
    }
    Err(Error::failed(format!("{} has {bytes} bytes on rank 0, but {expected} here", param.name)))
}

/// Returns the tensors of a state buffer, unpadded, one for each parameter index in `params`, named `prefix`
/// plus the parameter's name. For a sharded buffer, rank 0 requests the other ranks' parts when it reads a
/// tensor.
pub(super) fn views<'a>(
    engine: &'a Engine,
    buffer: &FlatBuffer,
    prefix: &str,
    params: &[usize],
) -> Vec<TensorView<'a>> {
    let (state, layout) = (&engine.state, engine.state.layout());
    let number = checkpoint_buffers(layout).iter().position(|known| known.name == *buffer);
    let view = |&index: &usize| {
        let param = &layout.params[index];
        let spec = whole_spec(layout, buffer, param).ok()?;
        let name = format!("{prefix}{}", param.name);
        Some(match (layout.slot(buffer.param(&param.name)), number) {
            (Some(slot), _) => view(name, spec, move || state.read::<u8>(slot)),
            (None, Some(number)) => view(name, spec, move || {
                request_tensor(engine, [number as u64, index as u64]).map(Cow::Owned)
            }),
            (None, None) => return None,
        })
    };
    params.iter().filter_map(view).collect()
}

/// Returns the tensors of a checkpoint's buffer, unpadded, from a copy of the state.
pub(super) fn views_of_copy<'a>(copy: &'a StateCopy, buffer: &CheckpointBuffer<'_>) -> Vec<TensorView<'a>> {
    let view = |param: &Param| {
        let slot = copy.layout.slot(buffer.name.param(&param.name))?;
        let name = format!("{}{}", buffer.prefix, param.name);
        Some(view(name, copy.layout.get(slot).spec.clone(), move || copy.read(slot)))
    };
    buffer.params(&copy.layout).filter_map(view).collect()
}

/// Returns a tensor that `read` reads from memory.
fn view<'a>(name: String, spec: Spec, read: impl Fn() -> Result<Cow<'a, [u8]>> + 'a) -> TensorView<'a> {
    let dtype = if spec.dtype == DType::F64 { Dtype::F64 } else { Dtype::F32 };
    let shape = spec.shape.clone();
    TensorView::lazy(name, dtype, shape, move || Ok(Cow::Owned(to_stored(&spec, &read()?))))
}

/// Returns the bytes of a tensor as checkpoints store them: without padding, with bf16 widened to fp32.
fn to_stored(spec: &Spec, memory: &[u8]) -> Vec<u8> {
    let size = spec.dtype.size();
    let mut stored = Vec::with_capacity(spec.logical_elements() * size);
    for (_, at, len) in spec.runs() {
        stored.extend_from_slice(&memory[at * size..(at + len) * size]);
    }
    if spec.dtype == DType::Bf16 {
        let (halves, _) = stored.as_chunks::<2>();
        return halves.iter().flat_map(|&half| bf16::from_le_bytes(half).to_f32().to_le_bytes()).collect();
    }
    stored
}

/// Inverts [`to_stored`]: returns the bytes of a tensor in memory, with zeros as padding.
fn from_stored(spec: &Spec, mut stored: Vec<u8>) -> Vec<u8> {
    if spec.dtype == DType::Bf16 {
        let (floats, _) = stored.as_chunks::<4>();
        stored = floats.iter().flat_map(|&x| bf16::from_f32(f32::from_le_bytes(x)).to_le_bytes()).collect();
    }
    let size = spec.dtype.size();
    let mut memory = vec![0; spec.bytes()];
    for (from, at, len) in spec.runs() {
        memory[at * size..(at + len) * size].copy_from_slice(&stored[from * size..(from + len) * size]);
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_values_come_back_with_zero_padding() {
        for dtype in [DType::F32, DType::Bf16] {
            let spec = Spec::padded([2, 3], [4, 4], dtype);
            let stored: Vec<u8> = (0..6u8).flat_map(|i| (f32::from(i) - 2.5).to_le_bytes()).collect();
            let memory = from_stored(&spec, stored.clone());
            assert_eq!(memory.len(), spec.bytes());
            let row = 4 * dtype.size();
            assert!(memory[2 * row..].iter().chain(&memory[row - dtype.size()..row]).all(|&byte| byte == 0));
            assert_eq!(to_stored(&spec, &memory), stored, "{dtype}");
        }
    }
}
