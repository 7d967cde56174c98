//! Multiprocessors that a kernel occupies and does nothing with, to measure what others lose without them.

use super::context::Context;
use super::driver::Pinned;
use super::kernels::Kernels;
use super::stream::Stream;
use crate::device::gpu::{DevicePtr, Grid, Kernel, Properties};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Maximum time until all blocks of the kernel run.
const START: Duration = Duration::from_secs(2);

/// Returns the kernel that holds multiprocessors.
pub fn hold_kernel() -> Kernel {
    Kernel::new("hold", "hold")
}

/// Multiprocessors that are held until this is dropped.
#[derive(Debug)]
pub struct HeldMultiprocessors {
    stream: Stream,
    /// The number of blocks that run, and the flag that ends them.
    words: Pinned,
}

impl HeldMultiprocessors {
    /// Occupies multiprocessors, one by each block of a kernel that takes all of its shared memory. Nothing
    /// else may run on the GPU meanwhile but what is measured, and no memory may be freed, which would wait
    /// for the kernel. The context is current.
    ///
    /// # Errors
    /// If the GPU has not more multiprocessors than that, or they are not held within two seconds.
    pub(super) fn new(
        context: &Arc<Context>,
        kernels: &Kernels,
        properties: &Properties,
        count: usize,
    ) -> Result<Self> {
        let all = properties.sm_count;
        if count >= all {
            return Err(Error::usage(format!(
                "{count} multiprocessors cannot be held on a GPU of {all}: hold fewer"
            )));
        }
        let mut words = Pinned::new(2 * size_of::<u32>())?;
        words.bytes_mut().fill(0);
        let held = Self { stream: Stream::new(context)?, words };
        let grid = Grid::new(count, 1).shared(properties.shared_per_block);
        let started = held.words.address() as DevicePtr;
        let args = [started.into(), (started + size_of::<u32>() as DevicePtr).into()];
        kernels.launch(&held.stream, hold_kernel(), grid, &args)?;
        let begun = Instant::now();
        while (held.word(0).load(Ordering::Acquire) as usize) < count {
            if begun.elapsed() > START {
                return Err(Error::failed(format!("{count} multiprocessors could not be held")));
            }
            std::hint::spin_loop();
        }
        Ok(held)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        let words: *const u32 = self.words.address().cast_const().cast();
        // SAFETY: two aligned words that live as long as `self`; host and GPU access them atomically.
        unsafe { &*words.add(at).cast::<AtomicU32>() }
    }
}

impl Drop for HeldMultiprocessors {
    fn drop(&mut self) {
        self.word(1).store(1, Ordering::Release);
        // The kernel reads the flag until it ends. An error of the GPU is reported by its next use.
        let _ = self.stream.synchronize();
    }
}
