//! How the GPUs of different ranks exchange data, behind one trait.

use super::stream::Stream;
use crate::device::gpu::{Collective, DevicePtr, MAX_RANKS};
use crate::error::{Error, Result};

/// The stream that a call is queued on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct On<'a> {
    /// The stream.
    pub stream: &'a Stream,
    /// Which of the GPU's two streams it is.
    pub lane: Lane,
}

/// The two streams of a GPU. Calls on one stream run in order, and concurrently with calls on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The model's stream.
    Model,
    /// The stream for collectives that overlap with the model.
    Collectives,
}

/// The exchange of data between the GPUs of ranks. Every rank queues the same calls in the same order.
///
/// Calls are asynchronous. They fail if a rank is lost, or if the library or the driver reports an error.
pub(crate) trait Transport: Send + Sync + std::fmt::Debug {
    /// Returns this rank, counted from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn world_size(&self) -> usize;

    /// Queues a collective.
    fn collective(&self, collective: Collective<'_>, on: On<'_>) -> Result<()>;

    /// Returns the addresses of what ranks share at `to`; see
    /// [`Queue::shared`](crate::device::gpu::Queue::shared).
    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]>;

    /// Replaces bytes by the bytes of rank 0. Returns false if the data has to go through the host.
    fn broadcast(&self, address: DevicePtr, bytes: usize, on: On<'_>) -> Result<bool>;

    /// Ends everything this rank's GPU is waiting for, and makes all later calls fail with `error`. Any
    /// thread may call it; it returns immediately.
    fn abort(&self, error: &Error);

    /// Aborts unless all ranks have shut down. Call it before memory is freed: freeing waits for the GPU,
    /// which may be waiting for a rank that is gone.
    fn leave(&self);

    /// Records that all ranks have agreed that they are done, so that no rank waits for another anymore.
    fn shutdown(&self);

    /// Releases its resources on the GPU. Returns false if that exceeds a time limit: then the GPU is still
    /// in use, and its context must stay.
    fn close(&self) -> bool;
}
