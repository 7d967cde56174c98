//! The CUDA context of this process on one GPU.

use super::driver::{self, check, checked};
use super::libraries::Nvidia;
use super::monitor::InitialState;
use crate::device::gpu::Properties;
use crate::error::{Error, Result};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use std::sync::Arc;

/// Lowest supported compute capability.
pub(super) const CAPABILITY: (u32, u32) = (8, 0);

/// The primary context of this process on a GPU, released when dropped.
#[derive(Debug)]
pub(super) struct Context {
    /// The device.
    pub(super) device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Context {}
// SAFETY: see `Send`.
unsafe impl Sync for Context {}

impl Context {
    /// Creates or retains the context on a device and makes it current.
    pub(super) fn new(device: sys::CUdevice) -> Result<Self> {
        // SAFETY: the device comes from the driver.
        let raw = checked(unsafe { result::primary_ctx::retain(device) }, "create a context on the GPU")?;
        let context = Self { device, raw };
        context.make_current()?;
        Ok(context)
    }

    /// Makes this context current on the calling thread.
    pub(super) fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as `self` lives.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, "make the context current")
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `new`; everything that lives in the context keeps it alive, so nothing is left.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A GPU on which this process has a context but has done nothing else yet.
#[derive(Debug)]
pub struct OpenedContext {
    pub(super) properties: Properties,
    /// State of the GPU before the context was created.
    pub(super) initial: InitialState,
    /// Bytes of GPU memory that the context took.
    pub(super) took: Option<i64>,
    pub(super) context: Arc<Context>,
}

impl OpenedContext {
    /// Creates the context on a GPU. This takes the driver at least 0.1 s, and contexts of several threads
    /// are created one after another.
    ///
    /// # Errors
    /// If the driver is missing, does not know the GPU, or reports an error.
    pub fn open(ordinal: usize) -> Result<Self> {
        check_present(ordinal)?;
        let (device, properties) = device_properties(ordinal)?;
        let initial = InitialState::for_device(device);
        let context = Arc::new(Context::new(device)?);
        let took = initial.memory_taken_since();
        Ok(Self { properties, initial, took, context })
    }
}

/// Checks that the driver is installed and knows a GPU with this ordinal.
pub(super) fn check_present(ordinal: usize) -> Result<()> {
    if Nvidia::Driver.open().is_none() {
        return Err(Error::failed(format!("no NVIDIA driver is found; {}", Nvidia::Driver.remedy())));
    }
    let count = driver::count()?;
    if ordinal >= count {
        return Err(Error::failed(format!("there is no GPU {ordinal}: the driver knows {count}, from 0")));
    }
    Ok(())
}

/// Returns a GPU's handle and properties without creating a context.
///
/// # Errors
/// If the driver does not know the GPU, or kernels do not run on it.
pub(super) fn device_properties(ordinal: usize) -> Result<(sys::CUdevice, Properties)> {
    let (device, properties) = any_device_properties(ordinal)?;
    let (major, minor) = properties.capability;
    if properties.capability < CAPABILITY {
        return Err(Error::failed(format!(
            "{} has compute capability {major}.{minor}; kernels need 8.0 or newer (bf16 tensor cores)",
            properties.name
        )));
    }
    Ok((device, properties))
}

/// Returns the handle and properties of a GPU, whether or not kernels run on it.
pub(super) fn any_device_properties(ordinal: usize) -> Result<(sys::CUdevice, Properties)> {
    let (device, name, memory_bytes) = driver::device(ordinal)?;
    let attribute = |which| driver::attribute(device, which);
    let properties = Properties {
        name,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_sm: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        memory_bytes,
    };
    Ok((device, properties))
}
