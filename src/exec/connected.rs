//! The connection of an engine's GPU with those of other ranks.

use super::Engine;
use crate::device::communicator::Communicator;
use crate::device::cuda::{Gpu, SharedMemory};
use crate::device::gpu::{DevicePtr, area_capacity};
use crate::error::{Error, Result};
use crate::ir::State;

/// Returns an error if the GPU is connected as another rank, or with another number of ranks, than the
/// communicator: its sums would lack ranks.
fn check_connected(gpu: &Gpu, comm: &dyn Communicator) -> Result<()> {
    let joined = gpu.transport().map_or((0, 1), |transport| (transport.rank(), transport.world_size()));
    if joined == (comm.rank(), comm.world_size()) {
        return Ok(());
    }
    Err(Error::failed(format!(
        "rank {} of {} would run on a GPU that is connected as rank {} of {}",
        comm.rank(),
        comm.world_size(),
        joined.0,
        joined.1
    )))
}

/// Returns the names of the buffers that other ranks read and write in an exchange by copies; none where the
/// state has no room for one.
pub(crate) fn shared_buffers(layout: &State) -> Vec<&'static str> {
    if layout.slot("exchange.sums").is_none() {
        return Vec::new();
    }
    // A rank that owns masters gives the others a copy of them.
    let masters = if layout.masters_are_sharded() { None } else { Some("params") };
    let names = ["exchange", "compute_copy", "vectors"].into_iter().chain(masters);
    names.filter(|name| layout.buffers.iter().any(|buffer| buffer.name == *name)).collect()
}

impl Engine {
    /// Returns the memory that other ranks may read and write, where the state has room for an exchange by
    /// copies.
    pub(crate) fn shared_memory(&self) -> Option<SharedMemory> {
        let layout = self.state.layout();
        let slot = |tensor: &str| {
            let slot = layout.slot(&format!("exchange.{tensor}"))?;
            Some((self.state.address(slot).addr() as DevicePtr, layout.get(slot).spec.bytes()))
        };
        let sums = slot("sums")?;
        let buffers = shared_buffers(layout).into_iter().filter_map(|name| {
            let (_, memory) = self.state.buffer(name)?;
            Some((memory.address().addr() as DevicePtr, memory.len()))
        });
        let ranks = layout.shards.as_ref().map_or(1, |shards| shards.ranks());
        let area = |tensor: &str| {
            slot(tensor).map(|(area, bytes)| (area, area_capacity(bytes / size_of::<u32>(), ranks)))
        };
        let areas = [area("model_area")?, area("collectives_area")?];
        Some(SharedMemory { buffers: buffers.collect(), sums, areas })
    }

    /// Checks that the GPU is connected with those of all ranks.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_connected(&self) -> Result<()> {
        self.gpu().map_or(Ok(()), |gpu| check_connected(gpu, &*self.comm))
    }
}
