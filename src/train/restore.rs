//! The state of a checkpoint: into an engine, and from rank 0 to the others.

use super::init::refresh_shadow;
use crate::checkpoint::{Loaded, TensorView};
use crate::device::DType;
use crate::device::communicator::Communicator;
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::ir::{Param, SlotId};
use safetensors::Dtype;
use std::borrow::Cow;
use std::sync::Arc;

/// The state buffers that a checkpoint holds, and the prefix of their tensors' names.
pub(super) const BUFFERS: [(&str, &str); 3] = [("params", ""), ("m", "adam.m."), ("v", "adam.v.")];

/// Reads the parameters of a checkpoint, without the moments, into an engine that only generates.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub fn restore_parameters(engine: &mut Engine, loaded: &Loaded) -> Result<()> {
    restore(engine, loaded, &BUFFERS[..1])
}

/// Reads state buffers of a checkpoint into an engine.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub(super) fn restore(engine: &mut Engine, loaded: &Loaded, buffers: &[(&str, &str)]) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for (buffer, prefix) in buffers {
        for param in &layout.params {
            let slot: SlotId = engine.state.slot(&format!("{buffer}.{}", param.name))?;
            let bytes = loaded.read(&format!("{prefix}{}", param.name), &param.spec.shape)?;
            let size = param.spec.dtype.size();
            let mut memory = vec![0u8; param.spec.bytes()];
            for (from, at, len) in param.spec.runs() {
                memory[at * size..(at + len) * size]
                    .copy_from_slice(&bytes[from * size..(from + len) * size]);
            }
            engine.state.write(slot, &memory)?;
        }
    }
    refresh_shadow(engine)
}

/// Gives every rank the parameters and moments of rank 0, which alone may see the checkpoint: between GPUs directly, else
/// over the host.
///
/// # Errors
/// When a rank is lost, or plans another model.
pub(super) fn share(engine: &mut Engine, comm: &dyn Communicator) -> Result<()> {
    if comm.world() == 1 {
        return Ok(());
    }
    let layout = Arc::clone(engine.state.layout());
    for (buffer, _) in BUFFERS {
        for param in &layout.params {
            let slot = engine.state.slot(&format!("{buffer}.{}", param.name))?;
            if engine.broadcast_from_rank_0(slot)? {
                continue;
            }
            let mine =
                if comm.rank() == 0 { engine.state.read::<u8>(slot)?.into_owned() } else { Vec::new() };
            let bytes = comm.broadcast(&format!("{buffer}.{}", param.name), mine)?;
            if bytes.len() != param.spec.bytes() {
                return Err(Error::failed(format!(
                    "{} has {} bytes on rank 0, and {} here",
                    param.name,
                    bytes.len(),
                    param.spec.bytes()
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
    refresh_shadow(engine)
}

/// The tensors of state buffers, unpadded, with a prefix each.
pub(super) fn views<'a>(engine: &'a Engine, buffers: &[(&str, &str)]) -> Vec<TensorView<'a>> {
    let layout = engine.state.layout();
    let mut tensors = Vec::new();
    for (buffer, prefix) in buffers {
        for param in &layout.params {
            let Some(slot) = layout.slot(&format!("{buffer}.{}", param.name)) else { continue };
            let (state, shape) = (&engine.state, param.spec.shape.clone());
            let read = move || Ok(Cow::Owned(unpadded(param, &state.read::<u8>(slot)?)));
            let dtype = if param.spec.dtype == DType::F64 { Dtype::F64 } else { Dtype::F32 };
            tensors.push(TensorView::lazy(format!("{prefix}{}", param.name), dtype, shape, read));
        }
    }
    tensors
}

fn unpadded(param: &Param, bytes: &[u8]) -> Vec<u8> {
    let size = param.spec.dtype.size();
    let mut out = Vec::with_capacity(param.spec.logical_elements() * size);
    for (_, at, len) in param.spec.runs() {
        out.extend_from_slice(&bytes[at * size..(at + len) * size]);
    }
    out
}
