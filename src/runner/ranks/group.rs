//! State shared by all ranks of a run: the collective in progress, the status of each rank, and the error
//! that aborted the run.

use crate::device::communicator::{
    AbortHook, CollectiveResult, Communicator, Contribution, RankPhase, combine,
};
use crate::error::{Error, Result};
use crate::lock::lock;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The process group: all ranks of a run and their collective in progress. The last rank to arrive computes
/// the result; then every rank takes it.
#[derive(Debug)]
pub struct Group {
    world_size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Name of the collective in progress, set by the first rank that arrives.
    collective: String,
    /// The contribution of each rank, indexed by rank; `None` until the rank arrives.
    contributions: Vec<Option<Contribution>>,
    /// Result of the collective, until every rank has taken it.
    result: Option<Arc<CollectiveResult>>,
    /// Number of ranks that have taken the result.
    results_taken: usize,
    /// The first error of any rank, which aborted the run.
    abort_reason: Option<Error>,
    abort_hooks: Vec<AbortHook>,
    ranks: Vec<RankStatus>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("collective", &self.collective)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

/// Last known state of a rank.
#[derive(Clone, Debug)]
pub(super) struct RankStatus {
    /// Step that the rank is working on.
    pub step: u64,
    /// What the rank does between collectives.
    pub phase: RankPhase,
    /// Name of the collective that the rank waits in; `None` between collectives.
    pub waits_in: Option<String>,
    /// When the status was set, or the rank last reported progress.
    pub since: Instant,
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.waits_in {
            Some(collective) => write!(f, "waits in {collective}")?,
            None => f.write_str(self.phase.as_str())?,
        }
        // Step 0 means before or after training.
        if self.step > 0 { write!(f, ", at step {}", self.step) } else { Ok(()) }
    }
}

impl Group {
    /// Creates a group of `world_size` ranks that have not started.
    pub fn new(world_size: usize) -> Arc<Self> {
        let phase = RankPhase::working("starts");
        let status = RankStatus { step: 0, phase, waits_in: None, since: Instant::now() };
        let (contributions, ranks) = (vec![None; world_size], vec![status; world_size]);
        let state = State { contributions, ranks, ..State::default() };
        Arc::new(Self { world_size, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Returns the communicator of a rank in this process.
    pub fn local(self: &Arc<Self>, rank: usize) -> LocalCommunicator {
        LocalCommunicator { rank, group: Arc::clone(self) }
    }

    /// Locks the state. Ignores lock poisoning, because every change of the state is a few assignments that
    /// cannot panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a collective for a rank; see [`Communicator::collective`].
    pub(super) fn collective(
        &self,
        rank: usize,
        name: &str,
        contribution: Contribution,
    ) -> Result<Arc<CollectiveResult>> {
        let mut state = self.lock();
        state.ranks[rank].waits_in = Some(name.to_owned());
        state.ranks[rank].since = Instant::now();
        // A rank that is early for the next collective waits until every rank has taken the previous result.
        while state.abort_reason.is_none() && state.result.is_some() {
            state = self.wait(state);
        }
        state.check_aborted()?;
        if state.contributions.iter().all(Option::is_none) {
            name.clone_into(&mut state.collective);
        } else if state.collective != name {
            let reason = format!("rank {rank} called {name} while others wait in {}", state.collective);
            return Err(self.abort_locked(state, Error::failed(reason)));
        }
        state.contributions[rank] = Some(contribution);
        if state.contributions.iter().all(Option::is_some) {
            let all: Vec<Contribution> = state.contributions.iter_mut().filter_map(Option::take).collect();
            match combine(name, all) {
                Ok(result) => state.result = Some(Arc::new(result)),
                Err(e) => return Err(self.abort_locked(state, e)),
            }
            self.changed.notify_all();
        }
        while state.abort_reason.is_none() && state.result.is_none() {
            state = self.wait(state);
        }
        state.check_aborted()?;
        let result =
            state.result.clone().ok_or_else(|| Error::failed("a collective ended without a result"))?;
        state.results_taken += 1;
        if state.results_taken == self.world_size {
            state.results_taken = 0;
            state.result = None;
            self.changed.notify_all();
        }
        state.ranks[rank].waits_in = None;
        state.ranks[rank].since = Instant::now();
        Ok(result)
    }

    /// Stores the status of a rank; see [`Communicator::set_status`].
    pub(super) fn set_status(&self, rank: usize, step: u64, phase: RankPhase) {
        self.lock().ranks[rank] = RankStatus { step, phase, waits_in: None, since: Instant::now() };
        // Somebody may wait for the last rank to finish.
        self.changed.notify_all();
    }

    /// Waits at most `timeout` until these ranks are finished or the run is aborted.
    pub(super) fn wait_until_finished(&self, ranks: &[usize], timeout: Duration) {
        let trains = |state: &mut State| {
            let is_finished = |rank: &usize| state.ranks[*rank].phase == RankPhase::Finished;
            state.abort_reason.is_none() && !ranks.iter().all(is_finished)
        };
        drop(self.changed.wait_timeout_while(self.lock(), timeout, trains));
    }

    /// Records that a rank made progress. The watchdog counts its silence from here.
    pub(super) fn progressed(&self, rank: usize) {
        let status = &mut self.lock().ranks[rank];
        // In a collective, a rank waits for others and makes no progress itself.
        if status.waits_in.is_none() {
            status.since = Instant::now();
        }
    }

    /// Returns true if the rank reported that it is finished.
    pub fn is_finished(&self, rank: usize) -> bool {
        self.lock().ranks[rank].phase == RankPhase::Finished
    }

    /// Returns the status of every rank.
    pub(super) fn statuses(&self) -> Vec<RankStatus> {
        self.lock().ranks.clone()
    }

    /// Aborts the run on all ranks with this error. Only the first call has an effect.
    pub fn abort(&self, error: &Error) {
        let state = self.lock();
        self.abort_locked(state, error.clone());
    }

    /// Aborts the run because a rank failed, and prefixes the error with its rank and step.
    pub fn abort_for_rank(&self, rank: usize, error: &Error) {
        let state = self.lock();
        let error = with_rank(rank, state.ranks[rank].step, error);
        self.abort_locked(state, error);
    }

    /// Returns why the run was aborted; `None` if it was not.
    pub fn abort_reason(&self) -> Option<Error> {
        self.lock().abort_reason.clone()
    }

    /// Waits at most `timeout` for an abort, and returns whether the run was aborted.
    #[cfg(test)]
    pub(super) fn wait_for_abort(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, timeout, |state| state.abort_reason.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.abort_reason.is_some()
    }

    /// Records the first error, wakes all waiting ranks and calls the hooks. Returns the error for the
    /// collectives of all other ranks.
    fn abort_locked(&self, mut state: MutexGuard<'_, State>, error: Error) -> Error {
        let first = state.abort_reason.is_none();
        let error = state.abort_reason.get_or_insert(error).clone();
        let hooks = std::mem::take(&mut state.abort_hooks);
        drop(state);
        if first {
            self.changed.notify_all();
            hooks.into_iter().for_each(|hook| hook(&error));
        }
        error.caused_by_other_rank()
    }

    /// Registers a hook for an abort; see [`Communicator::on_abort`].
    pub fn on_abort(&self, hook: AbortHook) {
        let mut state = self.lock();
        match state.abort_reason.clone() {
            None => state.abort_hooks.push(hook),
            Some(error) => {
                drop(state);
                hook(&error);
            }
        }
    }
}

impl State {
    /// Returns an error if the run was aborted.
    fn check_aborted(&self) -> Result<()> {
        self.abort_reason.as_ref().map_or(Ok(()), |error| Err(error.clone().caused_by_other_rank()))
    }
}

/// Prefixes an error with its rank and step. Step 0 is left out: training has not started.
pub(super) fn with_rank(rank: usize, step: u64, error: &Error) -> Error {
    error.clone().context(match step {
        0 => format!("rank {rank}"),
        step => format!("rank {rank} at step {step}"),
    })
}

/// Communicator of a rank in the same process as the [`Group`].
#[derive(Debug)]
pub struct LocalCommunicator {
    rank: usize,
    group: Arc<Group>,
}

impl Communicator for LocalCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.group.world_size
    }

    fn collective(&self, name: &str, contribution: Contribution) -> Result<Arc<CollectiveResult>> {
        self.group.collective(self.rank, name, contribution)
    }

    fn set_status(&self, step: u64, phase: RankPhase) {
        self.group.set_status(self.rank, step, phase);
    }

    fn abort(&self, error: &Error) {
        // A single rank already has its error, and no other rank waits for it.
        if self.group.world_size > 1 {
            self.group.abort_for_rank(self.rank, error);
        }
    }

    fn abort_reason(&self) -> Option<Error> {
        self.group.abort_reason()
    }

    fn on_abort(&self, hook: AbortHook) {
        self.group.on_abort(hook);
    }
}
