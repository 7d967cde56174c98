//! GPU memory: allocated by the driver, counted and capped.

use super::driver::checked;
use super::mapping::Mapping;
use super::stream::Stream;
use crate::device::gpu::DevicePtr;
use crate::error::{Error, Result};
use crate::lock::lock;
use cudarc::driver::{result, sys};
use std::sync::{Arc, Mutex};

/// Counts of the memory allocated on a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    /// Bytes held now.
    pub held: usize,
    /// Largest number of bytes held at any time.
    pub peak: usize,
    /// Number of allocations so far.
    pub allocations: usize,
    /// Limit of the bytes held; `None` for no limit.
    pub limit: Option<usize>,
}

/// Allocates GPU memory and counts it.
#[derive(Debug)]
pub(super) struct Allocator {
    stream: Arc<Stream>,
    pub(super) ledger: Mutex<Ledger>,
}

impl Allocator {
    /// Creates an allocator whose buffers are filled, read and written in the order of a stream.
    pub(super) fn new(stream: Arc<Stream>) -> Arc<Self> {
        Arc::new(Self { stream, ledger: Mutex::default() })
    }

    /// Allocates memory; its contents are undefined.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if the driver or the limit does not
    /// allow it.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer> {
        self.counted(bytes, |bytes| allocate(bytes).map(|address| (address, None)))
    }

    /// Allocates memory like [`Allocator::allocate`]; other GPUs of the process can be given access to it.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if the driver or the limit does not
    /// allow it.
    pub(super) fn allocate_mapped(self: &Arc<Self>, device: i32, bytes: usize) -> Result<DeviceBuffer> {
        if bytes == 0 {
            return self.allocate(bytes);
        }
        self.counted(bytes, |bytes| {
            let mapping = Mapping::new(device, bytes)?;
            Ok((mapping.address, Some(mapping)))
        })
    }

    fn counted(
        self: &Arc<Self>,
        bytes: usize,
        allocate: impl FnOnce(usize) -> Result<(DevicePtr, Option<Mapping>)>,
    ) -> Result<DeviceBuffer> {
        let mut ledger = lock(&self.ledger);
        if let Some(limit) = ledger.limit.filter(|&limit| ledger.held.saturating_add(bytes) > limit) {
            return Err(Error::does_not_fit(format!(
                "{bytes} bytes on top of the {} held would exceed engine.memory_limit_gib ({limit} bytes)",
                ledger.held
            )));
        }
        self.stream.context.make_current()?;
        let (address, mapping) = allocate(bytes)
            .map_err(|e| e.context(format!("in addition to the {} bytes held on the GPU", ledger.held)))?;
        ledger.held += bytes;
        ledger.peak = ledger.peak.max(ledger.held);
        ledger.allocations += 1;
        Ok(DeviceBuffer { allocator: Arc::clone(self), address, bytes, mapping })
    }
}

/// GPU memory. Freed when dropped, which waits for the GPU.
#[derive(Debug)]
pub struct DeviceBuffer {
    allocator: Arc<Allocator>,
    address: DevicePtr,
    bytes: usize,
    /// The mapping at the address, if other GPUs can be given access to it.
    mapping: Option<Mapping>,
}

impl DeviceBuffer {
    /// Returns the address of the first byte.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if the length is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Sets `bytes` bytes from `offset` to `byte`, in stream order.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn fill(&self, offset: usize, byte: u8, bytes: usize) -> Result<()> {
        assert!(offset + bytes <= self.bytes);
        self.allocator.stream.fill(self.address + offset as u64, byte, bytes)
    }

    /// Reads bytes after all work queued so far.
    ///
    /// # Errors
    /// If the work failed.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        assert!(offset + to.len() <= self.bytes);
        self.allocator.stream.context.make_current()?;
        self.allocator.stream.read(self.address + offset as u64, to)
    }

    /// Writes bytes after all work queued so far.
    ///
    /// # Errors
    /// If the work failed.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        assert!(offset + from.len() <= self.bytes);
        self.allocator.stream.context.make_current()?;
        self.allocator.stream.write(self.address + offset as u64, from)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // If the context cannot be made current, it has taken its memory with it.
        let current = self.bytes > 0 && self.allocator.stream.context.make_current().is_ok();
        match self.mapping.take() {
            Some(mapping) if current => drop(mapping),
            Some(mapping) => std::mem::forget(mapping),
            // SAFETY: allocated by `allocate`; the driver waits for work on it.
            None if current => unsafe {
                sys::cuMemFree_v2(self.address);
            },
            None => {}
        }
        lock(&self.allocator.ledger).held -= self.bytes;
    }
}

/// Allocates memory in the current context.
fn allocate(bytes: usize) -> Result<DevicePtr> {
    if bytes == 0 {
        return Ok(0);
    }
    // SAFETY: users write the memory before they read it.
    checked(unsafe { result::malloc_sync(bytes) }, &format!("allocate {bytes} bytes"))
}

/// Returns the free and total memory, in bytes, of the GPU whose context is current.
pub(super) fn memory_info() -> Result<(usize, usize)> {
    checked(result::mem_get_info(), "query free memory")
}
