//! The connection of an engine's GPU to the GPUs of other ranks.

use super::Engine;
use crate::device::communicator::Communicator;
use crate::device::cuda::{Gpu, SharedMemory};
use crate::device::gpu::{DevicePtr, area_capacity};
use crate::error::{Error, Result};
use crate::ir::{ExchangeSlot, FlatBuffer, Fp8Slot, State};

/// Fails if the GPU is connected with a different rank or number of ranks than the communicator's: its sums
/// would miss ranks.
fn check_connected(gpu: &Gpu, comm: &dyn Communicator) -> Result<()> {
    let joined = gpu.transport().map_or((0, 1), |transport| (transport.rank(), transport.world_size()));
    if joined == (comm.rank(), comm.world_size()) {
        return Ok(());
    }
    Err(Error::failed(format!(
        "rank {} of {} would run on a GPU connected as rank {} of {}",
        comm.rank(),
        comm.world_size(),
        joined.0,
        joined.1
    )))
}

/// Returns the indices of the buffers that other ranks read and write when ranks exchange data by copies;
/// none if the state is not laid out for that.
pub fn shared_buffers(layout: &State) -> Vec<usize> {
    let Some(sums) = layout.slot(ExchangeSlot::Sums) else { return Vec::new() };
    // A rank whose masters are sharded shares a copy of them with the others.
    let masters = (!layout.masters_are_sharded()).then_some(FlatBuffer::Params);
    let read = [FlatBuffer::ComputeCopy, FlatBuffer::Vectors].into_iter().chain(masters);
    let read = read.filter_map(|buffer| layout.slot(buffer)).chain(layout.slot(Fp8Slot::AllMaxima));
    let slots = std::iter::once(sums).chain(read);
    slots.map(|slot| layout.get(slot).buffer).collect()
}

impl Engine {
    /// Returns the memory that other ranks may read and write; `None` if the state is not laid out for an
    /// exchange by copies.
    pub fn shared_memory(&self) -> Option<SharedMemory> {
        let layout = self.state.layout();
        let slot = |name: ExchangeSlot| {
            let slot = layout.slot(name)?;
            Some((self.state.address(slot).addr() as DevicePtr, layout.get(slot).spec.bytes()))
        };
        let sums = slot(ExchangeSlot::Sums)?;
        let buffers = shared_buffers(layout).into_iter().map(|buffer| {
            let memory = self.state.buffer_at(buffer);
            (memory.address().addr() as DevicePtr, memory.len())
        });
        let ranks = layout.shards.as_ref().map_or(1, |shards| shards.ranks);
        let area = |name: ExchangeSlot| {
            slot(name).map(|(area, bytes)| (area, area_capacity(bytes / size_of::<u32>(), ranks)))
        };
        let areas = [area(ExchangeSlot::ModelArea)?, area(ExchangeSlot::CollectivesArea)?];
        Some(SharedMemory { buffers: buffers.collect(), sums, areas })
    }

    /// Checks that the GPU is connected to the GPUs of all ranks.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_connected(&self) -> Result<()> {
        self.gpu().map_or(Ok(()), |gpu| check_connected(gpu, &*self.comm))
    }
}
