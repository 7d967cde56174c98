//! Collectives between GPUs through NCCL: one communicator per rank, whichever threads or processes the ranks are.
//!
//! A communicator ends in one of two ways. Where every rank has come to the end of its work and knows so of the others
//! ([`Nccl::shutdown`]), it is destroyed. Everywhere else it is aborted, which waits for nobody: a peer may be gone. Both are
//! done by a thread of their own that is waited for only so long, since NCCL itself waits, for kernels and for graphs
//! that hold the communicator.

mod api;
mod pinned;

pub use pinned::{Pinned, pin_environment};

use crate::device::gpu::DevicePtr;
use crate::device::lock::lock;
use crate::error::{Error, Result};
use api::{Api, Config, OfComm};
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use std::ffi::c_char;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What ranks find each other by: made by one of them, and carried to the others by other means.
pub type UniqueId = [u8; 128];

/// How long the end of a communicator is waited for. A thread that takes longer is left to itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a call under way is let finish before the communicator is taken from under it.
const GRACE: Duration = Duration::from_secs(2);

/// A rank's communicator.
#[derive(Debug)]
pub struct Nccl {
    api: &'static Api,
    rank: usize,
    world: usize,
    /// Held during every call, so that none begins while the communicator ends.
    calls: Arc<Mutex<()>>,
    life: Mutex<Life>,
}

#[derive(Debug)]
struct Life {
    /// `None` once it was handed to the thread that ends it.
    handle: Option<Handle>,
    parted: bool,
    aborted: Option<Error>,
    ending: Option<JoinHandle<()>>,
}

/// NCCL's own handle.
#[derive(Clone, Copy, Debug)]
struct Handle(ncclComm_t);

// SAFETY: NCCL's communicators belong to no thread; `calls` lets one thread at a time use this one.
unsafe impl Send for Handle {}

impl Nccl {
    /// Meets the other ranks; every rank calls this, with the context of its GPU current. `share` carries the id: rank 0
    /// gives it `Some` to be sent, the others ask with `None` for what rank 0 sent.
    ///
    /// With `channels`, as many blocks of the GPU take part in every collective; without, as many as NCCL chooses.
    /// NCCL waits for ranks that do not come, so call it when all of them have just been heard of.
    ///
    /// # Errors
    /// When NCCL is missing (how to get it), `share` fails, or NCCL cannot join the GPUs.
    pub(super) fn join(
        rank: usize,
        world: usize,
        channels: Option<usize>,
        share: impl FnOnce(Option<UniqueId>) -> Result<UniqueId>,
    ) -> Result<Self> {
        let api = Api::get()?;
        let mine = (rank == 0).then(|| unique_id(api)).transpose()?;
        let id = ncclUniqueId { internal: share(mine)?.map(|byte| byte as c_char) };
        let (mut handle, mut config) = (null_mut(), Config::new(channels));
        // SAFETY: addresses of a handle to be filled in and of a configuration as NCCL has it; the context is current.
        let status =
            unsafe { (api.init_rank)(&raw mut handle, world as i32, id, rank as i32, &raw mut config) };
        api.check(status, &format!("join {world} GPUs as rank {rank}"))?;
        let life = Life { handle: Some(Handle(handle)), parted: false, aborted: None, ending: None };
        Ok(Self { api, rank, world, calls: Arc::default(), life: Mutex::new(life) })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Replaces tensors of f32, given as addresses and lengths, by their sums over ranks, in one group.
    pub(super) fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)], stream: CUstream) -> Result<()> {
        let (float, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
        self.call("sum over ranks", |api, comm| {
            if let [(address, elements)] = *tensors {
                let at = address as *mut std::ffi::c_void;
                // SAFETY: the executor keeps the tensor alive until the stream has come past the call.
                return unsafe { (api.all_reduce)(at, at, elements, float, sum, comm, stream.cast()) };
            }
            // SAFETY: a group is begun and ended by this thread, also where a call inside it is refused.
            unsafe {
                let mut status = (api.group_start)();
                for &(address, elements) in tensors {
                    let at = address as *mut std::ffi::c_void;
                    if status == 0 {
                        status = (api.all_reduce)(at, at, elements, float, sum, comm, stream.cast());
                    }
                }
                let ended = (api.group_end)();
                if status == 0 { ended } else { status }
            }
        })
    }

    /// Gives every rank the `bytes` at `from` of all ranks, at `to`, rank after rank.
    pub(super) fn all_gather(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: CUstream,
    ) -> Result<()> {
        let (to, from) = (to as *mut std::ffi::c_void, from as *const std::ffi::c_void);
        self.call("gather from all ranks", |api, comm| {
            // SAFETY: as for sums; where it is gathered to, there is room for all ranks.
            unsafe { (api.all_gather)(from, to, bytes, ncclDataType_t::ncclUint8, comm, stream.cast()) }
        })
    }

    /// Replaces bytes by those of rank 0.
    pub(super) fn broadcast(&self, address: DevicePtr, bytes: usize, stream: CUstream) -> Result<()> {
        let at = address as *mut std::ffi::c_void;
        self.call("send from rank 0", |api, comm| {
            // SAFETY: as for sums.
            unsafe { (api.broadcast)(at, at, bytes, ncclDataType_t::ncclUint8, 0, comm, stream.cast()) }
        })
    }

    /// Ends this rank's collectives, those that a GPU waits in included; all later calls fail with this error. Any thread may
    /// call it; it returns at once.
    pub fn abort(&self, error: &Error) {
        // Whoever finds no communicator any more has to find its end.
        let mut life = lock(&self.life);
        life.aborted.get_or_insert_with(|| error.clone());
        if let Some(handle) = life.handle.take() {
            life.ending = end(self.api.abort, handle, Arc::clone(&self.calls));
        }
    }

    /// Ends a rank's part: [`Nccl::abort`], unless all ranks have parted. Call it before memory is freed, which waits for
    /// kernels, which may wait for a rank that is gone.
    pub fn leave(&self) {
        if !lock(&self.life).parted {
            self.abort(&Error::failed("this rank is over"));
        }
    }

    /// Says that every rank has come to the end of its work, so that nobody waits for anybody any more.
    pub(super) fn shutdown(&self) {
        lock(&self.life).parted = true;
    }

    /// The communicator, or why there is none any more. It stays alive for as long as the caller holds off other calls.
    fn handle(&self) -> Result<ncclComm_t> {
        let life = lock(&self.life);
        let reason = || life.aborted.clone().unwrap_or_else(|| Error::failed("the run is over"));
        life.handle.map(|handle| handle.0).ok_or_else(|| reason().context("NCCL was stopped"))
    }

    /// Makes a call while the communicator is alive.
    fn call(&self, doing: &str, call: impl FnOnce(&Api, ncclComm_t) -> i32) -> Result<()> {
        let _calm = lock(&self.calls);
        let status = call(self.api, self.handle()?);
        self.api.check(status, &format!("{doing} (rank {} of {})", self.rank, self.world))
    }

    /// Ends the communicator: destroys it where all ranks have parted, aborts it elsewhere. False where that takes too
    /// long: then NCCL still uses the GPU, and its context must stay.
    ///
    /// Graphs that hold calls must be gone, for NCCL waits for them.
    pub(super) fn close(&self) -> bool {
        let mut life = lock(&self.life);
        if let Some(handle) = life.handle.take() {
            let by = if life.parted { self.api.destroy } else { self.api.abort };
            life.ending = end(by, handle, Arc::clone(&self.calls));
        }
        let Some(ending) = life.ending.take() else { return true };
        let began = Instant::now();
        while !ending.is_finished() {
            if began.elapsed() > PATIENCE {
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
    // SAFETY: the address of what is filled in.
    let status = unsafe { (api.unique_id)(&raw mut id) };
    api.check(status, "make the id by which ranks find each other")?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// Ends a communicator in a thread of its own. Where none can be had, it stays until the process ends.
fn end(by: OfComm, handle: Handle, calls: Arc<Mutex<()>>) -> Option<JoinHandle<()>> {
    let body = move || {
        // A call that is under way may use the communicator for a moment more; one that hangs is what this is to end.
        let began = Instant::now();
        let _calm = loop {
            match calls.try_lock() {
                Ok(calm) => break Some(calm),
                Err(_) if began.elapsed() > GRACE => break None,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        // The whole of it moves here, not the pointer inside, which belongs to no thread.
        let handle: Handle = handle;
        // SAFETY: the handle was taken out of its communicator, so no further call gets it. Nobody is left to hear of a
        // failure.
        unsafe { by(handle.0) };
    };
    std::thread::Builder::new().name("xrun-nccl-end".to_owned()).spawn(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::Gpu;
    use crate::device::cuda::libraries::Nvidia;

    /// Without a library, or with one and no GPU for it.
    #[test]
    fn what_is_missing_is_an_error_and_no_panic() {
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
