//! A GPU's connection to the GPUs of other ranks.

use super::collectives::{CollectiveQueue, Collectives};
use super::driver::Event;
use super::gpu::Gpu;
use super::nccl::{Nccl, UniqueId};
use super::transport::{Lane, On, Transport};
use crate::device::gpu::{DevicePtr, Queue};
use crate::error::{Error, Result};
use std::sync::Arc;

impl Gpu {
    /// Connects this GPU to the GPUs of the other ranks. Every rank calls this once, at about the same time,
    /// because NCCL waits until all have called it. `share` distributes NCCL's id: rank 0 passes `Some` to
    /// send it, the others pass `None` and get the id from rank 0. With `channels`, that many thread blocks
    /// of the GPU take part in every collective; otherwise NCCL chooses their number.
    ///
    /// # Errors
    /// If NCCL is missing (the message says how to install it), `share` fails, or NCCL cannot join the GPUs.
    pub fn join_ranks(
        &self,
        rank: usize,
        world_size: usize,
        channels: Option<usize>,
        share: impl FnOnce(Option<UniqueId>) -> Result<UniqueId>,
    ) -> Result<()> {
        self.make_current()?;
        let nccl = Nccl::join(rank, world_size, channels, share)?;
        self.set_collectives(Collectives::new(self.context(), Arc::new(nccl))?)
            .map_err(|_| Error::failed("this GPU has already joined the other ranks"))
    }

    /// Returns the exchange with other ranks; `None` in a run with one rank, and before ranks are connected.
    pub(crate) fn transport(&self) -> Option<&Arc<dyn Transport>> {
        self.collectives().map(Collectives::transport)
    }

    /// Returns a function that aborts the exchange with the other ranks with an error, and does nothing once
    /// the exchange has ended; `None` before ranks are connected.
    pub fn exchange_aborter(&self) -> Option<impl Fn(&Error) + Send + Sync + use<>> {
        let transport = Arc::downgrade(self.transport()?);
        Some(move |error: &Error| {
            if let Some(transport) = transport.upgrade() {
                transport.abort(error);
            }
        })
    }

    /// Returns the model's stream, for calls of the transport.
    pub(super) fn model_lane(&self) -> On<'_> {
        On { stream: self.stream(), lane: Lane::Model }
    }

    /// Waits until all work is done, then ends the exchange in agreement with the other ranks. Call it after
    /// all ranks have reported that they are done. A rank that ends in any other way aborts the exchange,
    /// without waiting for other ranks.
    ///
    /// # Errors
    /// If queued work failed.
    pub fn shutdown(&self) -> Result<()> {
        self.synchronize()?;
        if let Some(transport) = self.transport() {
            transport.shutdown();
        }
        Ok(())
    }

    /// Replaces bytes by the bytes of rank 0, in stream order. Does nothing in a run with one rank. Returns
    /// false if the data has to go through the host.
    ///
    /// # Errors
    /// If a rank is lost, or NCCL reports an error.
    pub fn broadcast_from_rank_0(&self, address: DevicePtr, bytes: usize) -> Result<bool> {
        self.transport().map_or(Ok(true), |transport| transport.broadcast(address, bytes, self.model_lane()))
    }

    /// Returns the queue of collectives that overlap with the model's queue, ordered after the work queued
    /// there so far; `None` in a run with one rank.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn fork(&self) -> Result<Option<CollectiveQueue<'_>>> {
        let Some(collectives) = self.collectives() else { return Ok(None) };
        collectives.fork(self.stream())?;
        Ok(Some(CollectiveQueue::new(self.properties(), self.kernels(), collectives)))
    }

    /// Makes later work on the model's queue wait for a recorded event.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.stream().wait(event)
    }

    /// Records an event after the work queued so far on the model's queue or on the collectives' queue, to
    /// time that work. Later work there does not wait for the event. With `inside_graph`, during a capture,
    /// every launch of the graph records it. Does nothing in a run with one rank.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(crate) fn record_beside(&self, lane: Lane, event: &Event, inside_graph: bool) -> Result<()> {
        let Some(collectives) = self.collectives() else { return Ok(()) };
        let of = match lane {
            Lane::Model => self.model_lane(),
            Lane::Collectives => collectives.lane(),
        };
        collectives.record(of, event, inside_graph)
    }

    /// Makes later work on the model's queue wait for the events recorded beside one of the two queues. A
    /// graph that has such events must end with this.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(crate) fn join_events(&self, lane: Lane) -> Result<()> {
        self.collectives().map_or(Ok(()), |collectives| collectives.join_events(lane, self.stream()))
    }
}
