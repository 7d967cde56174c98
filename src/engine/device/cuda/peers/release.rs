//! Ends waits for ranks that are gone.

use crate::device::cuda::context::Context;
use crate::device::cuda::driver::check;
use crate::device::cuda::stream::Stream;
use crate::device::gpu::DevicePtr;
use crate::lock::lock;
use cudarc::driver::sys;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two releases, which are repeated because other ranks may still set their flags to the number
/// of a call.
const PAUSE: Duration = Duration::from_micros(200);

/// Sets all flags in a rank's own memory repeatedly, from outside its streams, so that queued work runs to
/// its end. The results are meaningless.
#[derive(Debug)]
pub(super) struct Releaser {
    work: Arc<Work>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Work {
    context: Arc<Context>,
    stream: Stream,
    /// Address and number of the flags. Kernels wait until a flag has at least a certain value.
    flags: [(DevicePtr, usize); 2],
    ended: AtomicBool,
}

impl Releaser {
    /// Creates a releaser for flags, given by address and number. It sets them on its own stream.
    pub(super) fn new(context: Arc<Context>, stream: Stream, flags: [(DevicePtr, usize); 2]) -> Self {
        let work = Work { context, stream, flags, ended: AtomicBool::new(false) };
        Self { work: Arc::new(work), thread: Mutex::default() }
    }

    /// Starts releasing; does nothing if it has already started.
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
        // If no thread can be started, the launcher ends the process.
        *thread = std::thread::Builder::new().name("xrun-release".to_owned()).spawn(body).ok();
    }

    /// Waits until all work queued on the GPU has ended, then stops releasing. Flags may be freed afterwards.
    pub(super) fn drain(&self) {
        if self.work.context.make_current().is_ok() {
            // SAFETY: the context is current. Failures of queued work are reported elsewhere.
            unsafe { sys::cuCtxSynchronize() };
        }
        self.end();
    }

    /// Stops releasing for good: it cannot start again.
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
            // SAFETY: the flags are in memory that is freed only after `Releaser::drain` or `Releaser::end`.
            let status = unsafe { sys::cuMemsetD32Async(address, u32::MAX, count, self.stream.raw) };
            check(status, "release a waiting rank")?;
        }
        self.stream.synchronize()
    }
}

impl Drop for Releaser {
    fn drop(&mut self) {
        self.end();
    }
}
