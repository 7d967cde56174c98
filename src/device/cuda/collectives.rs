//! The communicator of a GPU, and the stream on which collectives overlap with the model's stream.
//!
//! The two streams are ordered by events, which a captured graph records too: collectives start after the
//! work that was in the model's stream when they were issued ([`Collectives::fork`]), and later work in the
//! model's stream starts after them ([`Collectives::rejoin`]).

use super::context::Context;
use super::driver::Event;
use super::nccl::Nccl;
use super::stream::Stream;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, Product, Properties, Queue};
use crate::error::{Error, Result};
use std::sync::Arc;

/// The communicator of a GPU with other ranks, and the stream of its collectives.
#[derive(Debug)]
pub(super) struct Collectives {
    nccl: Arc<Nccl>,
    stream: Stream,
    forked: Event,
    done: Event,
}

impl Collectives {
    /// Creates the stream of collectives. It has priority over the model's: other ranks wait for collectives.
    pub(super) fn new(context: &Arc<Context>, nccl: Nccl) -> Result<Self> {
        let stream = Stream::with_highest_priority(context)?;
        Ok(Self { nccl: Arc::new(nccl), stream, forked: Event::new()?, done: Event::new()? })
    }

    pub(super) fn nccl(&self) -> &Arc<Nccl> {
        &self.nccl
    }

    /// Makes the stream of collectives wait for what the model's stream holds.
    pub(super) fn fork(&self, model: &Stream) -> Result<()> {
        model.record(&self.forked, false)?;
        self.stream.wait(&self.forked)
    }

    /// Makes the model's stream wait for the collectives issued so far.
    pub(super) fn rejoin(&self, model: &Stream) -> Result<()> {
        self.stream.record(&self.done, false)?;
        model.wait(&self.done)
    }

    /// Ends the communicator. If NCCL does not release the GPU in time, returns false and leaks the stream,
    /// which NCCL still uses.
    pub(super) fn close(self) -> bool {
        let ended = self.nccl.close();
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
        self.collectives.nccl.all_reduce_sum(tensors, self.collectives.stream.raw())
    }

    fn all_gather(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        self.collectives.nccl.all_gather(to, from, bytes, self.collectives.stream.raw())
    }
}
