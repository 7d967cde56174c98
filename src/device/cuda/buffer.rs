//! Memory of a GPU: asked from the driver, counted and capped.

use super::driver::check;
use super::gpu::{Gpu, lock};
use crate::device::gpu::{DevicePtr, Queue};
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::sync::Arc;

/// What memory was asked from the driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    /// Bytes held now.
    pub held: usize,
    /// The most bytes held at once.
    pub most: usize,
    /// How often memory was asked for.
    pub allocations: usize,
    /// Bytes that may be held; `None`: all there is.
    pub limit: Option<usize>,
}

impl Gpu {
    /// Allocates memory; its contents are whatever was there.
    ///
    /// # Errors
    /// [`Kind::DoesNotFit`](crate::error::Kind::DoesNotFit) when the driver or the limit refuses.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer> {
        let mut ledger = lock(&self.ledger);
        if let Some(limit) = ledger.limit.filter(|&limit| ledger.held.saturating_add(bytes) > limit) {
            return Err(Error::does_not_fit(format!(
                "{bytes} bytes more than the {} held would exceed engine.memory_limit_gib ({limit} bytes)",
                ledger.held
            )));
        }
        self.make_current()?;
        let address = allocate(bytes)
            .map_err(|e| e.context(format!("beside the {} bytes held on the GPU", ledger.held)))?;
        ledger.held += bytes;
        ledger.most = ledger.most.max(ledger.held);
        ledger.allocations += 1;
        Ok(DeviceBuffer { gpu: Arc::clone(self), address, bytes })
    }
}

/// Memory of a GPU. Freed when dropped, which waits for the GPU.
#[derive(Debug)]
pub struct DeviceBuffer {
    gpu: Arc<Gpu>,
    address: DevicePtr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Its first byte.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Sets bytes, in the order of the stream.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn fill(&self, offset: usize, byte: u8, bytes: usize) -> Result<()> {
        assert!(offset + bytes <= self.bytes);
        self.gpu.fill(self.address + offset as u64, byte, bytes)
    }

    /// Reads bytes after all work put in so far.
    ///
    /// # Errors
    /// When the work failed.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        assert!(offset + to.len() <= self.bytes);
        if to.is_empty() {
            return Ok(());
        }
        self.gpu.make_current()?;
        self.gpu.synchronize()?;
        // SAFETY: the range is inside the buffer, and the slice takes as many bytes.
        let status =
            unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), self.address + offset as u64, to.len()) };
        check(status, "read memory of the GPU")
    }

    /// Writes bytes after all work put in so far.
    ///
    /// # Errors
    /// When the work failed.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        assert!(offset + from.len() <= self.bytes);
        if from.is_empty() {
            return Ok(());
        }
        self.gpu.make_current()?;
        self.gpu.synchronize()?;
        // SAFETY: the range is inside the buffer, and the slice has as many bytes.
        let status =
            unsafe { sys::cuMemcpyHtoD_v2(self.address + offset as u64, from.as_ptr().cast(), from.len()) };
        check(status, "write memory of the GPU")
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `allocate`; the driver waits for work on it.
            unsafe {
                sys::cuCtxSetCurrent(self.gpu.context);
                sys::cuMemFree_v2(self.address);
            }
        }
        lock(&self.gpu.ledger).held -= self.bytes;
    }
}

/// Asks the driver for memory in the current context.
pub(super) fn allocate(bytes: usize) -> Result<DevicePtr> {
    let mut address = 0;
    if bytes > 0 {
        // SAFETY: the address of a pointer to be filled in.
        let status = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        check(status, &format!("allocate {bytes} bytes"))?;
    }
    Ok(address)
}

/// Free bytes and all bytes of the card whose context is current.
pub(super) fn memory_info() -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: addresses of integers; the context is current.
    check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) }, "ask for free memory")?;
    Ok((free, total))
}
