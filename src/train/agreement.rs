//! What ranks tell each other at the end of a step, in one meeting.

use crate::device::communicator::Communicator;
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
    /// Nanoseconds of the step.
    took: u64,
}

/// What all ranks know after a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// Whether a rank saw a value that is not finite.
    pub bad: bool,
    /// Whether a rank was asked to stop.
    pub stop: bool,
    /// Which part of the step each rank was busy, did not wait for others; none where a rank is alone.
    pub busy: Vec<f64>,
    /// The rank that was busy the longest; `None` where a rank is alone.
    pub slowest: Option<usize>,
}

impl Word {
    /// Of a step that took `took`, in `waited` of which this rank waited for others.
    pub(super) fn new(bad: bool, stop: bool, took: Duration, waited: Duration) -> Self {
        let (took, waited) = (took.as_nanos() as u64, waited.as_nanos() as u64);
        Self { bad: bad.into(), stop: stop.into(), busy: took.saturating_sub(waited), took }
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
        .map(bytemuck::try_pod_read_unaligned)
        .collect::<Result<_, _>>()
        .map_err(|e| Error::failed(format!("a rank's word at the end of step {step}: {e}")))?;
    let several = words.len() > 1;
    let busy = words.iter().filter(|_| several).map(|word| word.busy as f64 / word.took.max(1) as f64);
    let slowest = words.iter().enumerate().max_by_key(|(rank, word)| (word.busy, std::cmp::Reverse(*rank)));
    Ok(Agreement {
        bad: words.iter().any(|word| word.bad > 0),
        stop: words.iter().any(|word| word.stop > 0),
        busy: busy.collect(),
        slowest: slowest.map(|(rank, _)| rank).filter(|_| several),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::communicator::Alone;
    use crate::ranks::Group;

    #[test]
    fn one_rank_speaks_for_all() {
        let group = Group::new(3);
        let ms = Duration::from_millis;
        let agreed: Vec<Agreement> = std::thread::scope(|scope| {
            let ranks = (0..3).map(|rank| {
                let comm = group.local(rank);
                let waited = ms([15, 5, 5][rank]);
                scope.spawn(move || agree(&comm, 4, Word::new(rank == 2, rank == 1, ms(20), waited)).unwrap())
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let all = Agreement { bad: true, stop: true, busy: vec![0.25, 0.75, 0.75], slowest: Some(1) };
        assert!(agreed.iter().all(|each| *each == all), "{agreed:?}");
        let alone = agree(&Alone, 1, Word::new(false, false, ms(9), ms(0))).unwrap();
        assert_eq!(alone, Agreement { bad: false, stop: false, busy: vec![], slowest: None });
    }
}
