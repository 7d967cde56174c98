//! How ranks talk on the host: one trait, and its implementations within a process and between processes.
//!
//! ```text
//! threads:    Local ─┐                         processes:  Remote ═ line ═ Hub ─┐
//!             Local ─┼─ Group (meets, watches)             Remote ═ line ═ Hub ─┼─ Group
//!             Local ─┘                         (rank 0 of an external launcher: Local)
//! ```
//!
//! Every rank comes to the same meetings in the same order. Wherever ranks are, one [`Group`] adds in rank order, so
//! sums have the same bits whoever came first and however ranks were started.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the error of a rank says when it ended only because another one did.
pub const STOPPED_BY_ANOTHER: &str = "another rank stopped the run";

/// What is called once, with the reason, when the run of all ranks is ended.
pub type Hook = Box<dyn FnOnce(&Error) + Send>;

/// What a rank can ask of the others. Every rank calls the same methods in the same order.
pub trait Communicator: Send + Sync + std::fmt::Debug {
    /// This rank, from 0.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn world(&self) -> usize;
    /// Comes to a meeting of all ranks: gives what is this rank's, and takes what came of all.
    ///
    /// # Errors
    /// When another rank failed or left, or came to another meeting.
    fn meet(&self, meeting: &str, mine: Deposit) -> Result<Arc<Outcome>>;
    /// Says what this rank does from now on, until it comes to a meeting or says otherwise.
    fn now(&self, step: u64, activity: Activity);
    /// Says something that outlives this rank, to a launcher that wants to know how it ended.
    fn last_words(&self, _words: &[u8]) {}
    /// Makes the calls of all other ranks, pending and future, fail with this reason and of this kind.
    fn abort(&self, error: &Error);
    /// Why the run of all ranks was ended, where it was.
    fn ended(&self) -> Option<Error>;
    /// What to do when any rank ends the run; at once where one did. It is called from another thread, and must not wait.
    fn on_abort(&self, hook: Hook);

    /// Replaces `values` by the sum over ranks, added in rank order, the same bits on every rank.
    ///
    /// # Errors
    /// As [`Communicator::meet`], and when the lengths differ.
    fn all_reduce_sum_f32(&self, meeting: &str, values: &mut [f32]) -> Result<()> {
        match &*self.meet(meeting, Deposit::SumF32(values.to_vec()))? {
            Outcome::SumF32(sum) if sum.len() == values.len() => values.copy_from_slice(sum),
            _ => return Err(mixed_up(meeting)),
        }
        Ok(())
    }

    /// As [`Communicator::all_reduce_sum_f32`], for gradient checks and losses.
    ///
    /// # Errors
    /// As there.
    fn all_reduce_sum_f64(&self, meeting: &str, values: &mut [f64]) -> Result<()> {
        match &*self.meet(meeting, Deposit::SumF64(values.to_vec()))? {
            Outcome::SumF64(sum) if sum.len() == values.len() => values.copy_from_slice(sum),
            _ => return Err(mixed_up(meeting)),
        }
        Ok(())
    }

    /// What every rank gives, in rank order, on every rank.
    ///
    /// # Errors
    /// As [`Communicator::meet`].
    fn gather(&self, meeting: &str, mine: Vec<u8>) -> Result<Arc<Outcome>> {
        let met = self.meet(meeting, Deposit::Bytes(mine))?;
        if matches!(&*met, Outcome::Bytes(all) if all.len() == self.world()) {
            Ok(met)
        } else {
            Err(mixed_up(meeting))
        }
    }

    /// What rank 0 gives, on every rank; the others' bytes are passed over.
    ///
    /// # Errors
    /// As [`Communicator::meet`].
    fn broadcast(&self, meeting: &str, mine: Vec<u8>) -> Result<Vec<u8>> {
        let mine = if self.rank() == 0 { mine } else { Vec::new() };
        match &*self.meet(meeting, Deposit::FromFirst(mine))? {
            Outcome::Bytes(all) if all.len() == 1 => Ok(all[0].clone()),
            _ => Err(mixed_up(meeting)),
        }
    }

    /// The largest value over ranks.
    ///
    /// # Errors
    /// As [`Communicator::meet`].
    fn all_reduce_max(&self, meeting: &str, value: u64) -> Result<u64> {
        let met = self.gather(meeting, value.to_le_bytes().to_vec())?;
        let numbers = met.parts().map(|part| part.try_into().map(u64::from_le_bytes));
        let numbers: Result<Vec<u64>, _> = numbers.collect();
        numbers.ok().and_then(|all| all.into_iter().max()).ok_or_else(|| mixed_up(meeting))
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// As [`Communicator::meet`].
    fn barrier(&self, meeting: &str) -> Result<()> {
        self.gather(meeting, Vec::new()).map(|_| ())
    }
}

/// What a rank brings to a meeting.
#[derive(Clone, Debug, PartialEq)]
pub enum Deposit {
    /// Values to be added.
    SumF32(Vec<f32>),
    /// Values to be added.
    SumF64(Vec<f64>),
    /// Bytes that all ranks get.
    Bytes(Vec<u8>),
    /// Bytes that all ranks get of rank 0 alone.
    FromFirst(Vec<u8>),
}

/// What came of a meeting.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The sums.
    SumF32(Vec<f32>),
    /// The sums.
    SumF64(Vec<f64>),
    /// The bytes of every rank, in rank order; of rank 0 alone where only it was asked.
    Bytes(Vec<Vec<u8>>),
}

impl Outcome {
    /// The bytes of every rank, in rank order; none of sums.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let parts = if let Outcome::Bytes(all) = self { all.as_slice() } else { &[] };
        parts.iter().map(Vec::as_slice)
    }
}

/// What a rank does between meetings, for who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Opens corpus, device and memory.
    Begins,
    /// Gives its device a step, or computes one.
    Steps,
    /// Waits for its GPU.
    Waits,
    /// Evaluates.
    Evaluates,
    /// Compares its parameters with those of the others.
    Compares,
    /// Writes: rows, samples, a checkpoint.
    Writes,
    /// Is done, and owes nobody an answer.
    Left,
}

impl Activity {
    /// The activity in words, as in "rank 2 …".
    pub fn as_str(self) -> &'static str {
        match self {
            Activity::Begins => "begins",
            Activity::Steps => "computes",
            Activity::Waits => "waits for its GPU",
            Activity::Evaluates => "evaluates",
            Activity::Compares => "compares parameters",
            Activity::Writes => "writes results",
            Activity::Left => "is done",
        }
    }
}

fn mixed_up(meeting: &str) -> Error {
    Error::failed(format!("ranks met for different things at {meeting}"))
}

/// Adds in rank order, so that the result does not depend on who came first.
///
/// # Errors
/// When ranks brought different things, or as many values as others did not.
pub fn reduce(meeting: &str, deposits: Vec<Deposit>) -> Result<Outcome> {
    let mut deposits = deposits.into_iter();
    let first = deposits.next().ok_or_else(|| Error::failed("a meeting of no ranks"))?;
    let mut outcome = match first {
        Deposit::SumF32(values) => Outcome::SumF32(values),
        Deposit::SumF64(values) => Outcome::SumF64(values),
        Deposit::Bytes(bytes) => Outcome::Bytes(vec![bytes]),
        Deposit::FromFirst(bytes) => {
            let alike = deposits.all(|other| matches!(other, Deposit::FromFirst(_)));
            return if alike { Ok(Outcome::Bytes(vec![bytes])) } else { Err(mixed_up(meeting)) };
        }
    };
    for next in deposits {
        match (&mut outcome, next) {
            (Outcome::SumF32(sum), Deposit::SumF32(more)) if sum.len() == more.len() => {
                sum.iter_mut().zip(more).for_each(|(a, b)| *a += b);
            }
            (Outcome::SumF64(sum), Deposit::SumF64(more)) if sum.len() == more.len() => {
                sum.iter_mut().zip(more).for_each(|(a, b)| *a += b);
            }
            (Outcome::Bytes(all), Deposit::Bytes(more)) => all.push(more),
            _ => return Err(mixed_up(meeting)),
        }
    }
    Ok(outcome)
}

/// The communicator of a run of one rank: every meeting is its own.
#[derive(Debug, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }
    fn world(&self) -> usize {
        1
    }
    fn meet(&self, meeting: &str, mine: Deposit) -> Result<Arc<Outcome>> {
        reduce(meeting, vec![mine]).map(Arc::new)
    }
    fn all_reduce_sum_f32(&self, _meeting: &str, _values: &mut [f32]) -> Result<()> {
        Ok(())
    }
    fn all_reduce_sum_f64(&self, _meeting: &str, _values: &mut [f64]) -> Result<()> {
        Ok(())
    }
    fn now(&self, _step: u64, _activity: Activity) {}
    fn abort(&self, _error: &Error) {}
    fn ended(&self) -> Option<Error> {
        None
    }
    fn on_abort(&self, _hook: Hook) {}
}
