//! Where ranks meet: whoever comes last computes, all collect, and everybody's whereabouts are known.

use crate::device::communicator::{
    Activity, Communicator, Deposit, Hook, Outcome, STOPPED_BY_ANOTHER, reduce,
};
use crate::error::{Error, Result};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The meeting place of the ranks of one run.
#[derive(Debug)]
pub struct Group {
    world: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// What the meeting under way is called, once somebody came to it.
    meeting: String,
    deposits: Vec<Option<Deposit>>,
    outcome: Option<Arc<Outcome>>,
    collected: usize,
    ended: Option<Error>,
    hooks: Vec<Hook>,
    ranks: Vec<Whereabouts>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("meeting", &self.meeting)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

/// What a rank was last known to do.
#[derive(Clone, Debug)]
pub(super) struct Whereabouts {
    /// The step it is at.
    pub step: u64,
    /// What it does.
    pub activity: Activity,
    /// The meeting that it waits in.
    pub waits_in: Option<String>,
    /// Since when.
    pub since: Instant,
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.waits_in {
            Some(meeting) => write!(f, "waits in {meeting}, at step {}", self.step),
            None => write!(f, "{}, at step {}", self.activity.as_str(), self.step),
        }
    }
}

impl Group {
    /// A place for `world` ranks.
    pub fn new(world: usize) -> Arc<Self> {
        let here = Whereabouts { step: 0, activity: Activity::Begins, waits_in: None, since: Instant::now() };
        let state = State {
            meeting: String::new(),
            deposits: vec![None; world],
            outcome: None,
            collected: 0,
            ended: None,
            hooks: Vec::new(),
            ranks: vec![here; world],
        };
        Arc::new(Self { world, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The communicator of a rank in this process.
    pub fn local(self: &Arc<Self>, rank: usize) -> Local {
        Local { rank, group: Arc::clone(self) }
    }

    /// A panic elsewhere leaves the state as whole as it was: every change of it is a few assignments.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank comes to a meeting.
    pub(super) fn meet(&self, rank: usize, meeting: &str, mine: Deposit) -> Result<Arc<Outcome>> {
        let mut state = self.lock();
        state.ranks[rank].waits_in = Some(meeting.to_owned());
        state.ranks[rank].since = Instant::now();
        // A rank that is early for the next meeting waits until everybody has left the last one.
        while state.ended.is_none() && state.outcome.is_some() {
            state = self.wait(state);
        }
        state.check()?;
        if state.deposits.iter().all(Option::is_none) {
            meeting.clone_into(&mut state.meeting);
        } else if state.meeting != meeting {
            let reason = format!("rank {rank} came to {meeting} while others wait in {}", state.meeting);
            return self.end(state, Error::failed(reason));
        }
        state.deposits[rank] = Some(mine);
        if state.deposits.iter().all(Option::is_some) {
            let deposits: Vec<Deposit> = state.deposits.iter_mut().filter_map(Option::take).collect();
            match reduce(meeting, deposits) {
                Ok(outcome) => state.outcome = Some(Arc::new(outcome)),
                Err(e) => return self.end(state, e),
            }
            self.changed.notify_all();
        }
        while state.ended.is_none() && state.outcome.is_none() {
            state = self.wait(state);
        }
        state.check()?;
        let outcome =
            state.outcome.clone().ok_or_else(|| Error::failed("a meeting ended without an outcome"))?;
        state.collected += 1;
        if state.collected == self.world {
            state.collected = 0;
            state.outcome = None;
            self.changed.notify_all();
        }
        state.ranks[rank].waits_in = None;
        state.ranks[rank].since = Instant::now();
        Ok(outcome)
    }

    /// A rank says what it does.
    pub(super) fn now(&self, rank: usize, step: u64, activity: Activity) {
        let here = Whereabouts { step, activity, waits_in: None, since: Instant::now() };
        self.lock().ranks[rank] = here;
    }

    /// Whether a rank said that it is done.
    pub fn has_left(&self, rank: usize) -> bool {
        self.lock().ranks[rank].activity == Activity::Left
    }

    /// What a rank was last known to do.
    pub fn whereabouts(&self, rank: usize) -> String {
        self.lock().ranks[rank].to_string()
    }

    /// What every rank was last known to do.
    pub(super) fn all_whereabouts(&self) -> Vec<Whereabouts> {
        self.lock().ranks.clone()
    }

    /// Ends the run of all ranks, unless it is ended already.
    pub fn abort(&self, error: &Error) {
        let state = self.lock();
        // The error is for those who wait, not for who asked.
        let _ = self.end(state, error.clone());
    }

    /// As [`Group::abort`], for what happened to a rank: it is named, with its step.
    pub fn abort_by(&self, rank: usize, error: &Error) {
        let state = self.lock();
        let error = of_rank(rank, state.ranks[rank].step, error);
        let _ = self.end(state, error);
    }

    /// Why the run was ended.
    pub fn ended(&self) -> Option<Error> {
        self.lock().ended.clone()
    }

    /// Waits until the run is ended, at most this long. Whether it is.
    pub fn wait_for_end(&self, patience: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, patience, |state| state.ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.ended.is_some()
    }

    fn end(&self, mut state: MutexGuard<'_, State>, error: Error) -> Result<Arc<Outcome>> {
        let first = state.ended.is_none();
        let error = state.ended.get_or_insert(error).clone();
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        if first {
            self.changed.notify_all();
            hooks.into_iter().for_each(|hook| hook(&error));
        }
        Err(stopped(&error))
    }

    /// See [`Communicator::on_abort`].
    pub fn on_abort(&self, hook: Hook) {
        let mut state = self.lock();
        match state.ended.clone() {
            None => state.hooks.push(hook),
            Some(error) => {
                drop(state);
                hook(&error);
            }
        }
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.ended.as_ref().map_or(Ok(()), |error| Err(stopped(error)))
    }
}

/// What happened to a rank, with its number and step.
pub(super) fn of_rank(rank: usize, step: u64, error: &Error) -> Error {
    error.clone().context(match step {
        0 => format!("rank {rank}"),
        step => format!("rank {rank} at step {step}"),
    })
}

/// The error of a rank that ends because the run was ended.
pub(super) fn stopped(error: &Error) -> Error {
    error.clone().context(STOPPED_BY_ANOTHER)
}

/// One rank of a group in this process.
#[derive(Debug)]
pub struct Local {
    rank: usize,
    group: Arc<Group>,
}

impl Communicator for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.group.world
    }

    fn meet(&self, meeting: &str, mine: Deposit) -> Result<Arc<Outcome>> {
        self.group.meet(self.rank, meeting, mine)
    }

    fn now(&self, step: u64, activity: Activity) {
        self.group.now(self.rank, step, activity);
    }

    fn abort(&self, error: &Error) {
        self.group.abort_by(self.rank, error);
    }

    fn ended(&self) -> Option<Error> {
        self.group.ended()
    }

    fn on_abort(&self, hook: Hook) {
        self.group.on_abort(hook);
    }
}
