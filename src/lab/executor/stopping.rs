//! Ends a run that exceeds a limit, hangs or is no longer wanted.

use super::{Executor, RunId, StopSignal};
use std::time::{Duration, Instant};

/// Time between the request to save and the kill. It suffices to finish a step and write a checkpoint.
const GRACE: Duration = Duration::from_secs(10);

/// Time limits of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The longest time without a new row.
    pub hang: Option<Duration>,
    /// The longest total time.
    pub timeout: Option<Duration>,
}

/// Why a run is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// No new row for this long.
    Hang(Duration),
    /// Longer than this.
    Timeout(Duration),
    /// This process was told to stop.
    Signal,
    /// The batch system told this task to end.
    Preempted,
    /// The batch system announced the end of this task's time.
    TimeLimit,
}

impl StopCause {
    /// Returns true if this process was told to stop, and the run did nothing wrong.
    fn came_from_outside(self) -> bool {
        matches!(self, Self::Signal | Self::Preempted | Self::TimeLimit)
    }
}

/// Tracks how far the end of a run has come.
#[derive(Debug, Default)]
pub struct Stopping {
    cause: Option<(StopCause, Instant)>,
    sent_save: bool,
    sent_kill: bool,
    /// True if a run that ignores a signal is killed. A run that may outlive this process gets all the time
    /// it needs to save.
    kills_after_signal: bool,
}

impl Stopping {
    /// Creates the state of a run that nobody has asked to end.
    pub fn new(kills_after_signal: bool) -> Self {
        Self { kills_after_signal, ..Self::default() }
    }

    /// Returns why the run is being ended.
    pub fn cause(&self) -> Option<StopCause> {
        self.cause.map(|(cause, _)| cause)
    }

    /// Requests the end if a limit is exceeded, `elapsed` after the start of the run and `idle` after its
    /// last row.
    pub fn enforce(&mut self, limits: Limits, elapsed: Duration, idle: Duration) {
        if let Some(limit) = limits.timeout.filter(|&limit| elapsed > limit) {
            self.request(StopCause::Timeout(limit));
        } else if let Some(limit) = limits.hang.filter(|&limit| idle > limit) {
            self.request(StopCause::Hang(limit));
        }
    }

    /// Requests the end. The first cause is kept, except that a hang or a timeout during a save replaces a
    /// signal.
    pub fn request(&mut self, cause: StopCause) {
        let is_later_limit =
            self.cause().is_some_and(StopCause::came_from_outside) && !cause.came_from_outside();
        if self.cause.is_none() || is_later_limit {
            self.cause = Some((cause, Instant::now()));
        }
    }

    /// Sends the signals that are due. A run that hangs cannot finish its step, so it is killed at once.
    pub fn send_due(&mut self, executor: &mut dyn Executor, run: RunId) {
        let Some((cause, since)) = self.cause else { return };
        let grace = match cause {
            StopCause::Hang(_) => Some(Duration::ZERO),
            StopCause::Timeout(_) => Some(GRACE),
            StopCause::Signal | StopCause::Preempted | StopCause::TimeLimit => {
                self.kills_after_signal.then_some(GRACE)
            }
        };
        if !self.sent_save && grace != Some(Duration::ZERO) {
            self.sent_save = true;
            executor.stop(run, StopSignal::Save);
        }
        if !self.sent_kill && grace.is_some_and(|grace| since.elapsed() >= grace) {
            self.sent_kill = true;
            executor.stop(run, StopSignal::Kill);
        }
    }
}
