//! The transport of a GPU, and the stream on which collectives overlap with the model's stream.
//!
//! The two streams are ordered by events, which a captured graph records too: collectives start after the
//! work that was in the model's stream when they were issued ([`Collectives::fork`]), and the executor makes
//! the model's stream wait for those whose memory it touches.

use super::context::Context;
use super::driver::Event;
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
}

impl Collectives {
    /// Creates the stream of collectives. It has priority over the model's: other ranks wait for collectives.
    pub(super) fn new(context: &Arc<Context>, transport: Arc<dyn Transport>) -> Result<Self> {
        let stream = Stream::with_highest_priority(context)?;
        Ok(Self { transport, stream, forked: Event::new()? })
    }

    pub(super) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    fn lane(&self) -> On<'_> {
        On { stream: &self.stream, lane: Lane::Collectives }
    }

    /// Makes the stream of collectives wait for what the model's stream holds.
    pub(super) fn fork(&self, model: &Stream) -> Result<()> {
        model.record(&self.forked, false)?;
        self.stream.wait(&self.forked)
    }

    /// Ends the exchange. If it does not release the GPU in time, returns false and leaks the stream, which
    /// is still in use.
    pub(super) fn close(self) -> bool {
        let ended = self.transport.close();
        if !ended {
            std::mem::forget(self.stream);
        }
        ended
    }
}

/// The queue of collectives that overlap with the model's queue.
///
/// It accepts nothing else: kernels and products would share the workspace of products, and memory whose
/// lifetimes are planned for one stream.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveQueue<'a> {
    properties: &'a Properties,
    collectives: &'a Collectives,
}

impl<'a> CollectiveQueue<'a> {
    pub(super) fn new(properties: &'a Properties, collectives: &'a Collectives) -> Self {
        Self { properties, collectives }
    }

    /// Records an event. With `inside_graph`, while a graph is captured, every launch of the graph records
    /// it.
    ///
    /// # Errors
    /// When the driver reports an error.
    pub fn record(&self, event: &Event, inside_graph: bool) -> Result<()> {
        self.collectives.stream.record(event, inside_graph)
    }
}

fn refused(what: &str) -> Result<()> {
    Err(Error::failed(format!("{what} was queued on the stream of collectives, which accepts nothing else")))
}

impl Queue for CollectiveQueue<'_> {
    fn properties(&self) -> &Properties {
        self.properties
    }

    fn rank(&self) -> usize {
        self.collectives.transport.rank()
    }

    fn launch(&self, kernel: Kernel, _grid: Grid, _args: &[Arg]) -> Result<()> {
        refused(kernel.entry)
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

    fn gather_from_owners(&self, parts: &[OwnedCopy]) -> Result<()> {
        self.collectives.transport.gather_from_owners(parts, self.collectives.lane())
    }
}
