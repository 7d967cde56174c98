//! A GPU's connection to the GPUs of other ranks.

use super::collectives::Collectives;
use super::driver::Event;
use super::gpu::Gpu;
use super::nccl::{Nccl, UniqueId};
use super::transport::{Lane, On, Transport};
use crate::device::gpu::{Arg, Collective, DevicePtr, Grid, Kernel, MAX_RANKS, Product, Properties, Queue};
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
        self.connect(Arc::new(nccl))
    }

    /// Makes a transport the exchange with other ranks.
    pub(super) fn connect(&self, transport: Arc<dyn Transport>) -> Result<()> {
        let collectives = Collectives::new(&self.context, transport)?;
        let joined = |_| Error::failed("this GPU has already joined the other ranks");
        self.collectives.set(collectives).map_err(joined)
    }

    /// Returns the exchange with other ranks; `None` in a run with one rank, and before ranks are connected.
    pub(crate) fn transport(&self) -> Option<&Arc<dyn Transport>> {
        self.collectives.get().map(|collectives| &collectives.transport)
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
        On { stream: &self.stream, lane: Lane::Model }
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
        let Some(collectives) = self.collectives.get() else { return Ok(None) };
        collectives.fork(&self.stream)?;
        Ok(Some(CollectiveQueue { gpu: self, collectives }))
    }

    /// Records an event after the work queued so far on the model's queue or on the collectives' queue, to
    /// time that work. Later work there does not wait for the event. With `inside_graph`, during a capture,
    /// every launch of the graph records it. Does nothing in a run with one rank.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(crate) fn record_beside(&self, lane: Lane, event: &Event, inside_graph: bool) -> Result<()> {
        let Some(collectives) = self.collectives.get() else { return Ok(()) };
        let of = match lane {
            Lane::Model => &self.stream,
            Lane::Collectives => &collectives.stream,
        };
        collectives.beside[lane as usize].record(of, event, inside_graph)
    }

    /// Makes later work on the model's queue wait for the events recorded beside one of the two queues. A
    /// graph that has such events must end with this.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(crate) fn join_events(&self, lane: Lane) -> Result<()> {
        let join = |collectives: &Collectives| collectives.beside[lane as usize].join(&self.stream);
        self.collectives.get().map_or(Ok(()), join)
    }
}

/// The queue of collectives that overlap with the model's queue.
///
/// It accepts kernels and fills, from nodes that touch only the state. It accepts no products, because they
/// would share the workspace with the model's products.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveQueue<'a> {
    gpu: &'a Gpu,
    collectives: &'a Collectives,
}

impl CollectiveQueue<'_> {
    /// Records an event in queue order.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.collectives.stream.record(event, false)
    }
}

fn refused(what: &str) -> Result<()> {
    Err(Error::failed(format!(
        "{what} was queued on the stream of collectives, which accepts collectives, kernels and fills"
    )))
}

impl Queue for CollectiveQueue<'_> {
    fn properties(&self) -> &Properties {
        self.gpu.properties()
    }

    fn rank(&self) -> usize {
        self.gpu.rank()
    }

    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.gpu.kernels.launch(&self.collectives.stream, (kernel, grid, args))
    }

    fn product(&self, _product: &Product) -> Result<()> {
        refused("a product")
    }

    fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        self.collectives.stream.fill(address, byte, bytes)
    }

    fn copy(&self, _to: DevicePtr, _from: DevicePtr, _bytes: usize) -> Result<()> {
        refused("a copy")
    }

    fn collective(&self, collective: Collective<'_>) -> Result<()> {
        let on = On { stream: &self.collectives.stream, lane: Lane::Collectives };
        self.collectives.transport.collective(collective, on)
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        self.gpu.shared(to, bytes)
    }
}
