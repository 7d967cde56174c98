//! Finds ranks that hang: they are alive but show no progress for longer than the recipe allows.

use super::group::{Group, RankStatus};
use super::poll::{Poll, interval};
use crate::device::communicator::RankPhase;
use crate::error::{Error, Result};
use crate::liveness::parts_done;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Watches a group from its own thread until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    _poll: Poll,
}

impl Watchdog {
    /// Starts a thread that aborts the run of a group when a rank shows no progress for longer than
    /// `timeout`. Progress is a change of status, bytes over the rank's connection, or, for the ranks `here`
    /// in this process, any part of work that the process reports.
    ///
    /// # Errors
    /// If the OS cannot start the thread.
    pub fn start(group: &Arc<Group>, here: Vec<usize>, timeout: Duration) -> Result<Self> {
        let group = Arc::clone(group);
        let mut parts = parts_done();
        let look = move |suspended| {
            let now_done = parts_done();
            if std::mem::replace(&mut parts, now_done) != now_done {
                here.iter().for_each(|rank| group.progressed(*rank));
            }
            match find_hang(&group.statuses(), Instant::now(), timeout + suspended) {
                None => ControlFlow::Continue(()),
                Some(reason) => {
                    group.abort(&Error::failed(reason));
                    ControlFlow::Break(())
                }
            }
        };
        let poll = Poll::start("xrun-watchdog", interval(timeout), look);
        let poll = poll.map_err(|e| Error::failed(format!("cannot watch ranks: {e}")))?;
        Ok(Self { _poll: poll })
    }
}

/// Returns why the run must be aborted, if it must: the ranks that were silent for longer than `timeout`, and
/// the status of the others.
///
/// A rank in a collective waits for another rank, so it is never blamed. A rank that waits for its GPU may
/// also be waiting for another rank, so it is blamed only if no rank hangs on the host.
fn find_hang(ranks: &[RankStatus], now: Instant, timeout: Duration) -> Option<String> {
    let silent = |rank: &RankStatus| now.saturating_duration_since(rank.since) > timeout;
    let overdue = |on_device: bool| -> Vec<usize> {
        let suspect = |rank: &RankStatus| match rank.phase {
            _ if rank.waits_in.is_some() => false,
            RankPhase::Finished => false,
            RankPhase::WaitingForDevice => on_device,
            RankPhase::Working(_) => !on_device,
        };
        let found = ranks.iter().enumerate().filter(|(_, rank)| suspect(rank) && silent(rank));
        found.map(|(number, _)| number).collect()
    };
    let blamed = Some(overdue(false)).filter(|found| !found.is_empty()).unwrap_or_else(|| overdue(true));
    let first = *blamed.first()?;
    let seconds = now.saturating_duration_since(ranks[first].since).as_secs_f64();
    let list = |numbers: &mut dyn Iterator<Item = usize>| -> String {
        let each: Vec<String> = numbers.map(|rank| format!("rank {rank} {}", ranks[rank])).collect();
        each.join("; ")
    };
    let mut message = format!("no sign of {} for {seconds:.0} s: ", named_ranks(&blamed));
    message += &list(&mut blamed.iter().copied());
    let mut others = (0..ranks.len()).filter(|rank| !blamed.contains(rank)).peekable();
    if others.peek().is_some() {
        let _ = write!(message, ". Other ranks: {}", list(&mut others));
    }
    message += ". If it is only slow, raise parallelism.timeout_s";
    Some(message)
}

/// Lists ranks, as in `rank 1` or `ranks 0, 2`.
pub fn named_ranks(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::communicator::Communicator;

    const COMPUTES: RankPhase = RankPhase::working("computes");

    fn rank(phase: RankPhase, waits_in: Option<&str>, silent_s: u64, now: Instant) -> RankStatus {
        let since = now.checked_sub(Duration::from_secs(silent_s)).unwrap();
        RankStatus { step: 7, phase, waits_in: waits_in.map(str::to_owned), since }
    }

    #[test]
    fn a_rank_that_computes_too_long_is_blamed_and_not_those_that_wait_for_it() {
        let now = Instant::now() + Duration::from_secs(1000);
        let timeout = Duration::from_secs(30);
        let waiting = |silent| rank(COMPUTES, Some("grads.bucket.3"), silent, now);
        let busy = |silent| rank(COMPUTES, None, silent, now);
        let gpu = |silent| rank(RankPhase::WaitingForDevice, None, silent, now);
        assert_eq!(find_hang(&[waiting(40), busy(29)], now, timeout), None);
        let said = find_hang(&[waiting(40), gpu(35), busy(31)], now, timeout).unwrap();
        assert!(
            said.starts_with("no sign of rank 2 for 31 s: rank 2 computes, at step 7. Other ranks: "),
            "{said}"
        );
        assert!(
            said.contains("rank 0 waits in grads.bucket.3, at step 7; rank 1 waits for its GPU"),
            "{said}"
        );
        let said = find_hang(&[gpu(40), gpu(35)], now, timeout).unwrap();
        assert!(said.starts_with("no sign of ranks 0, 1 for 40 s"), "{said}");
        assert_eq!(find_hang(&[rank(RankPhase::Finished, None, 99, now), waiting(40)], now, timeout), None);
    }

    #[test]
    fn a_rank_that_hangs_aborts_the_run_and_is_named() {
        let group = Group::new(2);
        let watchdog = Watchdog::start(&group, Vec::new(), Duration::from_millis(60)).unwrap();
        group.set_status(1, 3, COMPUTES);
        let error = group.local(0).barrier("the end of step 3").unwrap_err();
        assert!(error.message().contains("no sign of rank 1"), "{error}");
        assert!(error.message().contains("rank 0 waits in the end of step 3"), "{error}");
        drop(watchdog);
    }
}
