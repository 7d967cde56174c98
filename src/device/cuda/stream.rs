//! The stream that the model runs in: what is put into it, and waiting for it.

use super::driver::{Event, Pinned, check};
use super::gpu::Gpu;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, Product, Properties, Queue};
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::null_mut;

/// The largest count that kernels, which count in 31 bits, are given: a last block may count a little beyond it.
const MAX_SIZE: usize = (1 << 31) - (1 << 20);

impl Gpu {
    /// Pins host memory for copies.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn pin(&self, bytes: usize) -> Result<Pinned> {
        self.make_current()?;
        Pinned::new(bytes)
    }

    /// A new event, not yet recorded.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn event(&self) -> Result<Event> {
        self.make_current()?;
        Event::new()
    }

    /// Puts an event into the stream. Inside a graph it is recorded at every launch of it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn record(&self, event: &Event, inside_graph: bool) -> Result<()> {
        record(self.stream, event, inside_graph)
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// When work failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream exists.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, "finish work on the GPU")
    }

    /// Copies from pinned memory when the stream comes to it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn upload(&self, to: DevicePtr, from: &Pinned, bytes: usize) -> Result<()> {
        assert!(bytes <= from.bytes().len());
        // SAFETY: the pinned memory holds that many bytes and, by the engine's ring, outlives the copy.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.address(), bytes, self.stream) };
        check(status, "copy to the GPU")
    }

    /// Copies into pinned memory when the stream comes to it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn download(&self, to: &mut Pinned, from: DevicePtr, bytes: usize) -> Result<()> {
        assert!(bytes <= to.bytes().len());
        // SAFETY: as `upload`.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to.address(), from, bytes, self.stream) };
        check(status, "copy from the GPU")
    }

    /// Bytes of memory that is alive, after all work put in so far.
    ///
    /// # Errors
    /// When the work failed.
    pub fn read(&self, from: DevicePtr, bytes: usize) -> Result<Vec<u8>> {
        let mut copy = vec![0u8; bytes];
        if bytes > 0 {
            self.synchronize()?;
            // SAFETY: the executor asks for outputs of a node, which are alive, and the buffer takes as many bytes.
            let status = unsafe { sys::cuMemcpyDtoH_v2(copy.as_mut_ptr().cast(), from, bytes) };
            check(status, "read memory of the GPU")?;
        }
        Ok(copy)
    }
}

impl Queue for Gpu {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()> {
        let entry = kernel.entry;
        if let Some(size) = args.iter().find_map(|arg| match arg {
            Arg::Size(size) => Some(*size).filter(|&size| size > MAX_SIZE),
            _ => None,
        }) {
            return Err(Error::failed(format!(
                "kernel {entry} counts with 31 bits, and a tensor of this plan has a size of {size}; \
                 make training.local_batch_size smaller"
            )));
        }
        let function = self.function(kernel, grid.shared)?;
        // The driver reads as many arguments as the kernel has parameters, and as many bytes of each.
        if !args.iter().map(Arg::size).eq(function.parameters.iter().copied()) {
            return Err(Error::failed(format!(
                "kernel {entry} takes {} parameters of {:?} bytes, and is launched with {args:?}",
                function.parameters.len(),
                function.parameters
            )));
        }
        let mut values: Vec<u64> = args.iter().map(|arg| arg.bits()).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|v| std::ptr::from_mut(v).cast()).collect();
        let [x, y, z] = grid.blocks;
        // SAFETY: the arguments are in the order and of the types of the kernel, which its one launch site holds; the
        // addresses are of tensors that the executor keeps alive for the node.
        let status = unsafe {
            sys::cuLaunchKernel(
                function.handle,
                x,
                y,
                z,
                grid.threads,
                1,
                1,
                grid.shared,
                self.stream,
                pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        check(status, &format!("launch {entry} with {grid:?}"))
    }

    fn product(&self, product: &Product) -> Result<()> {
        self.products.run(self, product)
    }

    fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's range is inside memory that it holds.
        check(unsafe { sys::cuMemsetD8Async(address, byte, bytes, self.stream) }, "fill memory")
    }

    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's ranges are inside memory that it holds, and do not overlap.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) }, "copy memory")
    }

    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)]) -> Result<()> {
        self.link.get().map_or(Ok(()), |link| link.nccl().all_reduce_sum(tensors, self.stream))
    }

    fn all_gather(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        match self.link.get() {
            Some(link) => link.nccl().all_gather(to, from, bytes, self.stream),
            None => self.copy(to, from, bytes),
        }
    }
}

/// Puts an event into a stream. Inside a graph it is recorded at every launch of it.
pub(super) fn record(stream: sys::CUstream, event: &Event, inside_graph: bool) -> Result<()> {
    let flag = if inside_graph {
        sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32
    } else {
        sys::CUevent_record_flags_enum::CU_EVENT_RECORD_DEFAULT as u32
    };
    // SAFETY: event and stream exist.
    check(unsafe { sys::cuEventRecordWithFlags(event.0, stream, flag) }, "record an event")
}
