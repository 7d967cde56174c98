//! How ranks talk: one trait, and its in-process implementation on the CPU.

use crate::error::{Error, Result};
use std::sync::{Arc, Condvar, Mutex};

/// What the error of a rank says when it ended only because another one did.
pub const STOPPED_BY_ANOTHER: &str = "another rank stopped the run";

/// What a rank can ask of the others. Every rank calls the same methods in the same order.
pub trait Communicator: Send + Sync + std::fmt::Debug {
    /// This rank, from 0.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn world(&self) -> usize;
    /// Replaces `values` by the sum over ranks, added in rank order, the same bits on every rank.
    ///
    /// # Errors
    /// When another rank failed or left, or the lengths differ.
    fn all_reduce_sum_f32(&self, values: &mut [f32]) -> Result<()>;
    /// As [`Communicator::all_reduce_sum_f32`], for gradient checks and losses.
    ///
    /// # Errors
    /// As there.
    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<()>;
    /// The largest value over ranks.
    ///
    /// # Errors
    /// As for sums.
    fn all_reduce_max(&self, value: u64) -> Result<u64>;
    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// As for sums.
    fn barrier(&self) -> Result<()> {
        self.all_reduce_max(0).map(|_| ())
    }
    /// Makes the calls of all other ranks, pending and future, fail with this reason.
    fn abort(&self, reason: &str);
}

/// The communicator of a run of one rank: every collective is the identity.
#[derive(Debug, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }
    fn world(&self) -> usize {
        1
    }
    fn all_reduce_sum_f32(&self, _values: &mut [f32]) -> Result<()> {
        Ok(())
    }
    fn all_reduce_sum_f64(&self, _values: &mut [f64]) -> Result<()> {
        Ok(())
    }
    fn all_reduce_max(&self, value: u64) -> Result<u64> {
        Ok(value)
    }
    fn abort(&self, _reason: &str) {}
}

/// One rank of a group of threads of this process.
#[derive(Debug)]
pub struct InProcess {
    rank: usize,
    group: Arc<Group>,
}

#[derive(Debug)]
struct Group {
    world: usize,
    state: Mutex<Meeting>,
    changed: Condvar,
}

/// A collective in progress: ranks deposit, the last one computes, all collect.
#[derive(Debug, Default)]
struct Meeting {
    deposits: Vec<Option<Payload>>,
    result: Option<Payload>,
    collected: usize,
    aborted: Option<String>,
}

#[derive(Clone, Debug)]
enum Payload {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Max(u64),
}

impl InProcess {
    /// The communicators of a group of `world` ranks, in rank order.
    pub fn group(world: usize) -> Vec<InProcess> {
        let state = Mutex::new(Meeting { deposits: vec![None; world], ..Meeting::default() });
        let group = Arc::new(Group { world, state, changed: Condvar::new() });
        (0..world).map(|rank| InProcess { rank, group: Arc::clone(&group) }).collect()
    }

    fn meet(&self, mine: Payload) -> Result<Payload> {
        let poisoned = |_| Error::failed("a rank panicked inside a collective");
        let mut meeting = self.group.state.lock().map_err(poisoned)?;
        // A rank that is early for the next collective waits until the last one is fully collected.
        while meeting.aborted.is_none() && meeting.result.is_some() {
            meeting = self.group.changed.wait(meeting).map_err(poisoned)?;
        }
        meeting.check()?;
        meeting.deposits[self.rank] = Some(mine);
        if meeting.deposits.iter().all(Option::is_some) {
            let deposits: Vec<Payload> = meeting.deposits.iter_mut().filter_map(Option::take).collect();
            match reduce(deposits) {
                Ok(result) => meeting.result = Some(result),
                Err(e) => meeting.aborted = Some(e.message().to_string()),
            }
            self.group.changed.notify_all();
        }
        while meeting.aborted.is_none() && meeting.result.is_none() {
            meeting = self.group.changed.wait(meeting).map_err(poisoned)?;
        }
        meeting.check()?;
        meeting.collected += 1;
        let last = meeting.collected == self.group.world;
        let result = if last { meeting.result.take() } else { meeting.result.clone() };
        if last {
            meeting.collected = 0;
            self.group.changed.notify_all();
        }
        result.ok_or_else(|| Error::failed("a collective ended without a result"))
    }
}

impl Meeting {
    fn check(&self) -> Result<()> {
        match &self.aborted {
            Some(reason) => Err(Error::failed(format!("{STOPPED_BY_ANOTHER}: {reason}"))),
            None => Ok(()),
        }
    }
}

/// Adds in rank order, so that the result does not depend on who came first.
fn reduce(deposits: Vec<Payload>) -> Result<Payload> {
    let mut deposits = deposits.into_iter();
    let first = deposits.next().ok_or_else(|| Error::failed("a collective of no ranks"))?;
    deposits.try_fold(first, |sum, next| match (sum, next) {
        (Payload::F32(a), Payload::F32(b)) if a.len() == b.len() => {
            Ok(Payload::F32(a.into_iter().zip(b).map(|(a, b)| a + b).collect()))
        }
        (Payload::F64(a), Payload::F64(b)) if a.len() == b.len() => {
            Ok(Payload::F64(a.into_iter().zip(b).map(|(a, b)| a + b).collect()))
        }
        (Payload::Max(a), Payload::Max(b)) => Ok(Payload::Max(a.max(b))),
        _ => Err(Error::failed("ranks met in different collectives")),
    })
}

impl Communicator for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.group.world
    }

    fn all_reduce_sum_f32(&self, values: &mut [f32]) -> Result<()> {
        match self.meet(Payload::F32(values.to_vec()))? {
            Payload::F32(sum) => values.copy_from_slice(&sum),
            _ => return Err(Error::failed("ranks met in different collectives")),
        }
        Ok(())
    }

    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<()> {
        match self.meet(Payload::F64(values.to_vec()))? {
            Payload::F64(sum) => values.copy_from_slice(&sum),
            _ => return Err(Error::failed("ranks met in different collectives")),
        }
        Ok(())
    }

    fn all_reduce_max(&self, value: u64) -> Result<u64> {
        match self.meet(Payload::Max(value))? {
            Payload::Max(max) => Ok(max),
            _ => Err(Error::failed("ranks met in different collectives")),
        }
    }

    fn abort(&self, reason: &str) {
        if let Ok(mut meeting) = self.group.state.lock() {
            meeting.aborted.get_or_insert_with(|| format!("rank {}: {reason}", self.rank));
        }
        self.group.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn sums_and_maxima_agree_on_every_rank() {
        let ranks = InProcess::group(4);
        thread::scope(|s| {
            for comm in &ranks {
                s.spawn(move || {
                    for round in 0..50u32 {
                        let mut v = vec![comm.rank() as f32 + round as f32; 1000];
                        comm.all_reduce_sum_f32(&mut v).unwrap();
                        assert!(v.iter().all(|x| *x == 6.0 + 4.0 * round as f32));
                        assert_eq!(comm.all_reduce_max(comm.rank() as u64).unwrap(), 3);
                    }
                });
            }
        });
    }

    #[test]
    fn a_rank_that_leaves_ends_the_others() {
        let ranks = InProcess::group(3);
        thread::scope(|s| {
            let (gone, waiting) = ranks.split_first().unwrap();
            let handles: Vec<_> = waiting.iter().map(|c| s.spawn(move || c.barrier())).collect();
            gone.abort("out of memory");
            for h in handles {
                let e = h.join().unwrap().unwrap_err();
                assert!(e.message().contains("rank 0: out of memory"), "{e}");
            }
        });
    }
}
