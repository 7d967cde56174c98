//! Collectives by copies between the memories of GPUs.

use super::map::Mapped;
use super::memory::SharedMemory;
use super::release::Releaser;
use crate::device::cuda::context::Context;
use crate::device::cuda::kernels::Kernels;
use crate::device::cuda::stream::Stream;
use crate::device::cuda::transport::{Lane, On, Transport};
use crate::device::gpu::{
    AREA_FLAGS, Collective, DevicePtr, Gathered, MAX_COPIES, MAX_RANKS, OwnedCopy, OwnedSum, STAGING_STEP,
    SmallCopy, consecutive_addresses, copy_small, rank_sum, sum_at_once, wait_for_ranks,
};
use crate::error::{Error, Result};
use crate::lock::lock;
use std::sync::{Arc, Mutex};

/// A rank's exchange with other ranks by copies.
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
    /// Reason of an abort.
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
        // Words beyond the ranks' flags are spare, except the last one, which counts calls.
        let flags = memory.areas.map(|(area, _)| (area, AREA_FLAGS - 1));
        let releaser = Releaser::new(Arc::clone(context), Stream::new(context)?, flags);
        Ok(Self { rank, kernels, memory, mapped, releaser, state: Mutex::default() })
    }

    /// Returns the other ranks, beginning with the one after this rank, so that not all ranks write to the
    /// same one at once.
    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        let ranks = self.mapped.ranks();
        (1..ranks).map(move |step| (self.rank + step) % ranks)
    }

    /// Returns the address, on this GPU, of a rank's memory that corresponds to `own` in this rank's memory.
    fn address(&self, rank: usize, own: DevicePtr) -> Result<DevicePtr> {
        if rank == self.rank {
            return Ok(own);
        }
        let within = |(base, bytes): &(DevicePtr, usize)| (*base..*base + *bytes as DevicePtr).contains(&own);
        match self.memory.buffers.iter().position(within) {
            Some(buffer) => Ok(self.mapped.bases[rank][buffer] + (own - self.memory.buffers[buffer].0)),
            None => Err(Error::failed("a collective uses memory that ranks do not share")),
        }
    }

    /// Returns the index of `from` among the ranks other than `owner`: where its data goes in the owner's
    /// staging.
    fn slot(owner: usize, from: usize) -> usize {
        if from < owner { from } else { from - 1 }
    }

    /// Returns the areas of all ranks for a lane, and how many numbers each has room for. Each lane has its
    /// own areas because areas count calls, and ranks may run the calls of two lanes in different orders.
    fn areas(&self, lane: Lane) -> Result<(Vec<DevicePtr>, usize)> {
        let (area, capacity) = self.memory.areas[lane as usize];
        let areas = (0..self.mapped.ranks()).map(|rank| self.address(rank, area));
        Ok((areas.collect::<Result<_>>()?, capacity))
    }

    /// Makes ranks wait for each other, until the work that each has queued so far is done and visible to
    /// all.
    fn wait_for_ranks(&self, on: On<'_>) -> Result<()> {
        let (areas, _) = self.areas(on.lane)?;
        self.kernels.launch(on.stream, wait_for_ranks(&areas, self.rank))
    }

    /// Sums tensors over ranks with one kernel. Returns false if they have too many numbers for that.
    fn sum_at_once(&self, tensors: &[(DevicePtr, usize)], on: On<'_>) -> Result<bool> {
        let (areas, capacity) = self.areas(on.lane)?;
        let Some(launch) = sum_at_once(tensors, (&areas, capacity), self.rank) else { return Ok(false) };
        self.kernels.launch(on.stream, launch).map(|()| true)
    }

    /// Returns how many elements of the staging for sums each other rank gets.
    fn staged_elements(&self) -> usize {
        self.memory.sums.1 / size_of::<f32>() / (self.mapped.ranks() - 1)
    }

    /// Copies bytes, given as (to, from, bytes), or adds a small copy to those that one kernel makes
    /// together: separate copies of a few KiB take several microseconds each.
    fn copy(
        &self,
        (to, from, bytes): (DevicePtr, DevicePtr, usize),
        small: &mut Vec<SmallCopy>,
        on: On<'_>,
    ) -> Result<()> {
        let Some(copy) = SmallCopy::new(to, from, bytes) else { return on.stream.copy(to, from, bytes) };
        small.push(copy);
        Ok(())
    }

    /// Makes the small copies.
    fn copy_all(&self, small: &[SmallCopy], on: On<'_>) -> Result<()> {
        let mut launches = small.chunks(MAX_COPIES).map(copy_small);
        launches.try_for_each(|launch| self.kernels.launch(on.stream, launch))
    }

    /// Fails with the reason of an abort, if there was one.
    fn check_running(&self) -> Result<()> {
        match &lock(&self.state).aborted {
            Some(reason) => Err(reason.clone().context("the exchange with other ranks was stopped")),
            None => Ok(()),
        }
    }

    /// Sums parts that fit into their owners' staging at the same time. The number next to each part is the
    /// first element of the staging where other ranks write theirs.
    fn sum_round(&self, parts: &[(OwnedSum, usize)], on: On<'_>) -> Result<()> {
        let stride = self.staged_elements();
        let place = |element: usize| self.memory.sums.0 + (element * size_of::<f32>()) as DevicePtr;
        let mut small = Vec::new();
        self.wait_for_ranks(on)?;
        for owner in self.others() {
            for (part, at) in parts.iter().filter(|(part, _)| part.owner == owner) {
                let to = self.address(owner, place(Self::slot(owner, self.rank) * stride + at))?;
                self.copy((to, part.at, part.elements * size_of::<f32>()), &mut small, on)?;
            }
        }
        self.copy_all(&small, on)?;
        self.wait_for_ranks(on)?;
        for (part, at) in parts.iter().filter(|(part, _)| part.owner == self.rank) {
            let (out, staged) = ((part.at, part.elements), (place(*at), stride));
            let launch = rank_sum(out, staged, (self.mapped.ranks(), self.rank));
            self.kernels.launch(on.stream, launch)?;
        }
        Ok(())
    }

    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)], on: On<'_>) -> Result<()> {
        if self.sum_at_once(tensors, on)? {
            return Ok(());
        }
        // Every rank owns all of every tensor.
        let owned_by_all = tensors.iter().flat_map(|&(at, elements)| {
            (0..self.mapped.ranks()).map(move |owner| OwnedSum { owner, at, elements })
        });
        self.reduce_to_owners(&owned_by_all.collect::<Vec<_>>(), on)
    }

    fn all_gather(&self, tensors: &[Gathered], on: On<'_>) -> Result<()> {
        let mut small = Vec::new();
        self.wait_for_ranks(on)?;
        for tensor in tensors {
            let to = tensor.rank_address(self.rank);
            for rank in self.others().chain([self.rank]) {
                self.copy((self.address(rank, to)?, tensor.from, tensor.bytes), &mut small, on)?;
            }
        }
        self.copy_all(&small, on)?;
        self.wait_for_ranks(on)
    }

    fn reduce_to_owners(&self, parts: &[OwnedSum], on: On<'_>) -> Result<()> {
        let rounds = rounds(parts, self.mapped.ranks(), self.staged_elements());
        rounds.iter().try_for_each(|round| self.sum_round(round, on))
    }

    fn gather_from_owners(&self, parts: &[OwnedCopy], wait: bool, on: On<'_>) -> Result<()> {
        let mut small = Vec::new();
        if wait {
            self.wait_for_ranks(on)?;
        }
        for part in parts.iter().filter(|part| part.owner == self.rank) {
            for rank in self.others() {
                self.copy((self.address(rank, part.to)?, part.from, part.bytes), &mut small, on)?;
            }
            if part.from != part.to {
                self.copy((part.to, part.from, part.bytes), &mut small, on)?;
            }
        }
        self.copy_all(&small, on)?;
        self.wait_for_ranks(on)
    }
}

impl Transport for PeerCopies {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.mapped.ranks()
    }

    fn collective(&self, collective: Collective<'_>, on: On<'_>) -> Result<()> {
        self.check_running()?;
        match collective {
            Collective::AllReduceSum(tensors) => self.all_reduce_sum(tensors, on),
            Collective::AllGather(tensors) => self.all_gather(tensors, on),
            Collective::Share(tensor) => {
                on.stream.copy(tensor.rank_address(self.rank), tensor.from, tensor.bytes)?;
                self.wait_for_ranks(on)
            }
            Collective::ReduceToOwners(parts) => self.reduce_to_owners(parts, on),
            Collective::GatherFromOwners { parts, wait } => self.gather_from_owners(parts, wait, on),
        }
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        let mut addresses = consecutive_addresses(to, bytes);
        for rank in self.others().filter(|&rank| rank < MAX_RANKS) {
            addresses[rank] = self.address(rank, addresses[rank])?;
        }
        Ok(addresses)
    }

    fn broadcast(&self, _address: DevicePtr, _bytes: usize, _on: On<'_>) -> Result<bool> {
        Ok(false)
    }

    fn abort(&self, error: &Error) {
        let mut state = lock(&self.state);
        state.aborted.get_or_insert_with(|| error.clone());
        // After a shutdown nothing waits, and the flags may already be freed.
        if !state.shut_down {
            self.releaser.start();
        }
    }

    fn leave(&self) {
        if !lock(&self.state).shut_down {
            self.abort(&Error::failed("this rank has ended"));
            self.releaser.drain();
        }
    }

    fn shutdown(&self) {
        lock(&self.state).shut_down = true;
        self.releaser.end();
        self.mapped.close();
    }

    fn close(&self) -> bool {
        self.mapped.close();
        true
    }
}

/// Parts that are summed together, each with the element of its owner's staging at which the data of other
/// ranks begins.
type Round = Vec<(OwnedSum, usize)>;

/// Divides parts into rounds in which each owner has staging for `capacity` elements. Parts of an owner stay
/// in order and fill each round as far as there is room; longer parts are cut into chunks. All ranks make the
/// same number of rounds, even those that own less.
fn rounds(parts: &[OwnedSum], ranks: usize, capacity: usize) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for owner in 0..ranks {
        let (mut round, mut staged) = (0, 0);
        let owned = parts.iter().filter(|part| part.owner == owner);
        for chunk in owned.flat_map(|part| chunks(*part, capacity)) {
            if staged + chunk.elements > capacity {
                (round, staged) = (round + 1, 0);
            }
            if rounds.len() == round {
                rounds.push(Round::new());
            }
            rounds[round].push((chunk, staged));
            staged += chunk.elements.next_multiple_of(STAGING_STEP);
        }
    }
    rounds
}

/// Divides a part into chunks of at most `elements`.
fn chunks(part: OwnedSum, elements: usize) -> impl Iterator<Item = OwnedSum> {
    (0..part.elements).step_by(elements.max(1)).map(move |first| OwnedSum {
        at: part.at + (first * size_of::<f32>()) as DevicePtr,
        elements: elements.min(part.elements - first),
        ..part
    })
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
    fn an_owner_stages_several_parts_in_a_round() {
        let part = |owner, at, elements| OwnedSum { owner, at, elements };
        let [head, long, tail] = [part(1, 0, 6), part(1, 400, 90), part(1, 4000, 10)];
        let other = part(0, 800, 100);
        let found = rounds(&[head, other, long, tail], 2, 100);
        assert_eq!(found, [vec![(other, 0), (head, 0), (long, 8)], vec![(tail, 0)]]);
        let found = rounds(&[part(1, 0, 25)], 3, 10);
        let elements = found.iter().map(|round| round.iter().map(|(part, at)| (part.elements, *at)));
        let elements: Vec<Vec<_>> = elements.map(Iterator::collect).collect();
        assert_eq!(elements, [[(10, 0)], [(10, 0)], [(5, 0)]]);
        assert!(rounds(&[], 2, 10).is_empty());
    }

    #[test]
    fn chunks_cover_a_part() {
        let part = OwnedSum { owner: 1, at: 1000, elements: 10 };
        let found: Vec<_> = chunks(part, 4).map(|chunk| (chunk.owner, chunk.at, chunk.elements)).collect();
        assert_eq!(found, [(1, 1000, 4), (1, 1016, 4), (1, 1032, 2)]);
        assert_eq!(chunks(part, 10).count(), 1);
    }
}
