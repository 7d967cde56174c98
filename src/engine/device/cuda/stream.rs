//! A stream: work that runs in the order in which it was queued.

use super::context::Context;
use super::driver::{Event, Pinned, Value, check, checked};
use crate::device::gpu::{DevicePtr, Grid};
use crate::error::Result;
use cudarc::driver::result::stream::{self, StreamKind};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// A stream of a GPU, destroyed when dropped. Callers must have made its context current.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) context: Arc<Context>,
    /// The driver's handle.
    pub(super) raw: sys::CUstream,
}

// SAFETY: the driver's handles may be used from every thread that has made the context current.
unsafe impl Send for Stream {}
// SAFETY: see `Send`.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream. It does not wait for work that other code puts on the default stream.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        let raw = checked(stream::create(StreamKind::NonBlocking), "create a stream")?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Creates a stream whose blocks are scheduled before the blocks of other streams.
    pub(super) fn with_highest_priority(context: &Arc<Context>) -> Result<Self> {
        let (_, highest) = checked(stream::get_priority_range(), "query the priorities of streams")?;
        let raw = stream::create_with_priority(StreamKind::NonBlocking, highest);
        let raw = checked(raw, "create a stream for collectives")?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Waits until all work queued so far is done.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream exists.
        check(unsafe { sys::cuStreamSynchronize(self.raw) }, "finish work on the GPU")
    }

    /// Records an event. With `inside_graph`, during a capture, every launch of the graph records it.
    pub(crate) fn record(&self, event: &Event, inside_graph: bool) -> Result<()> {
        let flag = if inside_graph {
            sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32
        } else {
            sys::CUevent_record_flags_enum::CU_EVENT_RECORD_DEFAULT as u32
        };
        // SAFETY: event and stream exist.
        check(unsafe { sys::cuEventRecordWithFlags(event.0, self.raw, flag) }, "record an event")
    }

    /// Makes later work wait for a recorded event.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: event and stream exist, and the event has been recorded.
        check(unsafe { sys::cuStreamWaitEvent(self.raw, event.0, 0) }, "make a stream wait for another")
    }

    /// Returns the time between the work queued so far and the end of what `work` queues, in milliseconds.
    /// Waits for that end.
    pub(crate) fn milliseconds(&self, work: impl FnOnce() -> Result<()>) -> Result<f32> {
        self.context.make_current()?;
        let (start, end) = (Event::new()?, Event::new()?);
        self.record(&start, false)?;
        work()?;
        self.record(&end, false)?;
        end.wait()?;
        end.since(&start)
    }

    /// Sets `bytes` bytes to `byte`.
    pub(super) fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's range is inside memory that it holds.
        check(unsafe { sys::cuMemsetD8Async(address, byte, bytes, self.raw) }, "fill memory")
    }

    /// Copies bytes between ranges of the GPU's memory that do not overlap.
    pub(super) fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's ranges are inside memory that it holds, and do not overlap.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) }, "copy memory")
    }

    /// Copies from pinned host memory, which the caller must not change before the copy is done.
    pub(crate) fn upload(&self, to: DevicePtr, from: &Pinned, bytes: usize) -> Result<()> {
        assert!(bytes <= from.bytes().len());
        // SAFETY: the pinned memory holds that many bytes and outlives the copy, because the engine reuses it
        // only after its event; the range at the GPU's address is inside memory that the caller holds.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.address(), bytes, self.raw) };
        check(status, "copy to the GPU")
    }

    /// Copies into pinned host memory, which the caller must keep and not read before the copy is done.
    pub(crate) fn download(&self, to: &mut Pinned, from: DevicePtr, bytes: usize) -> Result<()> {
        assert!(bytes <= to.bytes().len());
        // SAFETY: the pinned memory has room for that many bytes, and callers keep it until the copy is done:
        // the engine waits for its event, the downloader for each piece. The range is inside memory that they
        // hold.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to.address(), from, bytes, self.raw) };
        check(status, "copy from the GPU")
    }

    /// Waits for all work queued so far, then reads bytes of allocated memory.
    pub(super) fn read(&self, from: DevicePtr, to: &mut [u8]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        self.synchronize()?;
        // SAFETY: the caller's range is inside memory that it holds, and the slice has room for as many
        // bytes.
        let status = unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()) };
        check(status, "read memory of the GPU")
    }

    /// Writes bytes of allocated memory after all work queued so far, and waits for the write.
    ///
    /// `cuMemcpyHtoD` is not enough: from pageable memory it may return before the bytes have arrived, and it
    /// copies on the default stream, for which this stream does not wait.
    pub(super) fn write(&self, to: DevicePtr, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's range is inside memory that it holds, and the slice has as many bytes. The
        // slice has been read when the wait below returns.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.raw) };
        check(status, "write memory of the GPU")?;
        self.synchronize()
    }

    /// Launches a named function of a loaded module with `values` as its arguments. With `overlaps` it may
    /// begin before the previous kernel has ended.
    pub(super) fn launch(
        &self,
        (entry, function): (&str, sys::CUfunction),
        grid: Grid,
        values: &mut [Value],
        overlaps: bool,
    ) -> Result<()> {
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let [x, y, z] = grid.blocks;
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue_union { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.raw,
            attrs: &raw mut overlap,
            numAttrs: u32::from(overlaps),
        };
        // SAFETY: the arguments have the order and types of the kernel's parameters, as its single launch
        // site ensures; the addresses belong to tensors that the executor keeps alive for the node. A kernel
        // that overlaps waits for the previous one before it reads what that writes.
        let status =
            unsafe { sys::cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), null_mut()) };
        check(status, &format!("launch {entry} with {grid:?}"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // If the context cannot be made current, it has taken its streams with it.
        if self.context.make_current().is_ok() {
            // SAFETY: created in `new` or `with_highest_priority`, and held by nobody else.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}
