//! Access to the memory of other ranks: by mapping allocations for other GPUs if ranks are threads, by
//! handles of allocations if they are processes.

use super::memory::SharedMemory;
use crate::device::cuda::context::Context;
use crate::device::cuda::driver::check;
use crate::device::cuda::mapping;
use crate::device::gpu::DevicePtr;
use crate::error::{Error, Result};
use crate::lock::lock;
use cudarc::driver::sys::{self, CUresult};
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock};

/// What a rank tells the others about its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    /// Boot id of the host's kernel, which identifies the host.
    host: String,
    /// Identifies the process.
    process: u64,
    device: i32,
    buffers: Vec<Buffer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Buffer {
    address: DevicePtr,
    bytes: usize,
    /// The driver's handle of the allocation for other processes, or why there is none.
    handle: std::result::Result<Vec<u8>, String>,
}

/// The memory of all ranks as this rank's GPU accesses it.
#[derive(Debug)]
pub(super) struct Mapped {
    context: Arc<Context>,
    /// Addresses of each rank's buffers; for this rank, its own addresses.
    pub(super) bases: Vec<Vec<DevicePtr>>,
    /// Addresses that were opened from handles and must be closed.
    opened: Mutex<Vec<DevicePtr>>,
}

impl Mapped {
    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.bases.len()
    }

    /// Closes the memory that was opened; its owner may free it afterwards. No access may be in progress.
    pub(super) fn close(&self) {
        let opened = std::mem::take(&mut *lock(&self.opened));
        if !opened.is_empty() && self.context.make_current().is_ok() {
            for address in opened {
                // SAFETY: opened by `open_handle`, and closed once.
                unsafe { sys::cuIpcCloseMemHandle(address) };
            }
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.close();
    }
}

impl Offer {
    pub(super) fn new(context: &Context, memory: &SharedMemory) -> Self {
        let buffer = |&(address, bytes): &(DevicePtr, usize)| {
            let handle = ipc_handle(address).map_err(|e| e.to_string());
            Buffer { address, bytes, handle }
        };
        Self {
            host: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            process: process_token(),
            device: context.device,
            buffers: memory.buffers.iter().map(buffer).collect(),
        }
    }
}

/// Returns a number that no other process on the host is likely to have.
pub fn process_token() -> u64 {
    static TOKEN: OnceLock<u64> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    })
}

/// Maps the memory of every rank, or says why that failed.
pub(super) fn map_all(
    context: &Arc<Context>,
    rank: usize,
    offers: &[Offer],
) -> std::result::Result<Mapped, String> {
    let own = &offers[rank];
    let lengths = |offer: &Offer| offer.buffers.iter().map(|buffer| buffer.bytes).collect::<Vec<_>>();
    let mut mapped = Mapped { context: Arc::clone(context), bases: Vec::new(), opened: Mutex::default() };
    for (peer, offer) in offers.iter().enumerate() {
        let bases = if lengths(offer) != lengths(own) {
            Err(format!("rank {peer} has different buffers"))
        } else if peer == rank {
            Ok(own.buffers.iter().map(|buffer| buffer.address).collect())
        } else if offer.host != own.host || own.host.is_empty() {
            Err(format!("rank {peer} is on another host"))
        } else if offer.process == own.process {
            // The other rank does the same for this rank before either uses the addresses.
            let allowed = allow_access(own, offer.device);
            allowed.map(|()| offer.buffers.iter().map(|b| b.address).collect())
        } else {
            let open = |buffer: &Buffer| match &buffer.handle {
                Ok(handle) => open_handle(handle, &mapped),
                Err(reason) => Err(Error::failed(format!("its driver gives no handle for it: {reason}"))),
            };
            offer.buffers.iter().map(open).collect::<Result<Vec<_>>>().map_err(|e| e.message().to_owned())
        };
        mapped
            .bases
            .push(bases.map_err(|reason| format!("no access to the memory of rank {peer}: {reason}"))?);
    }
    Ok(mapped)
}

/// Lets another GPU of this process access a rank's buffers.
fn allow_access(own: &Offer, peer: i32) -> std::result::Result<(), String> {
    let mut can = 0;
    // SAFETY: the address points to an integer; both devices were opened.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, peer, own.device) };
    if status != CUresult::CUDA_SUCCESS || can == 0 {
        return Err("their GPUs have no peer access".to_owned());
    }
    let filled = own.buffers.iter().filter(|buffer| buffer.bytes > 0);
    let mut allowed = filled.map(|buffer| mapping::allow_access(buffer.address, buffer.bytes, peer));
    allowed.try_for_each(|allowed| allowed.map_err(|e| e.message().to_owned()))
}

/// Returns the handle with which other processes can open an allocation.
fn ipc_handle(address: DevicePtr) -> Result<Vec<u8>> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the addresses point to the value to be filled in and to memory that the caller has allocated.
    check(unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address) }, "share memory with other processes")?;
    Ok(handle.reserved.iter().map(|&byte| byte as u8).collect())
}

/// Opens memory of another process by its handle, and records it for [`Mapped::close`].
fn open_handle(handle: &[u8], mapped: &Mapped) -> Result<DevicePtr> {
    let reserved: [u8; 64] =
        handle.try_into().map_err(|_| Error::failed("its handle has the wrong length"))?;
    let handle = sys::CUipcMemHandle { reserved: reserved.map(|byte| byte as std::ffi::c_char) };
    let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut address = 0;
    // SAFETY: the address points to a pointer to be filled in; the handle comes from another rank.
    check(unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, lazily) }, "open its memory")?;
    lock(&mapped.opened).push(address);
    Ok(address)
}
