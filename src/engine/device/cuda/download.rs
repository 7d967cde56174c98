//! Transfers to the host, concurrent with a GPU's other work.

use super::context::Context;
use super::driver::{Event, Pinned};
use super::stream::Stream;
use crate::device::gpu::DevicePtr;
use crate::error::Result;
use std::sync::Arc;

/// Size of the pinned memory of a transfer, in bytes. At 25 GB/s or more a piece takes well below a
/// millisecond, and queuing its two operations costs a hundredth of that.
const PIECE_BYTES: usize = 8 << 20;

/// Copies from a GPU to the host on its own stream, in pieces that pass through pinned memory.
#[derive(Debug)]
pub struct Downloader {
    stream: Stream,
    pinned: Pinned,
}

impl Downloader {
    /// Creates the stream and its memory. The context must be current.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Self { stream: Stream::new(context)?, pinned: Pinned::new(PIECE_BYTES)? })
    }

    /// Copies bytes from an address once a recorded event is reached, and waits for them. Any thread may call
    /// it.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn download(&mut self, after: &Event, from: DevicePtr, to: &mut [u8]) -> Result<()> {
        self.stream.context.make_current()?;
        self.stream.wait(after)?;
        for (piece, to) in to.chunks_mut(PIECE_BYTES).enumerate() {
            self.stream.download(&mut self.pinned, from + (piece * PIECE_BYTES) as u64, to.len())?;
            self.stream.synchronize()?;
            to.copy_from_slice(&self.pinned.bytes()[..to.len()]);
        }
        Ok(())
    }
}
