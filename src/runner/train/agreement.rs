//! The collective at the end of each step. Ranks exchange whether a value is not finite, requests to stop and
//! to save, how long each was busy, and what the sources of a mixture contribute to the loss.

use crate::device::communicator::Communicator;
use crate::error::{Error, Result};
use bytemuck::{Pod, Zeroable};
use std::time::Duration;

/// Requests of one rank at the end of a step. All ranks follow them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRequest {
    /// Stop once no step is queued.
    pub stop: bool,
    /// Save a checkpoint once no step is queued.
    pub save: bool,
}

/// Contribution of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct StepVote {
    /// 1 if the rank's loss or gradient is not finite.
    bad: u64,
    /// 1 if the rank was asked to stop.
    stop: u64,
    /// 1 if the rank was asked to save.
    save: u64,
    /// Nanoseconds of the step during which the rank did not wait for others.
    busy: u64,
    /// Duration of the step in nanoseconds.
    took: u64,
}

/// Combined result, the same on every rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// True if any rank has a value that is not finite.
    pub bad: bool,
    /// True if any rank was asked to stop.
    pub stop: bool,
    /// True if any rank was asked to save.
    pub save: bool,
    /// Fraction of the step during which each rank did not wait for others. Empty for a single rank.
    pub busy: Vec<f64>,
    /// The rank that was busy longest; `None` for a single rank.
    pub slowest: Option<usize>,
}

impl StepVote {
    /// Creates the vote of a rank whose step took `took`, of it `waited` waiting for others.
    pub(super) fn new(bad: bool, request: StepRequest, took: Duration, waited: Duration) -> Self {
        let (took, waited) = (took.as_nanos() as u64, waited.as_nanos() as u64);
        let StepRequest { stop, save } = request;
        Self {
            bad: bad.into(),
            stop: stop.into(),
            save: save.into(),
            busy: took.saturating_sub(waited),
            took,
        }
    }
}

/// Exchanges the votes of all ranks at the end of `step`, and adds up their `numbers`, in the order of ranks.
///
/// # Errors
/// If a rank is lost, or ranks have different counts of numbers.
pub(super) fn agree(
    comm: &dyn Communicator,
    step: u64,
    mine: StepVote,
    numbers: &[f64],
) -> Result<(Agreement, Vec<f64>)> {
    let sent = [bytemuck::bytes_of(&mine), bytemuck::cast_slice(numbers)].concat();
    let result = comm.gather(&format!("the end of step {step}"), sent)?;
    let mut sums = vec![0.0; numbers.len()];
    let mut votes = Vec::new();
    for part in result.parts() {
        let split = part.split_at_checked(size_of::<StepVote>());
        let Some((vote, more)) = split.filter(|(_, more)| more.len() == size_of_val(numbers)) else {
            return Err(Error::failed(format!("a rank sent {} bytes at the end of step {step}", part.len())));
        };
        votes.push(bytemuck::pod_read_unaligned::<StepVote>(vote));
        let more: Vec<f64> = bytemuck::pod_collect_to_vec(more);
        sums.iter_mut().zip(more).for_each(|(sum, number)| *sum += number);
    }
    let several = votes.len() > 1;
    let busy = votes.iter().filter(|_| several).map(|vote| vote.busy as f64 / vote.took.max(1) as f64);
    let slowest = votes.iter().enumerate().max_by_key(|(rank, vote)| (vote.busy, std::cmp::Reverse(*rank)));
    let agreement = Agreement {
        bad: votes.iter().any(|vote| vote.bad > 0),
        stop: votes.iter().any(|vote| vote.stop > 0),
        save: votes.iter().any(|vote| vote.save > 0),
        busy: busy.collect(),
        slowest: slowest.map(|(rank, _)| rank).filter(|_| several),
    };
    Ok((agreement, sums))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::communicator::SingleRank;
    use crate::ranks::Group;

    #[test]
    fn one_vote_counts_for_all_ranks() {
        let group = Group::new(3);
        let ms = Duration::from_millis;
        let agreed: Vec<(Agreement, Vec<f64>)> = std::thread::scope(|scope| {
            let ranks = (0..3).map(|rank| {
                let comm = group.local(rank);
                let waited = ms([15, 5, 5][rank]);
                scope.spawn(move || {
                    let request = StepRequest { stop: rank == 1, save: rank == 0 };
                    let numbers = [1.0 + rank as f64, 0.5];
                    agree(&comm, 4, StepVote::new(rank == 2, request, ms(20), waited), &numbers).unwrap()
                })
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let all =
            Agreement { bad: true, stop: true, save: true, busy: vec![0.25, 0.75, 0.75], slowest: Some(1) };
        let both = (all, vec![6.0, 1.5]);
        assert!(agreed.iter().all(|each| *each == both), "{agreed:?}");
        let vote = StepVote::new(false, StepRequest::default(), ms(9), ms(0));
        let (alone, sums) = agree(&SingleRank, 1, vote, &[0.25]).unwrap();
        assert_eq!(alone, Agreement { bad: false, stop: false, save: false, busy: vec![], slowest: None });
        assert_eq!(sums, [0.25]);
    }

    #[test]
    fn ranks_with_different_counts_of_numbers_are_refused() {
        let group = Group::new(2);
        let errors: Vec<String> = std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| {
                let comm = group.local(rank);
                let numbers = vec![1.0; rank];
                scope.spawn(move || {
                    agree(&comm, 7, StepVote::default(), &numbers).unwrap_err().message().to_owned()
                })
            });
            ranks.map(|rank| rank.join().unwrap()).into()
        });
        assert!(errors.iter().all(|error| error.contains("bytes at the end of step 7")), "{errors:?}");
    }
}
