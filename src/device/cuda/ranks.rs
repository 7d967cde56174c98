//! A GPU among those of other ranks.

use super::collectives::{CollectiveQueue, Collectives};
use super::gpu::Gpu;
use super::nccl::{Nccl, UniqueId};
use crate::device::gpu::{DevicePtr, Queue};
use crate::error::{Error, Result};
use std::sync::Arc;

impl Gpu {
    /// Connects this GPU with those of the other ranks. Every rank calls this once, at about the same time,
    /// since NCCL waits until all have called it. `share` distributes NCCL's id: rank 0 passes `Some` to be
    /// sent, the others pass `None` and return what rank 0 sent. With `channels`, that many thread blocks of
    /// the GPU take part in every collective; without, as many as NCCL chooses.
    ///
    /// # Errors
    /// When NCCL is missing (how to install it), `share` fails, or NCCL cannot join the GPUs.
    pub fn join_ranks(
        &self,
        rank: usize,
        world_size: usize,
        channels: Option<usize>,
        share: impl FnOnce(Option<UniqueId>) -> Result<UniqueId>,
    ) -> Result<()> {
        self.make_current()?;
        let nccl = Nccl::join(rank, world_size, channels, share)?;
        self.set_collectives(Collectives::new(self.context(), nccl)?)
            .map_err(|_| Error::failed("this GPU has already joined the other ranks"))
    }

    /// Returns the communicator; `None` in a run of one rank.
    pub fn nccl(&self) -> Option<&Arc<Nccl>> {
        self.collectives().map(Collectives::nccl)
    }

    /// Waits until all work is done, and destroys the communicator in agreement with the other ranks. Call it
    /// after all ranks have reported that they are done; a rank that ends otherwise aborts its communicator,
    /// which waits for no other rank.
    ///
    /// # Errors
    /// When work failed.
    pub fn shutdown(&self) -> Result<()> {
        self.synchronize()?;
        if let Some(nccl) = self.nccl() {
            nccl.shutdown();
        }
        Ok(())
    }

    /// Replaces bytes by those of rank 0, in the order of the stream. Does nothing in a run of one rank.
    ///
    /// # Errors
    /// When a rank is lost, or NCCL reports an error.
    pub fn broadcast_from_rank_0(&self, address: DevicePtr, bytes: usize) -> Result<()> {
        self.nccl().map_or(Ok(()), |nccl| nccl.broadcast(address, bytes, self.stream().raw()))
    }

    /// Returns the queue of collectives that overlap with the model's queue, ordered after the work queued on
    /// the model's so far; `None` in a run of one rank.
    ///
    /// # Errors
    /// When the driver reports an error.
    pub fn fork(&self) -> Result<Option<CollectiveQueue<'_>>> {
        let Some(collectives) = self.collectives() else { return Ok(None) };
        collectives.fork(self.stream())?;
        Ok(Some(CollectiveQueue::new(self.properties(), collectives)))
    }

    /// Orders later work of the model's queue after the collectives issued so far.
    ///
    /// # Errors
    /// When the driver reports an error.
    pub fn rejoin(&self) -> Result<()> {
        self.collectives().map_or(Ok(()), |collectives| collectives.rejoin(self.stream()))
    }
}
