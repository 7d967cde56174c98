//! The transport of a GPU, and the stream on which collectives overlap with the model's stream.
//!
//! Events order the two streams, and a captured graph records them too. Collectives start after the work that
//! was in the model's stream when they were issued ([`Collectives::fork`]). The executor makes the model's
//! stream wait for collectives whose memory it touches.

use super::context::Context;
use super::driver::Event;
use super::kernels::Kernels;
use super::stream::Stream;
use super::transport::{Lane, On, Transport};
use crate::device::gpu::{
    Arg, DevicePtr, Gathered, Grid, Kernel, MAX_RANKS, OwnedCopy, OwnedSum, Product, Properties, Queue,
};
use crate::error::{Error, Result};
use std::sync::Arc;

/// The exchange of a GPU with other ranks, and the stream of its collectives.
#[derive(Debug)]
pub(super) struct Collectives {
    transport: Arc<dyn Transport>,
    stream: Stream,
    forked: Event,
    /// Event streams beside the model's stream and beside the collectives' stream.
    beside: [EventStream; 2],
}

/// A stream that records events beside another one. If a captured graph has an event between two kernels, the
/// second begins 3 µs later (H100); if the event is on its own branch, 0.1 µs later.
#[derive(Debug)]
struct EventStream {
    stream: Stream,
    forked: Event,
}

impl EventStream {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { stream: Stream::new(context)?, forked: Event::new()? })
    }

    /// Records an event after the work queued on `of`.
    fn record(&self, of: &Stream, event: &Event, inside_graph: bool) -> Result<()> {
        of.record(&self.forked, false)?;
        self.stream.wait(&self.forked)?;
        self.stream.record(event, inside_graph)
    }

    /// Makes a stream wait for the events recorded so far.
    fn join(&self, model: &Stream) -> Result<()> {
        self.stream.record(&self.forked, false)?;
        model.wait(&self.forked)
    }
}

impl Collectives {
    /// Creates the stream of collectives. It has priority over the model's stream, because other ranks wait
    /// for collectives.
    pub(super) fn new(context: &Arc<Context>, transport: Arc<dyn Transport>) -> Result<Self> {
        let stream = Stream::with_highest_priority(context)?;
        let beside = [EventStream::new(context)?, EventStream::new(context)?];
        Ok(Self { transport, stream, forked: Event::new()?, beside })
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(super) fn lane(&self) -> On<'_> {
        On { stream: &self.stream, lane: Lane::Collectives }
    }

    /// Makes the stream of collectives wait for the work queued on the model's stream.
    pub(super) fn fork(&self, model: &Stream) -> Result<()> {
        model.record(&self.forked, false)?;
        self.stream.wait(&self.forked)
    }

    /// Records an event after the work queued on one of the two streams, without delaying later work there.
    /// With `inside_graph`, during a capture, every launch of the graph records it.
    pub(super) fn record(&self, of: On<'_>, event: &Event, inside_graph: bool) -> Result<()> {
        self.beside[of.lane as usize].record(of.stream, event, inside_graph)
    }

    /// Makes the model's stream wait for the events recorded beside one of the two streams. A captured graph
    /// that has such events must end with this call; a graph without them must not.
    pub(super) fn join_events(&self, lane: Lane, model: &Stream) -> Result<()> {
        self.beside[lane as usize].join(model)
    }

    /// Ends the exchange. If the exchange does not release the GPU in time, returns false and leaks the
    /// streams, which are still in use.
    pub(super) fn close(self) -> bool {
        let ended = self.transport.close();
        if !ended {
            std::mem::forget((self.stream, self.beside));
        }
        ended
    }
}

/// The queue of collectives that overlap with the model's queue.
///
/// It accepts kernels, from nodes that touch only the state. It accepts no products, because they would share
/// the workspace with the model's products.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveQueue<'a> {
    properties: &'a Properties,
    kernels: &'a Kernels,
    collectives: &'a Collectives,
}

impl<'a> CollectiveQueue<'a> {
    pub(super) fn new(
        properties: &'a Properties,
        kernels: &'a Kernels,
        collectives: &'a Collectives,
    ) -> Self {
        Self { properties, kernels, collectives }
    }

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
        "{what} was queued on the stream of collectives, which accepts collectives and kernels"
    )))
}

impl Queue for CollectiveQueue<'_> {
    fn properties(&self) -> &Properties {
        self.properties
    }

    fn rank(&self) -> usize {
        self.collectives.transport.rank()
    }

    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        self.kernels.launch(&self.collectives.stream, kernel, grid, args)
    }

    fn product(&self, _product: &Product) -> Result<()> {
        refused("a product")
    }

    fn fill(&self, _address: DevicePtr, _byte: u8, _bytes: usize) -> Result<()> {
        refused("a fill")
    }

    fn copy(&self, _to: DevicePtr, _from: DevicePtr, _bytes: usize) -> Result<()> {
        refused("a copy")
    }

    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)]) -> Result<()> {
        self.collectives.transport.all_reduce_sum(tensors, self.collectives.lane())
    }

    fn all_gather(&self, tensors: &[Gathered]) -> Result<()> {
        self.collectives.transport.all_gather(tensors, self.collectives.lane())
    }

    fn share(&self, tensor: Gathered) -> Result<()> {
        self.collectives.transport.share(tensor, self.collectives.lane())
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        self.collectives.transport.shared(to, bytes)
    }

    fn reduce_to_owners(&self, parts: &[OwnedSum]) -> Result<()> {
        self.collectives.transport.reduce_to_owners(parts, self.collectives.lane())
    }

    fn gather_from_owners(&self, parts: &[OwnedCopy], wait: bool) -> Result<()> {
        self.collectives.transport.gather_from_owners(parts, wait, self.collectives.lane())
    }
}
