//! Reading the state of a checkpoint into an engine, and broadcasting it from rank 0.

use super::init::refresh_compute_copy;
use crate::checkpoint::{Loaded, TensorView};
use crate::device::DType;
use crate::device::communicator::Communicator;
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::ir::{Param, Spec, State};
use half::bf16;
use safetensors::Dtype;
use std::borrow::Cow;
use std::sync::Arc;

/// State buffers that a checkpoint holds, each with the prefix of its tensors' names: the parameters, and the
/// optimizer's slots where the state is for training.
fn checkpoint_buffers(layout: &State) -> Vec<(&'static str, &'static str)> {
    let slots = layout.optimizer_slots.iter().map(|slot| (slot.buffer, slot.checkpoint_prefix));
    std::iter::once(("params", "")).chain(slots).collect()
}

/// Reads a checkpoint into an engine: the parameters, and the optimizer's slots where the engine trains.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub(super) fn restore(engine: &mut Engine, loaded: &Loaded) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for (buffer, prefix) in checkpoint_buffers(&layout) {
        for param in &layout.params {
            let slot = engine.state.slot(&format!("{buffer}.{}", param.name))?;
            let spec = &layout.get(slot).spec;
            let stored = loaded.read(&format!("{prefix}{}", param.name), &spec.shape)?;
            engine.state.write(slot, &from_stored(spec, stored))?;
        }
    }
    refresh_compute_copy(engine)
}

/// Broadcasts the parameters and the optimizer's slots of rank 0, the only rank that needs to see the
/// checkpoint: directly between GPUs, otherwise through the host.
///
/// # Errors
/// When a rank is lost, or plans another model.
pub(super) fn broadcast_state(engine: &mut Engine, comm: &dyn Communicator) -> Result<()> {
    if comm.world_size() == 1 {
        return Ok(());
    }
    let layout = Arc::clone(engine.state.layout());
    for (buffer, _) in checkpoint_buffers(&layout) {
        for param in &layout.params {
            let slot = engine.state.slot(&format!("{buffer}.{}", param.name))?;
            let expected = layout.get(slot).spec.bytes();
            if engine.broadcast_from_rank_0(slot)? {
                continue;
            }
            let mine =
                if comm.rank() == 0 { engine.state.read::<u8>(slot)?.into_owned() } else { Vec::new() };
            let bytes = comm.broadcast(&format!("{buffer}.{}", param.name), mine)?;
            if bytes.len() != expected {
                return Err(Error::failed(format!(
                    "{} has {} bytes on rank 0, and {expected} here",
                    param.name,
                    bytes.len(),
                )));
            }
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

/// Returns the tensors of a state buffer, unpadded, one per parameter; `prefix` goes before the parameter's
/// name.
pub(super) fn views<'a>(engine: &'a Engine, buffer: &str, prefix: &str) -> Vec<TensorView<'a>> {
    let (state, layout) = (&engine.state, engine.state.layout());
    let view = |param: &Param| {
        let slot = layout.slot(&format!("{buffer}.{}", param.name))?;
        let spec = &layout.get(slot).spec;
        let dtype = if spec.dtype == DType::F64 { Dtype::F64 } else { Dtype::F32 };
        let read = move || Ok(Cow::Owned(to_stored(spec, &state.read::<u8>(slot)?)));
        Some(TensorView::lazy(format!("{prefix}{}", param.name), dtype, spec.shape.clone(), read))
    };
    layout.params.iter().filter_map(view).collect()
}

/// Returns the bytes of a tensor as checkpoints store them: without padding, bf16 widened to fp32.
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

/// The inverse of [`to_stored`]: returns the bytes of a tensor in memory, with zero padding.
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
    fn what_is_stored_comes_back_with_its_padding_zero() {
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
