//! Transfers to the host beside the other work of a GPU.

use super::context::Context;
use super::driver::{Event, Pinned};
use super::stream::Stream;
use crate::device::gpu::DevicePtr;
use crate::error::Result;
use std::sync::Arc;

/// Pinned memory of a transfer: at 25 GB/s and more a piece takes well below a millisecond, and the two
/// queues of work of a piece cost a hundredth of that.
const PIECE_BYTES: usize = 8 << 20;

/// Copies from a GPU to the host on a stream of its own, piece by piece through pinned memory.
#[derive(Debug)]
pub struct Downloader {
    stream: Stream,
    pinned: Pinned,
}

impl Downloader {
    /// Creates the stream and its memory; the context is current.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { stream: Stream::new(context)?, pinned: Pinned::new(PIECE_BYTES)? })
    }

    /// Copies bytes from an address once a recorded event is reached, and waits until they are there. Any
    /// thread may call it.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn download(&mut self, after: &Event, from: DevicePtr, to: &mut [u8]) -> Result<()> {
        self.stream.make_current()?;
        self.stream.wait(after)?;
        for (piece, to) in to.chunks_mut(PIECE_BYTES).enumerate() {
            self.stream.download(&mut self.pinned, from + (piece * PIECE_BYTES) as u64, to.len())?;
            self.stream.synchronize()?;
            to.copy_from_slice(&self.pinned.bytes()[..to.len()]);
        }
        Ok(())
    }
}
