//! A GPU among those of other ranks: the communicator, and a stream for collectives beside the model's.
//!
//! The two streams meet by events, which a graph that is being captured follows into both: what runs beside the model
//! begins after what was put into the model's stream before it ([`Gpu::fork`]), and the model goes on after it
//! ([`Gpu::rejoin`]).

use super::driver::{Event, check};
use super::gpu::Gpu;
use super::nccl::{Nccl, UniqueId};
use super::stream::record;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, Product, Properties, Queue};
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ptr::null_mut;
use std::sync::Arc;

/// What a GPU with other ranks has besides its own.
#[derive(Debug)]
pub(super) struct Link {
    nccl: Arc<Nccl>,
    stream: sys::CUstream,
    forked: Event,
    done: Event,
}

impl Link {
    pub(super) fn nccl(&self) -> &Nccl {
        &self.nccl
    }

    /// Ends what belongs to the GPU; false where NCCL does not let go of it in time.
    pub(super) fn close(&self) -> bool {
        let over = self.nccl.close();
        if over {
            // SAFETY: the link is used no more: its GPU is being dropped.
            unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
        over
    }
}

impl Gpu {
    /// Meets the GPUs of the other ranks. Every rank calls this once, and when all have just been heard of, for NCCL waits
    /// for those that do not come. `share` carries the id by which they find each other: rank 0 gives it `Some` to be
    /// sent, the others ask with `None` for what rank 0 sent. With `channels`, as many blocks of the GPU take part in every
    /// collective; without, as many as NCCL chooses.
    ///
    /// # Errors
    /// When NCCL is missing (how to get it), `share` fails, or NCCL cannot join the GPUs.
    pub fn join(
        &self,
        rank: usize,
        world: usize,
        channels: Option<usize>,
        share: impl FnOnce(Option<UniqueId>) -> Result<UniqueId>,
    ) -> Result<()> {
        self.make_current()?;
        let (mut least, mut most, mut stream) = (0, 0, null_mut());
        let nccl = Arc::new(Nccl::join(rank, world, channels, share)?);
        let flag = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: addresses of what is filled in; the context is current. What other ranks wait for goes first where both
        // streams have work.
        unsafe {
            let status = sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut most);
            check(status, "ask for the priorities of streams")?;
            let status = sys::cuStreamCreateWithPriority(&raw mut stream, flag, most);
            check(status, "create a stream for collectives")?;
        }
        let link = Link { nccl, stream, forked: self.event()?, done: self.event()? };
        self.link.set(link).map_err(|_| Error::failed("a GPU was to meet the other ranks twice"))
    }

    /// The communicator; `None` for a rank that is alone.
    pub fn nccl(&self) -> Option<&Arc<Nccl>> {
        self.link.get().map(|link| &link.nccl)
    }

    /// Waits until everything is done, and lets the communicator end in peace. Call it when all ranks have said that they
    /// came to their end: a rank that leaves otherwise aborts, so as to wait for nobody.
    ///
    /// # Errors
    /// When work failed.
    pub fn part(&self) -> Result<()> {
        self.synchronize()?;
        if let Some(link) = self.link.get() {
            link.nccl.part();
        }
        Ok(())
    }

    /// Replaces bytes by those of rank 0, in the order of the stream. A rank that is alone keeps its own.
    ///
    /// # Errors
    /// When a rank is lost, or NCCL refuses.
    pub fn take_from_rank_0(&self, address: DevicePtr, bytes: usize) -> Result<()> {
        self.link.get().map_or(Ok(()), |link| link.nccl.broadcast(address, bytes, self.stream))
    }

    /// The stream beside the model's, which from here on has seen what was put into the model's so far. `None` for a rank
    /// that is alone.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn fork(&self) -> Result<Option<Beside<'_>>> {
        let Some(link) = self.link.get() else { return Ok(None) };
        record(self.stream, &link.forked, false)?;
        wait(link.stream, &link.forked)?;
        Ok(Some(Beside { gpu: self, link }))
    }

    /// Lets the model's stream go on after what was put beside it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn rejoin(&self) -> Result<()> {
        let Some(link) = self.link.get() else { return Ok(()) };
        record(link.stream, &link.done, false)?;
        wait(self.stream, &link.done)
    }
}

/// Makes a stream wait for an event.
fn wait(stream: sys::CUstream, event: &Event) -> Result<()> {
    // SAFETY: event and stream exist, and the event has been recorded.
    check(unsafe { sys::cuStreamWaitEvent(stream, event.0, 0) }, "let a stream wait for another")
}

/// The stream beside the model's: collectives, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    gpu: &'a Gpu,
    link: &'a Link,
}

impl Beside<'_> {
    /// Puts an event into the stream. Inside a graph it is recorded at every launch of it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn record(&self, event: &Event, inside_graph: bool) -> Result<()> {
        record(self.link.stream, event, inside_graph)
    }
}

/// Why nothing else runs there: it would share the workspace of products, and memory whose lives are planned for one
/// stream.
fn refused(what: &str) -> Result<()> {
    Err(Error::failed(format!("{what} was to run beside the model, where only collectives may")))
}

impl Queue for Beside<'_> {
    fn properties(&self) -> &Properties {
        &self.gpu.properties
    }

    fn launch(&self, kernel: Kernel, _grid: Grid, _args: &[Arg]) -> Result<()> {
        refused(kernel.entry)
    }

    fn product(&self, _product: &Product) -> Result<()> {
        refused("a product")
    }

    fn fill(&self, _address: DevicePtr, _byte: u8, _bytes: usize) -> Result<()> {
        refused("a fill")
    }

    fn copy(&self, _to: DevicePtr, _from: DevicePtr, _bytes: usize) -> Result<()> {
        refused("a copy")
    }

    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)]) -> Result<()> {
        self.link.nccl.all_reduce_sum(tensors, self.link.stream)
    }

    fn all_gather(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        self.link.nccl.all_gather(to, from, bytes, self.link.stream)
    }
}
