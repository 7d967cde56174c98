//! Collectives between the ranks of a run, on the host.
//!
//! Every rank calls the same collectives in the same order. Sums are added in rank order, so their bits
//! depend neither on which rank arrives first nor on how ranks were started. `ranks` implements communicators
//! for several ranks.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Callback that runs once, with the reason, when the run of all ranks is aborted.
pub type AbortHook = Box<dyn FnOnce(&Error) + Send>;

/// One rank's access to the other ranks. Every rank calls the same collectives in the same order.
pub trait Communicator: Send + Sync + std::fmt::Debug {
    /// Returns this rank, counted from 0.
    fn rank(&self) -> usize;
    /// Returns the number of ranks.
    fn world_size(&self) -> usize;
    /// Blocks until all ranks have called the collective with this name, and returns the combined result.
    ///
    /// # Errors
    /// If another rank failed, left, or called a collective with a different name.
    fn collective(&self, name: &str, contribution: Contribution) -> Result<Arc<CollectiveResult>>;
    /// Publishes this rank's status for the watchdog, until the next collective or the next call.
    fn set_status(&self, step: u64, phase: RankPhase);
    /// Sends the launcher a report that outlives this rank. Ignored if there is no launcher.
    fn send_exit_report(&self, _report: &[u8]) {}
    /// Aborts the run: pending and future collectives of all other ranks fail with this error.
    fn abort(&self, error: &Error);
    /// Returns the reason why the run was aborted; `None` if it was not.
    fn abort_reason(&self) -> Option<Error>;
    /// Registers a hook for an abort by any rank; calls it immediately if the run is already aborted. The
    /// hook is called from another thread and must not block.
    fn on_abort(&self, hook: AbortHook);

    /// Replaces `values` by their sums over ranks, added in rank order.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails, or lengths differ between ranks.
    fn all_reduce_sum_f32(&self, name: &str, values: &mut [f32]) -> Result<()> {
        // With one rank the sum is the input, so skip the copies.
        if self.world_size() == 1 {
            return Ok(());
        }
        let all = 0..values.len();
        self.reduce_scatter_sum_f32(name, values, std::slice::from_ref(&all))
    }

    /// Sums like [`Communicator::all_reduce_sum_f32`], in f64, for gradient checks and losses.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails, or lengths differ between ranks.
    fn all_reduce_sum_f64(&self, name: &str, values: &mut [f64]) -> Result<()> {
        if self.world_size() == 1 {
            return Ok(());
        }
        let all = 0..values.len();
        self.reduce_scatter_sum_f64(name, values, std::slice::from_ref(&all))
    }

    /// Replaces the elements of `values` in the `owned` ranges by their sums over ranks, added in rank order.
    /// Leaves the other elements unchanged. Each rank may own different ranges.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails, or lengths differ between ranks.
    fn reduce_scatter_sum_f32(&self, name: &str, values: &mut [f32], owned: &[Range<usize>]) -> Result<()> {
        match &*self.collective(name, Contribution::SumF32(values.to_vec()))? {
            CollectiveResult::SumF32(sum) if sum.len() == values.len() => copy_ranges(values, sum, owned),
            _ => return Err(mismatch(name)),
        }
        Ok(())
    }

    /// Sums like [`Communicator::reduce_scatter_sum_f32`], in f64, for gradient checks.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails, or lengths differ between ranks.
    fn reduce_scatter_sum_f64(&self, name: &str, values: &mut [f64], owned: &[Range<usize>]) -> Result<()> {
        match &*self.collective(name, Contribution::SumF64(values.to_vec()))? {
            CollectiveResult::SumF64(sum) if sum.len() == values.len() => copy_ranges(values, sum, owned),
            _ => return Err(mismatch(name)),
        }
        Ok(())
    }

    /// Returns the bytes of every rank, in rank order, on every rank. Lengths may differ.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails.
    fn gather(&self, name: &str, bytes: Vec<u8>) -> Result<Arc<CollectiveResult>> {
        let result = self.collective(name, Contribution::Gather(bytes))?;
        if matches!(&*result, CollectiveResult::Bytes(all) if all.len() == self.world_size()) {
            Ok(result)
        } else {
            Err(mismatch(name))
        }
    }

    /// Returns the bytes of rank 0 on every rank; bytes from other ranks are ignored.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails.
    fn broadcast(&self, name: &str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let bytes = if self.rank() == 0 { bytes } else { Vec::new() };
        match &*self.collective(name, Contribution::Broadcast(bytes))? {
            CollectiveResult::Bytes(all) if all.len() == 1 => Ok(all[0].clone()),
            _ => Err(mismatch(name)),
        }
    }

    /// Returns the largest value over ranks.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails.
    fn all_reduce_max(&self, name: &str, value: u64) -> Result<u64> {
        let result = self.gather(name, value.to_le_bytes().to_vec())?;
        let numbers = result.parts().map(|part| part.try_into().map(u64::from_le_bytes));
        let numbers: Result<Vec<u64>, _> = numbers.collect();
        numbers.ok().and_then(|all| all.into_iter().max()).ok_or_else(|| mismatch(name))
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// If [`Communicator::collective`] fails.
    fn barrier(&self, name: &str) -> Result<()> {
        self.gather(name, Vec::new()).map(|_| ())
    }
}

/// State of a rank between collectives, for the watchdog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankPhase {
    /// Busy on the host. The label completes a sentence whose subject is the rank: "computes", "evaluates".
    Working(Cow<'static, str>),
    /// Waiting for its device, which may be waiting for another rank.
    WaitingForDevice,
    /// Finished: from now on neither silence nor the end of the rank's process is an error.
    Finished,
}

impl RankPhase {
    /// Creates the phase of work on the host with this label.
    pub const fn working(label: &'static str) -> Self {
        Self::Working(Cow::Borrowed(label))
    }

    /// Returns the phase as the predicate of "rank 2 …".
    pub fn as_str(&self) -> &str {
        match self {
            RankPhase::Working(label) => label,
            RankPhase::WaitingForDevice => "waits for its GPU",
            RankPhase::Finished => "is done",
        }
    }
}

/// Input of one rank to a collective.
#[derive(Clone, Debug, PartialEq)]
pub enum Contribution {
    /// Values to be summed elementwise.
    SumF32(Vec<f32>),
    /// Values to be summed elementwise.
    SumF64(Vec<f64>),
    /// Bytes to be gathered.
    Gather(Vec<u8>),
    /// Bytes to be sent to all ranks; only the bytes of rank 0 count.
    Broadcast(Vec<u8>),
}

/// Output of a collective, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub enum CollectiveResult {
    /// Sums over ranks.
    SumF32(Vec<f32>),
    /// Sums over ranks.
    SumF64(Vec<f64>),
    /// The bytes of every rank in rank order, or, for a broadcast, only the bytes of rank 0.
    Bytes(Vec<Vec<u8>>),
}

impl CollectiveResult {
    /// Returns the bytes of every rank, in rank order; nothing for sums.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let parts = if let CollectiveResult::Bytes(all) = self { all.as_slice() } else { &[] };
        parts.iter().map(Vec::as_slice)
    }
}

fn copy_ranges<T: Copy>(to: &mut [T], from: &[T], ranges: &[Range<usize>]) {
    for range in ranges {
        to[range.clone()].copy_from_slice(&from[range.clone()]);
    }
}

fn mismatch(name: &str) -> Error {
    Error::failed(format!("ranks called different collectives, or with different lengths, at {name}"))
}

/// Combines the contributions of all ranks, given in rank order. Sums are added in this order, so that the
/// result does not depend on the order of arrival.
///
/// # Errors
/// If contributions have different kinds or lengths.
pub fn combine(name: &str, contributions: Vec<Contribution>) -> Result<CollectiveResult> {
    let mut contributions = contributions.into_iter();
    let first = contributions.next().ok_or_else(|| Error::failed("a collective without ranks"))?;
    let mut result = match first {
        Contribution::SumF32(values) => CollectiveResult::SumF32(values),
        Contribution::SumF64(values) => CollectiveResult::SumF64(values),
        Contribution::Gather(bytes) => CollectiveResult::Bytes(vec![bytes]),
        Contribution::Broadcast(bytes) => {
            let same = contributions.all(|other| matches!(other, Contribution::Broadcast(_)));
            return if same { Ok(CollectiveResult::Bytes(vec![bytes])) } else { Err(mismatch(name)) };
        }
    };
    for next in contributions {
        match (&mut result, next) {
            (CollectiveResult::SumF32(sum), Contribution::SumF32(more)) if sum.len() == more.len() => {
                sum.iter_mut().zip(more).for_each(|(a, b)| *a += b);
            }
            (CollectiveResult::SumF64(sum), Contribution::SumF64(more)) if sum.len() == more.len() => {
                sum.iter_mut().zip(more).for_each(|(a, b)| *a += b);
            }
            (CollectiveResult::Bytes(all), Contribution::Gather(more)) => all.push(more),
            _ => return Err(mismatch(name)),
        }
    }
    Ok(result)
}

/// Communicator for a run with one rank: every collective returns its own input.
#[derive(Debug, Default)]
pub struct SingleRank;

impl Communicator for SingleRank {
    fn rank(&self) -> usize {
        0
    }
    fn world_size(&self) -> usize {
        1
    }
    fn collective(&self, name: &str, contribution: Contribution) -> Result<Arc<CollectiveResult>> {
        combine(name, vec![contribution]).map(Arc::new)
    }
    fn set_status(&self, _step: u64, _phase: RankPhase) {}
    fn abort(&self, _error: &Error) {}
    fn abort_reason(&self) -> Option<Error> {
        None
    }
    fn on_abort(&self, _hook: AbortHook) {}
}
