//! The end of waits for ranks that are gone.

use crate::device::cuda::context::Context;
use crate::device::cuda::driver::check;
use crate::device::cuda::stream::Stream;
use crate::device::gpu::DevicePtr;
use crate::device::lock::lock;
use cudarc::driver::sys;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two releases: other ranks may still set their flags to the number of a call.
const PAUSE: Duration = Duration::from_micros(200);

/// Sets all flags of a rank's own memory from outside of its streams, again and again: what is queued runs to
/// its end, with results that mean nothing.
#[derive(Debug)]
pub(super) struct Releaser {
    work: Arc<Work>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Work {
    context: Arc<Context>,
    stream: Stream,
    /// Address and number of flags that are waited for to be at least some number.
    flags: [(DevicePtr, usize); 2],
    ended: AtomicBool,
}

impl Releaser {
    /// Creates a releaser of flags, given by address and number. It sets them on a stream of its own.
    pub(super) fn new(context: Arc<Context>, stream: Stream, flags: [(DevicePtr, usize); 2]) -> Self {
        let work = Work { context, stream, flags, ended: AtomicBool::new(false) };
        Self { work: Arc::new(work), thread: Mutex::default() }
    }

    /// Begins to release. Does nothing where it has begun.
    pub(super) fn start(&self) {
        let mut thread = lock(&self.thread);
        if thread.is_some() || self.work.ended.load(Ordering::Acquire) {
            return;
        }
        let work = Arc::clone(&self.work);
        let body = move || {
            while !work.ended.load(Ordering::Acquire) && work.release().is_ok() {
                std::thread::sleep(PAUSE);
            }
        };
        // Without a thread the launcher ends the process.
        *thread = std::thread::Builder::new().name("xrun-release".to_owned()).spawn(body).ok();
    }

    /// Waits until all work queued on the GPU has come to its end, and ends the releases. Flags may be freed
    /// after it.
    pub(super) fn drain(&self) {
        if self.work.context.make_current().is_ok() {
            // SAFETY: the context is current. Failures of queued work were or will be reported by others.
            unsafe { sys::cuCtxSynchronize() };
        }
        self.end();
    }

    /// Ends the releases, for good: none begins after it.
    pub(super) fn end(&self) {
        self.work.ended.store(true, Ordering::Release);
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn release(&self) -> crate::error::Result<()> {
        self.context.make_current()?;
        for (address, count) in self.flags {
            // SAFETY: the flags are in memory that is freed after `Releaser::drain` or `Releaser::end`.
            let status = unsafe { sys::cuMemsetD32Async(address, u32::MAX, count, self.stream.raw()) };
            check(status, "release a rank that waits")?;
        }
        self.stream.synchronize()
    }
}

impl Drop for Releaser {
    fn drop(&mut self) {
        self.end();
    }
}
