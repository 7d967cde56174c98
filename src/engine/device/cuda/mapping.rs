//! GPU memory that other GPUs of the same process can be given access to, one allocation at a time.
//!
//! `cuCtxEnablePeerAccess` instead gives access to all past and future allocations of a context. To allocate
//! or free any memory, the driver then waits for all GPUs with access, and one of them may be waiting for
//! this rank.

use super::driver::check;
use crate::device::gpu::DevicePtr;
use crate::error::Result;
use cudarc::driver::sys;

/// An allocation of whole pages, mapped at an address valid on all GPUs of the process. Freed when dropped,
/// which waits for the work of the current context.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Address of the first byte.
    pub(super) address: DevicePtr,
    /// Size in bytes, a multiple of the page size.
    bytes: usize,
}

impl Mapping {
    /// Allocates at least `bytes` on a GPU and gives that GPU access.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if there is not enough memory.
    pub(super) fn new(device: sys::CUdevice, bytes: usize) -> Result<Self> {
        let properties = properties(device);
        let bytes = bytes.next_multiple_of(page_bytes(&properties)?);
        let doing = format!("allocate {bytes} bytes");
        let mut handle = 0;
        // SAFETY: the addresses point to a handle to be filled in and to the properties.
        check(unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) }, &doing)?;
        let mapped = map(handle, bytes);
        // SAFETY: created above. Mapped memory stays until it is unmapped.
        unsafe { sys::cuMemRelease(handle) };
        let mapping = Self { address: mapped?, bytes };
        allow_access(mapping.address, mapping.bytes, device)?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`. Unlike `cuMemFree`, unmapping does not wait for work on the memory.
        unsafe {
            sys::cuCtxSynchronize();
            sys::cuMemUnmap(self.address, self.bytes);
            sys::cuMemAddressFree(self.address, self.bytes);
        }
    }
}

/// Gives a GPU of this process access to a [`Mapping`] whose first `bytes` are in use.
///
/// # Errors
/// If the memory is not a mapping, or the GPUs cannot access each other's memory.
pub(super) fn allow_access(address: DevicePtr, bytes: usize, device: sys::CUdevice) -> Result<()> {
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let bytes = bytes.next_multiple_of(page_bytes(&properties(device))?);
    // SAFETY: the address points to the descriptor; the driver checks that the whole range is mapped.
    let status = unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) };
    check(status, "give a GPU access to memory")
}

/// Maps memory at a newly reserved address, without giving access to it.
fn map(handle: sys::CUmemGenericAllocationHandle, bytes: usize) -> Result<DevicePtr> {
    let mut address = 0;
    // SAFETY: the address points to a pointer to be filled in.
    let reserved = unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) };
    check(reserved, "reserve addresses")?;
    // SAFETY: the reserved range and the handle's memory both have this length.
    let mapped = unsafe { sys::cuMemMap(address, bytes, 0, handle, 0) };
    check(mapped, "map memory").inspect_err(|_| {
        // SAFETY: reserved above, with nothing mapped in it.
        unsafe { sys::cuMemAddressFree(address, bytes) };
    })?;
    Ok(address)
}

fn location(device: sys::CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: sys::CUdevice) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns the size that allocations must be a multiple of.
fn page_bytes(properties: &sys::CUmemAllocationProp) -> Result<usize> {
    let mut bytes = 0;
    let which = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the addresses point to an integer and to the properties.
    let status = unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, properties, which) };
    check(status, "query the size of a page")?;
    Ok(bytes.max(1))
}
