//! The transport of a GPU, and the stream on which collectives overlap with the model's stream.
//!
//! Events order the two streams, and a captured graph records them too. Collectives start after the work that
//! was in the model's stream when they were issued ([`Collectives::fork`]). The executor makes the model's
//! stream wait for collectives whose memory it touches.

use super::context::Context;
use super::driver::Event;
use super::stream::Stream;
use super::transport::Transport;
use crate::error::Result;
use std::sync::Arc;

/// The exchange of a GPU with other ranks, and the stream of its collectives.
#[derive(Debug)]
pub(super) struct Collectives {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) stream: Stream,
    forked: Event,
    /// Event streams beside the model's stream and beside the collectives' stream, by
    /// [`Lane`](super::transport::Lane).
    pub(super) beside: [EventStream; 2],
}

/// A stream that records events beside another one. If a captured graph has an event between two kernels, the
/// second begins 3 µs later (H100); if the event is on its own branch, 0.1 µs later.
#[derive(Debug)]
pub(super) struct EventStream {
    stream: Stream,
    forked: Event,
}

impl EventStream {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { stream: Stream::new(context)?, forked: Event::new()? })
    }

    /// Records an event after the work queued on `of`, without delaying later work there. With
    /// `inside_graph`, during a capture, every launch of the graph records it.
    pub(super) fn record(&self, of: &Stream, event: &Event, inside_graph: bool) -> Result<()> {
        of.record(&self.forked, false)?;
        self.stream.wait(&self.forked)?;
        self.stream.record(event, inside_graph)
    }

    /// Makes the model's stream wait for the events recorded so far. A captured graph that has such events
    /// must end with this call; a graph without them must not.
    pub(super) fn join(&self, model: &Stream) -> Result<()> {
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

    /// Makes the stream of collectives wait for the work queued on the model's stream.
    pub(super) fn fork(&self, model: &Stream) -> Result<()> {
        model.record(&self.forked, false)?;
        self.stream.wait(&self.forked)
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
