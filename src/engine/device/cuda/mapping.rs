//! Memory of a GPU that other GPUs of the same process can be given access to, one allocation at a time.
//!
//! `cuCtxEnablePeerAccess` instead gives access to every allocation of a context, of the past and of the
//! future. To allocate or free any memory the driver then waits for all GPUs that have access, and one of
//! these may be waiting for this rank.

use super::driver::check;
use crate::device::gpu::DevicePtr;
use crate::error::Result;
use cudarc::driver::sys;

/// An allocation of whole pages, mapped at an address that all GPUs of the process share. Freed when dropped,
/// which waits for the work of the current context.
#[derive(Debug)]
pub(super) struct Mapping {
    address: DevicePtr,
    /// A multiple of the page size.
    bytes: usize,
}

impl Mapping {
    /// Allocates at least `bytes` on a GPU, which has access to it.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) when there is not enough memory.
    pub(super) fn new(device: sys::CUdevice, bytes: usize) -> Result<Self> {
        let properties = properties(device);
        let bytes = bytes.next_multiple_of(page_bytes(&properties)?);
        let doing = format!("allocate {bytes} bytes");
        let mut handle = 0;
        // SAFETY: addresses of a handle to be filled in and of the properties.
        check(unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) }, &doing)?;
        let mapped = map(handle, bytes);
        // SAFETY: created above. Memory that is mapped stays until it is unmapped.
        unsafe { sys::cuMemRelease(handle) };
        let mapping = Self { address: mapped?, bytes };
        allow_access(mapping.address, mapping.bytes, device)?;
        Ok(mapping)
    }

    /// Returns the address of the first byte.
    pub(super) fn address(&self) -> DevicePtr {
        self.address
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
/// If the memory is none, or the GPUs have no access to each other's memory.
pub(super) fn allow_access(address: DevicePtr, bytes: usize, device: sys::CUdevice) -> Result<()> {
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let bytes = bytes.next_multiple_of(page_bytes(&properties(device))?);
    // SAFETY: the address of the descriptor; the driver checks that the range is mapped as a whole.
    let status = unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) };
    check(status, "give a GPU access to memory")
}

/// Maps memory at an address of its own, without access to it.
fn map(handle: sys::CUmemGenericAllocationHandle, bytes: usize) -> Result<DevicePtr> {
    let mut address = 0;
    // SAFETY: the address of a pointer to be filled in.
    let reserved = unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) };
    check(reserved, "reserve addresses")?;
    // SAFETY: the range was reserved with this length, and the handle's memory has it.
    let mapped = unsafe { sys::cuMemMap(address, bytes, 0, handle, 0) };
    check(mapped, "map memory").inspect_err(|_| {
        // SAFETY: reserved above, and nothing is mapped in it.
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

/// Returns the length that allocations are multiples of.
fn page_bytes(properties: &sys::CUmemAllocationProp) -> Result<usize> {
    let mut bytes = 0;
    let which = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: addresses of an integer and of the properties.
    let status = unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, properties, which) };
    check(status, "query the size of a page")?;
    Ok(bytes.max(1))
}
