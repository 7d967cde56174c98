//! Aligned, zeroed host memory.

use crate::device::host_allocator::fallible;
use crate::error::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every tensor in bytes, with every allocator.
pub const ALIGNMENT: usize = 256;

/// A block of host memory, aligned to [`ALIGNMENT`] and initially zeroed.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a Buffer owns its memory like a Vec; access goes through views handed out per node, and the
// executor runs one node of a program at a time.
unsafe impl Send for Buffer {}
// SAFETY: see `Send`; shared references only read the address and the length.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `bytes` zeroed bytes. An empty buffer allocates nothing.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if the allocation fails.
    pub fn zeroed(bytes: usize) -> Result<Self> {
        let refused = || Error::does_not_fit(format!("cannot allocate {bytes} bytes of host memory"));
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| refused())?;
        if bytes == 0 {
            return Ok(Self { start: NonNull::dangling(), bytes });
        }
        // SAFETY: the layout has a size above zero.
        let start = fallible(|| unsafe { alloc_zeroed(layout) });
        let start = NonNull::new(start).ok_or_else(refused)?;
        Ok(Self { start, bytes })
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the bytes for reading.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range was allocated and zeroed by `zeroed`; no node runs while a caller holds `&self`
        // outside the executor.
        unsafe { std::slice::from_raw_parts(self.address(), self.bytes) }
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: see `bytes`; `&mut self` excludes other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `zeroed` allocated exactly this layout.
            unsafe { dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGNMENT)) }
        }
    }
}
