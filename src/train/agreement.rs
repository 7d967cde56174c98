//! What ranks tell each other at the end of a step, in one meeting.

use crate::device::comm::Communicator;
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use std::time::Duration;

/// What a rank has to say of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Word {
    /// 1 where its loss or gradient is not finite.
    bad: u64,
    /// 1 where somebody asked it to stop.
    stop: u64,
    /// Nanoseconds of the step in which it did not wait for other ranks.
    busy: u64,
}

/// What all ranks know after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Whether a rank saw a value that is not finite.
    pub bad: bool,
    /// Whether a rank was asked to stop.
    pub stop: bool,
    /// The rank that was busy the longest; `None` where a rank is alone.
    pub slowest: Option<usize>,
}

impl Word {
    pub(super) fn new(bad: bool, stop: bool, busy: Duration) -> Self {
        Self { bad: bad.into(), stop: stop.into(), busy: busy.as_nanos() as u64 }
    }
}

/// Meets the other ranks at the end of `step`.
///
/// # Errors
/// When a rank is lost.
pub(super) fn agree(comm: &dyn Communicator, step: u64, mine: Word) -> Result<Agreement> {
    let met = comm.gather(&format!("the end of step {step}"), bytemuck::bytes_of(&mine).to_vec())?;
    let words: Vec<Word> = met
        .parts()
        .map(|part| bytemuck::try_pod_read_unaligned(part))
        .collect::<Result<_, _>>()
        .map_err(|e| Error::failed(format!("a rank's word at the end of step {step}: {e}")))?;
    let slowest = words.iter().enumerate().max_by_key(|(rank, word)| (word.busy, std::cmp::Reverse(*rank)));
    Ok(Agreement {
        bad: words.iter().any(|word| word.bad > 0),
        stop: words.iter().any(|word| word.stop > 0),
        slowest: slowest.map(|(rank, _)| rank).filter(|_| words.len() > 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::comm::{Alone, Group};

    #[test]
    fn one_rank_speaks_for_all() {
        let group = Group::new(3);
        let agreed: Vec<Agreement> = std::thread::scope(|scope| {
            let ranks = (0..3).map(|rank| {
                let comm = group.local(rank);
                let busy = Duration::from_millis([3, 9, 9][rank]);
                scope.spawn(move || agree(&comm, 4, Word::new(rank == 2, rank == 1, busy)).unwrap())
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(
            agreed.iter().all(|all| *all == Agreement { bad: true, stop: true, slowest: Some(1) }),
            "{agreed:?}"
        );
        let alone = agree(&Alone, 1, Word::default()).unwrap();
        assert_eq!(alone, Agreement { bad: false, stop: false, slowest: None });
    }
}
