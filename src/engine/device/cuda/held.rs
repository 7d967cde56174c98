//! Multiprocessors occupied by an idle kernel, to measure how much slower other work is without them.

use super::context::Context;
use super::driver::Pinned;
use super::kernels::Kernels;
use super::stream::Stream;
use crate::device::gpu::{DevicePtr, Grid, Kernel, Properties};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait until all blocks of the kernel run.
const START: Duration = Duration::from_secs(2);

/// Returns the kernel that occupies multiprocessors.
pub fn hold_kernel() -> Kernel {
    Kernel::new("hold", "hold")
}

/// Multiprocessors that stay occupied until this is dropped.
#[derive(Debug)]
pub struct HeldMultiprocessors {
    stream: Stream,
    /// Two words: the number of running blocks, and the flag that ends them.
    words: Pinned,
}

impl HeldMultiprocessors {
    /// Occupies `count` multiprocessors, each with one block of a kernel that takes all of its shared memory.
    /// Until the result is dropped, only the measured work may run on the GPU, and no memory may be freed,
    /// because that would wait for the kernel. The context must be current.
    ///
    /// # Errors
    /// If the GPU does not have more than `count` multiprocessors, or they are not occupied within two
    /// seconds.
    pub(super) fn new(
        context: &Arc<Context>,
        kernels: &Kernels,
        properties: &Properties,
        count: usize,
    ) -> Result<Self> {
        let all = properties.sm_count;
        if count >= all {
            return Err(Error::usage(format!(
                "cannot hold {count} of the GPU's {all} multiprocessors: hold fewer"
            )));
        }
        let mut words = Pinned::new(2 * size_of::<u32>())?;
        words.bytes_mut().fill(0);
        let held = Self { stream: Stream::new(context)?, words };
        let grid = Grid::new(count, 1).shared(properties.shared_per_block);
        let started = held.words.address() as DevicePtr;
        let args = [started.into(), (started + size_of::<u32>() as DevicePtr).into()];
        kernels.launch(&held.stream, (hold_kernel(), grid, args))?;
        let begun = Instant::now();
        while (held.word(0).load(Ordering::Acquire) as usize) < count {
            if begun.elapsed() > START {
                return Err(Error::failed(format!(
                    "could not hold {count} multiprocessors within 2 seconds"
                )));
            }
            std::hint::spin_loop();
        }
        Ok(held)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        let words: *const u32 = self.words.address().cast_const().cast();
        // SAFETY: the two words are aligned and live as long as `self`; host and GPU access them atomically.
        unsafe { &*words.add(at).cast::<AtomicU32>() }
    }
}

impl Drop for HeldMultiprocessors {
    fn drop(&mut self) {
        self.word(1).store(1, Ordering::Release);
        // The kernel reads the flag until it ends. The next use of the GPU reports its errors.
        let _ = self.stream.synchronize();
    }
}
