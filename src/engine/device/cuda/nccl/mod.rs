//! Collectives between GPUs through NCCL: one communicator per rank, whether ranks are threads or processes.
//!
//! A communicator ends in one of two ways. If all ranks have agreed that they are done ([`Nccl::shutdown`]),
//! it is destroyed. Otherwise it is aborted, which does not wait for other ranks, because one may be gone.
//! Both happen on a separate thread with a time limit, because NCCL waits for kernels and for graphs that
//! hold the communicator.

mod api;
mod pinned;

pub use pinned::{NcclSettings, pin_environment};

use super::transport::{On, Transport};
use crate::device::gpu::{Collective, DevicePtr, MAX_RANKS, consecutive_addresses};
use crate::error::{Error, Result};
use crate::lock::lock;
use api::{Api, CommFn, Config, SUCCESS, Status};
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The id with which ranks connect: rank 0 creates it and sends it to the others by other means.
pub type UniqueId = [u8; 128];

/// Time limit for ending a communicator. A thread that takes longer is detached.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call in progress may take before the communicator is aborted during the call.
const CALL_GRACE: Duration = Duration::from_secs(2);

/// A rank's communicator.
#[derive(Debug)]
pub struct Nccl {
    api: &'static Api,
    rank: usize,
    world_size: usize,
    /// Held during every call, so that no call begins while the communicator is ending.
    calls: Arc<Mutex<()>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once the thread that ends the communicator has taken it.
    handle: Option<Handle>,
    /// True if all ranks have agreed that they are done.
    shut_down: bool,
    /// Reason of an abort.
    aborted: Option<Error>,
    ending: Option<JoinHandle<()>>,
}

/// NCCL's handle for a communicator.
#[derive(Clone, Copy, Debug)]
struct Handle(ncclComm_t);

// SAFETY: NCCL's communicators do not belong to a thread; `calls` lets one thread at a time use this one.
unsafe impl Send for Handle {}

impl Nccl {
    /// Joins the other ranks. Every rank calls this, with the context of its GPU current. `share` distributes
    /// the id: rank 0 passes `Some` to send it, the others pass `None` and get the id from rank 0.
    ///
    /// With `channels`, that many blocks of the GPU take part in every collective; otherwise NCCL chooses
    /// their number. NCCL waits for missing ranks without limit, so call this only when all ranks are known
    /// to be alive.
    ///
    /// # Errors
    /// If NCCL is missing (the message says how to get it), `share` fails, or NCCL cannot join the GPUs.
    pub(super) fn join(
        rank: usize,
        world_size: usize,
        channels: Option<usize>,
        share: impl FnOnce(Option<UniqueId>) -> Result<UniqueId>,
    ) -> Result<Self> {
        let api = Api::get()?;
        let mine = (rank == 0).then(|| unique_id(api)).transpose()?;
        let id = ncclUniqueId { internal: share(mine)?.map(|byte| byte as c_char) };
        let (mut handle, mut config) = (null_mut(), Config::new(channels));
        // SAFETY: the addresses point to a handle to be filled in and to a configuration in NCCL's layout;
        // the context is current.
        let status =
            unsafe { (api.init_rank)(&raw mut handle, world_size as i32, id, rank as i32, &raw mut config) };
        api.check(status, &format!("join {world_size} GPUs as rank {rank}"))?;
        let state = State { handle: Some(Handle(handle)), shut_down: false, aborted: None, ending: None };
        Ok(Self { api, rank, world_size, calls: Arc::default(), state: Mutex::new(state) })
    }

    /// Returns the communicator, which stays alive while the caller holds `calls`.
    ///
    /// # Errors
    /// If it was aborted or has ended. The message contains the reason.
    fn handle(&self) -> Result<ncclComm_t> {
        let state = lock(&self.state);
        let reason = || state.aborted.clone().unwrap_or_else(|| Error::failed("the run has ended"));
        state.handle.map(|handle| handle.0).ok_or_else(|| reason().context("NCCL was stopped"))
    }

    /// Makes a call for each item; several calls form a group.
    fn group<T>(&self, doing: &str, items: &[T], one: impl Fn(&Api, ncclComm_t, &T) -> Status) -> Result<()> {
        let _guard = lock(&self.calls);
        let (api, comm) = (self.api, self.handle()?);
        let status = if let [item] = items {
            one(api, comm, item)
        } else {
            // SAFETY: this thread begins and ends the group, even if a call inside it fails.
            let begun = unsafe { (api.group_start)() };
            let status = items.iter().fold(begun, |status, item| match status {
                SUCCESS => one(api, comm, item),
                failed => failed,
            });
            // SAFETY: see above.
            let ended = unsafe { (api.group_end)() };
            if status == SUCCESS { ended } else { status }
        };
        api.check(status, &format!("{doing} (rank {} of {})", self.rank, self.world_size))
    }
}

impl Transport for Nccl {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn collective(&self, collective: Collective<'_>, on: On<'_>) -> Result<()> {
        let (float, byte) = (ncclDataType_t::ncclFloat32, ncclDataType_t::ncclUint8);
        let (sum, stream) = (ncclRedOp_t::ncclSum, on.stream.raw.cast());
        match collective {
            Collective::AllReduceSum(tensors) => {
                self.group("sum over ranks", tensors, |api, comm, &(address, elements)| {
                    let at = address as *mut c_void;
                    // SAFETY: the executor keeps the tensor alive until the stream has passed the call.
                    unsafe { (api.all_reduce)(at, at, elements, float, sum, comm, stream) }
                })
            }
            Collective::ReduceToOwners(parts) => {
                self.group("sum over ranks to owners", parts, |api, comm, part| {
                    let (at, owner) = (part.at as *mut c_void, part.owner as c_int);
                    // SAFETY: see above.
                    unsafe { (api.reduce)(at, at, part.elements, float, sum, owner, comm, stream) }
                })
            }
            Collective::GatherFromOwners { parts, .. } => {
                self.group("gather from owners", parts, |api, comm, part| {
                    let (to, from) = (part.to as *mut c_void, part.from as *const c_void);
                    // SAFETY: see above. Ranks other than the owner only write.
                    unsafe { (api.broadcast)(from, to, part.bytes, byte, part.owner as c_int, comm, stream) }
                })
            }
            Collective::AllGather(tensors) => {
                self.group("gather from all ranks", tensors, |api, comm, tensor| {
                    let (to, from) = (tensor.to as *mut c_void, tensor.from as *const c_void);
                    // SAFETY: see above; the target has room for all ranks.
                    unsafe { (api.all_gather)(from, to, tensor.bytes, byte, comm, stream) }
                })
            }
            Collective::Share(tensor) => self.collective(Collective::AllGather(&[tensor]), on),
        }
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        Ok(consecutive_addresses(to, bytes))
    }

    fn broadcast(&self, address: DevicePtr, bytes: usize, on: On<'_>) -> Result<bool> {
        let (byte, stream) = (ncclDataType_t::ncclUint8, on.stream.raw.cast());
        self.group("send from rank 0", &[address as *mut c_void], |api, comm, &at| {
            // SAFETY: as in `collective`.
            unsafe { (api.broadcast)(at, at, bytes, byte, 0, comm, stream) }
        })?;
        Ok(true)
    }

    fn abort(&self, error: &Error) {
        // One lock for both changes, so that a thread that finds no handle finds the thread that ends it.
        let mut state = lock(&self.state);
        state.aborted.get_or_insert_with(|| error.clone());
        if let Some(handle) = state.handle.take() {
            state.ending = end(self.api.abort, handle, Arc::clone(&self.calls));
        }
    }

    fn leave(&self) {
        if !lock(&self.state).shut_down {
            self.abort(&Error::failed("this rank has ended"));
        }
    }

    fn shutdown(&self) {
        lock(&self.state).shut_down = true;
    }

    fn close(&self) -> bool {
        let mut state = lock(&self.state);
        if let Some(handle) = state.handle.take() {
            let by = if state.shut_down { self.api.destroy } else { self.api.abort };
            state.ending = end(by, handle, Arc::clone(&self.calls));
        }
        let Some(ending) = state.ending.take() else { return true };
        let began = Instant::now();
        while !ending.is_finished() {
            if began.elapsed() > CLOSE_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        ending.join().is_ok()
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.close();
    }
}

fn unique_id(api: &Api) -> Result<UniqueId> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the address points to the value to be filled in.
    let status = unsafe { (api.unique_id)(&raw mut id) };
    api.check(status, "create NCCL's id")?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// Ends a communicator on a separate thread. If no thread can be started, the communicator stays until the
/// process ends.
fn end(by: CommFn, handle: Handle, calls: Arc<Mutex<()>>) -> Option<JoinHandle<()>> {
    let body = move || {
        // A call in progress may use the communicator a moment longer. If a call hangs, ending the
        // communicator ends it.
        let began = Instant::now();
        let _guard = loop {
            match calls.try_lock() {
                Ok(guard) => break Some(guard),
                Err(_) if began.elapsed() > CALL_GRACE => break None,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // Move the whole `Handle` into the closure, not the raw pointer inside it, which is not `Send`.
        let handle: Handle = handle;
        // SAFETY: the handle was taken out of the state, so no other call gets it. A failure cannot be
        // reported to anyone.
        unsafe { by(handle.0) };
    };
    std::thread::Builder::new().name("xrun-nccl-end".to_owned()).spawn(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::Gpu;
    use crate::device::cuda::libraries::Nvidia;

    /// Tests a machine without the library, or with the library but without a GPU.
    #[test]
    fn a_missing_library_or_gpu_is_an_error_not_a_panic() {
        if Gpu::count() > 0 {
            return;
        }
        let error =
            Nccl::join(0, 1, None, |id| id.ok_or_else(|| Error::failed("rank 0 makes the id"))).unwrap_err();
        match Nvidia::Nccl.open() {
            None => assert!(error.message().contains("pip install nvidia-nccl-cu13"), "{error}"),
            Some(_) => assert!(error.message().contains("NCCL says"), "{error}"),
        }
    }
}
