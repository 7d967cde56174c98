//! The device that programs run on: the CPU, or a GPU with the CPU for initialization and data.

use super::cpu::{Buffer, Pool};
use super::cuda::memory::DeviceBuffer;
use super::cuda::{Gpu, OpenedContext};
use crate::error::Result;
use std::borrow::Cow;
use std::sync::Arc;

/// A device that runs programs.
#[derive(Clone, Debug)]
pub enum Device {
    /// The CPU.
    Cpu(Arc<Pool>),
    /// A GPU; the CPU threads initialize parameters and prepare data.
    Cuda(Arc<Gpu>, Arc<Pool>),
}

impl Device {
    /// Opens a GPU by its ordinal, or the CPU for `None`.
    ///
    /// # Errors
    /// If the GPU cannot be opened.
    pub fn open(gpu: Option<usize>, pool: Arc<Pool>) -> Result<Self> {
        Ok(match gpu {
            None => Device::Cpu(pool),
            Some(ordinal) => Device::Cuda(Gpu::open(ordinal)?, pool),
        })
    }

    /// Opens a GPU on which this process already has a context.
    ///
    /// # Errors
    /// If the GPU cannot be opened.
    pub fn open_in(context: OpenedContext, pool: Arc<Pool>) -> Result<Self> {
        Ok(Device::Cuda(Gpu::open_in(context)?, pool))
    }

    /// Returns the worker threads of the CPU.
    pub fn pool(&self) -> &Arc<Pool> {
        match self {
            Device::Cpu(pool) | Device::Cuda(_, pool) => pool,
        }
    }

    /// Returns the GPU; `None` on the CPU.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match self {
            Device::Cpu(_) => None,
            Device::Cuda(gpu, _) => Some(gpu),
        }
    }

    /// Allocates memory for tensors. On the CPU it is zeroed; on a GPU its contents are undefined.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if there is not enough memory.
    pub fn allocate(&self, bytes: usize) -> Result<Memory> {
        match self {
            Device::Cpu(_) => Buffer::zeroed(bytes).map(Memory::Host),
            Device::Cuda(gpu, _) => gpu.allocate(bytes).map(Memory::Gpu),
        }
    }

    /// Allocates like [`Device::allocate`]; other GPUs of the process can be given access to the GPU memory.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if there is not enough memory.
    pub fn allocate_mapped(&self, bytes: usize) -> Result<Memory> {
        match self {
            Device::Cpu(_) => self.allocate(bytes),
            Device::Cuda(gpu, _) => gpu.allocate_mapped(bytes).map(Memory::Gpu),
        }
    }
}

impl From<Arc<Pool>> for Device {
    fn from(pool: Arc<Pool>) -> Self {
        Device::Cpu(pool)
    }
}

/// A contiguous range of a device's memory.
#[derive(Debug)]
pub enum Memory {
    /// Host memory.
    Host(Buffer),
    /// GPU memory.
    Gpu(DeviceBuffer),
}

impl Memory {
    /// Returns the address of the first byte. The host must not dereference the address of GPU memory.
    pub fn address(&self) -> *mut u8 {
        match self {
            Memory::Host(buffer) => buffer.address(),
            Memory::Gpu(buffer) => std::ptr::without_provenance_mut(buffer.address() as usize),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Memory::Host(buffer) => buffer.bytes().len(),
            Memory::Gpu(buffer) => buffer.len(),
        }
    }

    /// Returns true if the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets `bytes` bytes from `offset` to `byte`.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn fill(&mut self, offset: usize, byte: u8, bytes: usize) -> Result<()> {
        match self {
            Memory::Host(buffer) => buffer.bytes_mut()[offset..offset + bytes].fill(byte),
            Memory::Gpu(buffer) => buffer.fill(offset, byte, bytes)?,
        }
        Ok(())
    }

    /// Reads bytes after all work queued so far.
    ///
    /// # Errors
    /// If the work failed.
    pub fn read(&self, offset: usize, bytes: usize) -> Result<Cow<'_, [u8]>> {
        match self {
            Memory::Host(buffer) => Ok(Cow::Borrowed(&buffer.bytes()[offset..offset + bytes])),
            Memory::Gpu(buffer) => {
                let mut copy = vec![0; bytes];
                buffer.read(offset, &mut copy)?;
                Ok(Cow::Owned(copy))
            }
        }
    }

    /// Writes bytes after all work queued so far.
    ///
    /// # Errors
    /// If the work failed.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        match self {
            Memory::Host(buffer) => buffer.bytes_mut()[offset..offset + from.len()].copy_from_slice(from),
            Memory::Gpu(buffer) => buffer.write(offset, from)?,
        }
        Ok(())
    }
}
