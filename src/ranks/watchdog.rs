//! Finds ranks that hang: alive, and no sign of them for longer than the recipe allows.

use super::group::{Group, Whereabouts};
use crate::device::communicator::Activity;
use crate::error::Error;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Watches a group from a thread of its own until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Ends the run of a group when a rank gives no sign for longer than `patience`.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn over(group: &Arc<Group>, patience: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let group = Arc::clone(group);
        let interval = (patience / 10).clamp(Duration::from_millis(20), Duration::from_secs(1));
        let watch = move || {
            let (mut looked, mut slept) = (Instant::now(), Duration::ZERO);
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                // A process that was stopped, and goes on, heard nothing meanwhile: that is nobody's silence.
                let overslept = looked.elapsed().saturating_sub(2 * interval);
                slept = if overslept.is_zero() { slept.saturating_sub(interval) } else { slept + overslept };
                looked = Instant::now();
                if let Some(reason) = verdict(&group.all_whereabouts(), Instant::now(), patience + slept) {
                    group.abort(&Error::failed(reason));
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("xrun-watchdog".to_owned()).spawn(watch)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A watchdog that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// Why the run has to end: the ranks that have given no sign for longer than `patience`, and where the others wait. Who
/// waits in a meeting hangs because of somebody else, and who waits for a GPU may do so.
fn verdict(ranks: &[Whereabouts], now: Instant, patience: Duration) -> Option<String> {
    let silent = |rank: &Whereabouts| now.saturating_duration_since(rank.since) > patience;
    let overdue = |gpu: bool| -> Vec<usize> {
        let suspect = |rank: &Whereabouts| match rank.activity {
            _ if rank.waits_in.is_some() => false,
            Activity::Left => false,
            Activity::Waits => gpu,
            _ => !gpu,
        };
        let found = ranks.iter().enumerate().filter(|(_, rank)| suspect(rank) && silent(rank));
        found.map(|(number, _)| number).collect()
    };
    let blamed = Some(overdue(false)).filter(|found| !found.is_empty()).unwrap_or_else(|| overdue(true));
    let first = *blamed.first()?;
    let seconds = now.saturating_duration_since(ranks[first].since).as_secs_f64();
    let mut text = format!("no sign of {} for {seconds:.0} s: ", named(&blamed));
    let said = |of: &mut dyn Iterator<Item = usize>| -> String {
        let each: Vec<String> = of.map(|rank| format!("rank {rank} {}", ranks[rank])).collect();
        each.join("; ")
    };
    text += &said(&mut blamed.iter().copied());
    let mut others = (0..ranks.len()).filter(|rank| !blamed.contains(rank)).peekable();
    if others.peek().is_some() {
        let _ = write!(text, ". The others: {}", said(&mut others));
    }
    text += ". If it is only slow, raise parallelism.timeout_s";
    Some(text)
}

fn named(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(activity: Activity, waits_in: Option<&str>, silent_s: u64, now: Instant) -> Whereabouts {
        let since = now.checked_sub(Duration::from_secs(silent_s)).unwrap();
        Whereabouts { step: 7, activity, waits_in: waits_in.map(str::to_owned), since }
    }

    #[test]
    fn who_computes_too_long_is_blamed_and_not_who_waits_for_it() {
        let now = Instant::now() + Duration::from_secs(1000);
        let patience = Duration::from_secs(30);
        let met = |silent| rank(Activity::Steps, Some("grads.bucket.3"), silent, now);
        let busy = |silent| rank(Activity::Steps, None, silent, now);
        let gpu = |silent| rank(Activity::Waits, None, silent, now);
        assert_eq!(verdict(&[met(40), busy(29)], now, patience), None);
        let said = verdict(&[met(40), gpu(35), busy(31)], now, patience).unwrap();
        assert!(
            said.starts_with("no sign of rank 2 for 31 s: rank 2 computes, at step 7. The others: "),
            "{said}"
        );
        assert!(
            said.contains("rank 0 waits in grads.bucket.3, at step 7; rank 1 waits for its GPU"),
            "{said}"
        );
        let said = verdict(&[gpu(40), gpu(35)], now, patience).unwrap();
        assert!(said.starts_with("no sign of ranks 0, 1 for 40 s"), "{said}");
        assert_eq!(verdict(&[rank(Activity::Left, None, 99, now), met(40)], now, patience), None);
    }

    #[test]
    fn a_rank_that_hangs_ends_the_run_and_is_named() {
        let group = Group::new(2);
        let dog = Watchdog::over(&group, Duration::from_millis(60)).unwrap();
        group.now(1, 3, Activity::Steps);
        let waiting = group.local(0);
        let error =
            crate::device::communicator::Communicator::barrier(&waiting, "the end of step 3").unwrap_err();
        assert!(error.message().contains("no sign of rank 1"), "{error}");
        assert!(error.message().contains("rank 0 waits in the end of step 3"), "{error}");
        drop(dog);
    }
}
