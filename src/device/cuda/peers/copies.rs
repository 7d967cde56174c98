//! The collectives.

use super::map::Mapped;
use super::memory::{SharedMemory, flags};
use super::release::Releaser;
use crate::device::cuda::context::Context;
use crate::device::cuda::driver::check;
use crate::device::cuda::kernels::Kernels;
use crate::device::cuda::stream::Stream;
use crate::device::cuda::transport::{Lane, On, Transport};
use crate::device::gpu::{
    AREA_FLAGS, DevicePtr, Gathered, MAX_RANKS, OwnedCopy, OwnedSum, in_turn, rank_sum, sum_at_once,
};
use crate::device::lock::lock;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUstreamBatchMemOpParams as Operation, CUstreamBatchMemOpType as Type};
use std::sync::{Arc, Mutex};

/// Bytes of a flag.
const FLAG: usize = size_of::<u32>();

/// Elements at multiples of which sums are staged: kernels load as many at once.
const STAGING_STEP: usize = 4;

/// Where a handshake is in a collective.
#[derive(Clone, Copy, Debug)]
enum Handshake {
    /// Every rank's memory may be written.
    Begin,
    /// Every rank's memory was written.
    End,
}

/// The exchange of a rank with others by copies.
#[derive(Debug)]
pub(super) struct PeerCopies {
    rank: usize,
    kernels: Arc<Kernels>,
    memory: SharedMemory,
    mapped: Mapped,
    releaser: Releaser,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// True if all ranks have agreed that they are done.
    shut_down: bool,
    /// The reason of an abort.
    aborted: Option<Error>,
}

impl PeerCopies {
    pub(super) fn new(
        context: &Arc<Context>,
        kernels: Arc<Kernels>,
        rank: usize,
        memory: SharedMemory,
        mapped: Mapped,
    ) -> Result<Self> {
        let flags = (memory.flags, flags(mapped.ranks()));
        // Words beyond the flags of ranks are spare, but for the last one, the count of calls.
        let area = memory.area.map(|(area, _)| (area, AREA_FLAGS - 1));
        let releaser = Releaser::new(Arc::clone(context), Stream::new(context)?, flags, area);
        Ok(Self { rank, kernels, memory, mapped, releaser, state: Mutex::default() })
    }

    /// Returns the other ranks, those after this one first, so that not all write into the same one at once.
    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        let ranks = self.mapped.ranks();
        (1..ranks).map(move |step| (self.rank + step) % ranks)
    }

    /// Returns the address of a rank's flag that `from` sets.
    fn flag(&self, rank: usize, from: usize, lane: Lane, handshake: Handshake) -> Result<DevicePtr> {
        let kind = 2 * (lane as usize) + handshake as usize;
        self.address(rank, self.memory.flags + ((kind * self.mapped.ranks() + from) * FLAG) as DevicePtr)
    }

    /// Returns the address, for this GPU, of memory of a rank that lies where `own` lies in this rank's.
    fn address(&self, rank: usize, own: DevicePtr) -> Result<DevicePtr> {
        if rank == self.rank {
            return Ok(own);
        }
        let within = |(base, bytes): &(DevicePtr, usize)| (*base..*base + *bytes as DevicePtr).contains(&own);
        match self.memory.buffers.iter().position(within) {
            Some(buffer) => Ok(self.mapped.base(rank, buffer) + (own - self.memory.buffers[buffer].0)),
            None => Err(Error::failed("a collective uses memory that ranks do not share")),
        }
    }

    /// Returns the place in the staging of a rank for data of another: those of other ranks, in their order.
    fn slot(owner: usize, from: usize) -> usize {
        if from < owner { from } else { from - 1 }
    }

    /// Sets this rank's flag on all others, waits for theirs, and resets them.
    fn handshake(&self, handshake: Handshake, on: On<'_>) -> Result<()> {
        let mut operations = Vec::with_capacity(3 * self.mapped.ranks());
        for rank in self.others() {
            operations.push(write(self.flag(rank, self.rank, on.lane, handshake)?, 1));
        }
        let own = self.others().map(|from| self.flag(self.rank, from, on.lane, handshake));
        let own = own.collect::<Result<Vec<_>>>()?;
        operations.extend(own.iter().map(|&flag| wait(flag)));
        operations.extend(own.iter().map(|&flag| write(flag, 0)));
        // SAFETY: flags are in memory of this rank and of others that is mapped for as long as `self` lives.
        let status = unsafe {
            let count = operations.len() as u32;
            sys::cuStreamBatchMemOp_v2(on.stream.raw(), count, operations.as_mut_ptr(), 0)
        };
        check(status, "wait for other ranks")
    }

    /// Returns the elements of staging that each other rank has of the staging for sums.
    fn staged_elements(&self) -> usize {
        self.memory.sums.1 / size_of::<f32>() / (self.mapped.ranks() - 1)
    }

    /// Sums tensors over ranks by one kernel, or without tensors lets ranks wait for each other. Returns
    /// false where there is no area for them, and on the stream of collectives: calls are counted, and those
    /// of two streams may run in another order on each rank.
    fn sum_at_once(&self, tensors: &[(DevicePtr, usize)], on: On<'_>) -> Result<bool> {
        let Some((area, capacity)) = self.memory.area.filter(|_| on.lane == Lane::Model) else {
            return Ok(false);
        };
        let areas: Vec<_> =
            (0..self.mapped.ranks()).map(|rank| self.address(rank, area)).collect::<Result<_>>()?;
        let Some((kernel, grid, args)) = sum_at_once(tensors, (&areas, capacity), self.rank) else {
            return Ok(false);
        };
        self.kernels.launch(on.stream, kernel, grid, &args).map(|()| true)
    }

    /// Fails with the reason of an abort.
    fn check_running(&self) -> Result<()> {
        match &lock(&self.state).aborted {
            Some(reason) => Err(reason.clone().context("the exchange with other ranks was stopped")),
            None => Ok(()),
        }
    }

    /// Adds up parts that their owners have staging for at once: other ranks write theirs into it, each from
    /// the element on that stands beside the part.
    fn sum_round(&self, parts: &[(OwnedSum, usize)], on: On<'_>) -> Result<()> {
        let stride = self.staged_elements();
        let place = |element: usize| self.memory.sums.0 + (element * size_of::<f32>()) as DevicePtr;
        self.handshake(Handshake::Begin, on)?;
        for owner in self.others() {
            for (part, at) in parts.iter().filter(|(part, _)| part.owner == owner) {
                let to = self.address(owner, place(Self::slot(owner, self.rank) * stride + at))?;
                on.stream.copy(to, part.at, part.elements * size_of::<f32>())?;
            }
        }
        self.handshake(Handshake::End, on)?;
        for (part, at) in parts.iter().filter(|(part, _)| part.owner == self.rank) {
            let (out, staged) = ((part.at, part.elements), (place(*at), stride));
            let (kernel, grid, args) = rank_sum(out, staged, (self.mapped.ranks(), self.rank));
            self.kernels.launch(on.stream, kernel, grid, &args)?;
        }
        Ok(())
    }
}

impl Transport for PeerCopies {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.mapped.ranks()
    }

    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)], on: On<'_>) -> Result<()> {
        self.check_running()?;
        if self.sum_at_once(tensors, on)? {
            return Ok(());
        }
        let whole = |&(at, elements): &(DevicePtr, usize)| OwnedSum { owner: self.rank, at, elements };
        let chunks = tensors.iter().map(whole).flat_map(|part| chunks(part, self.staged_elements()));
        let (mut round, mut staged) = (Vec::new(), 0);
        for chunk in chunks {
            if staged + chunk.elements > self.staged_elements() {
                self.sum_round(&round, on)?;
                (round, staged) = (Vec::new(), 0);
            }
            // Every rank is an owner of all of it.
            let everywhere = |owner| (OwnedSum { owner, ..chunk }, staged);
            round.extend((0..self.mapped.ranks()).map(everywhere));
            staged += chunk.elements.next_multiple_of(STAGING_STEP);
        }
        self.sum_round(&round, on)
    }

    fn all_gather(&self, tensors: &[Gathered], on: On<'_>) -> Result<()> {
        self.check_running()?;
        self.handshake(Handshake::Begin, on)?;
        for rank in self.others() {
            for tensor in tensors {
                on.stream.copy(self.address(rank, tensor.of_rank(self.rank))?, tensor.from, tensor.bytes)?;
            }
        }
        for tensor in tensors {
            on.stream.copy(tensor.of_rank(self.rank), tensor.from, tensor.bytes)?;
        }
        self.handshake(Handshake::End, on)
    }

    fn share(&self, tensor: Gathered, on: On<'_>) -> Result<()> {
        self.check_running()?;
        on.stream.copy(tensor.of_rank(self.rank), tensor.from, tensor.bytes)?;
        if self.sum_at_once(&[], on)? {
            return Ok(());
        }
        Err(Error::failed("ranks share rows on the model's stream only, and have an area of sums at once"))
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        let mut addresses = in_turn(to, bytes);
        for rank in self.others().filter(|&rank| rank < MAX_RANKS) {
            addresses[rank] = self.address(rank, addresses[rank])?;
        }
        Ok(addresses)
    }

    fn reduce_to_owners(&self, parts: &[OwnedSum], on: On<'_>) -> Result<()> {
        self.check_running()?;
        let capacity = self.staged_elements();
        let of = |owner| parts.iter().filter(move |part| part.owner == owner).copied();
        let queues: Vec<Vec<OwnedSum>> = (0..self.mapped.ranks())
            .map(|owner| of(owner).flat_map(|part| chunks(part, capacity)).collect())
            .collect();
        // All ranks make as many handshakes, those too that own less.
        for round in 0..queues.iter().map(Vec::len).max().unwrap_or(0) {
            let parts: Vec<_> = queues.iter().filter_map(|queue| Some((*queue.get(round)?, 0))).collect();
            self.sum_round(&parts, on)?;
        }
        Ok(())
    }

    fn gather_from_owners(&self, parts: &[OwnedCopy], on: On<'_>) -> Result<()> {
        self.check_running()?;
        self.handshake(Handshake::Begin, on)?;
        for part in parts.iter().filter(|part| part.owner == self.rank) {
            for rank in self.others() {
                on.stream.copy(self.address(rank, part.to)?, part.from, part.bytes)?;
            }
            if part.from != part.to {
                on.stream.copy(part.to, part.from, part.bytes)?;
            }
        }
        self.handshake(Handshake::End, on)
    }

    fn broadcast(&self, _address: DevicePtr, _bytes: usize, _on: On<'_>) -> Result<bool> {
        Ok(false)
    }

    fn abort(&self, error: &Error) {
        lock(&self.state).aborted.get_or_insert_with(|| error.clone());
        self.releaser.start();
    }

    fn leave(&self) {
        if !lock(&self.state).shut_down {
            self.abort(&Error::failed("this rank has ended"));
            self.releaser.drain();
        }
    }

    fn shutdown(&self) {
        lock(&self.state).shut_down = true;
        self.mapped.close();
    }

    fn close(&self) -> bool {
        self.mapped.close();
        true
    }
}

/// Divides a part into chunks of at most `elements`.
fn chunks(part: OwnedSum, elements: usize) -> impl Iterator<Item = OwnedSum> {
    (0..part.elements).step_by(elements.max(1)).map(move |first| OwnedSum {
        at: part.at + (first * size_of::<f32>()) as DevicePtr,
        elements: elements.min(part.elements - first),
        ..part
    })
}

fn write(address: DevicePtr, value: u32) -> Operation {
    let mut operation = Operation { pad: [0; 6] };
    // Without a flag that says otherwise, all memory written before is visible to whoever sees the value.
    operation.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: Type::CU_STREAM_MEM_OP_WRITE_VALUE_32,
        address,
        __bindgen_anon_1:
            sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 { value },
        flags: 0,
        alias: 0,
    };
    operation
}

fn wait(address: DevicePtr) -> Operation {
    let mut operation = Operation { pad: [0; 6] };
    operation.waitValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
        operation: Type::CU_STREAM_MEM_OP_WAIT_VALUE_32,
        address,
        __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
            value: 1,
        },
        flags: sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_EQ as u32,
        alias: 0,
    };
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_has_a_place_for_every_other_rank() {
        for owner in 0..4 {
            let places: Vec<usize> =
                (0..4).filter(|&from| from != owner).map(|from| PeerCopies::slot(owner, from)).collect();
            assert_eq!(places, [0, 1, 2]);
        }
    }

    #[test]
    fn chunks_cover_a_part() {
        let part = OwnedSum { owner: 1, at: 1000, elements: 10 };
        let found: Vec<_> = chunks(part, 4).map(|chunk| (chunk.owner, chunk.at, chunk.elements)).collect();
        assert_eq!(found, [(1, 1000, 4), (1, 1016, 4), (1, 1032, 2)]);
        assert_eq!(chunks(part, 10).count(), 1);
    }
}
