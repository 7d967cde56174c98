//! How a process takes part in a run: which ranks are threads of it, and how it reaches the others.
//!
//! ```text
//! thread:   one process, all ranks threads of it
//! process:  a parent that watches, and one child per rank, each at the end of a line from its parent
//! env:      one process per rank, started by somebody else; rank 0 serves the others over TCP
//! ```
//!
//! Whatever the launcher, a rank gets a [`Communicator`] and runs the same loop.

use super::environment::{self, Place};
use super::rendezvous::{self, Secret};
use super::{Group, Hub, Lost, Remote, Stop, Watchdog};
use crate::device::communicator::{Alone, Communicator, STOPPED_BY_ANOTHER};
use crate::error::{Error, Result};
use crate::policy::Launcher;
use crate::recipe::Recipe;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// How the ranks of a run come to be, by its recipe and, where that says so, by the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// This many threads of this process.
    Threads(usize),
    /// This many child processes.
    Processes(usize),
    /// This process is one rank, whose launcher started the others too.
    Member(Place),
}

impl Launch {
    /// Reads how to launch. Only `launcher = "env"` looks at `variables`.
    ///
    /// # Errors
    /// Where a launcher's variables are incomplete, or its world is not the recipe's.
    pub fn of(resolved: &Recipe, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let place = match resolved.values().parallelism.launcher {
            Launcher::Env => Some(environment::read(variables)?),
            Launcher::Thread | Launcher::Process => None,
        };
        let world = resolved.world_size();
        if let Some(place) = place.as_ref().filter(|place| place.world != world) {
            return Err(resolved.error(
                &["parallelism.world_size"],
                format!("{} started {} ranks, and the recipe wants {world}", place.launcher, place.world),
                "set parallelism.world_size = \"auto\", or start as many",
            ));
        }
        Ok(match (place, resolved.values().parallelism.launcher) {
            (Some(place), _) => Self::Member(place),
            (None, Launcher::Process) => Self::Processes(world),
            (None, _) => Self::Threads(world),
        })
    }

    /// Whether this process writes the run's results, or starts the one that does.
    pub fn leads(&self) -> bool {
        !matches!(self, Self::Member(place) if place.rank > 0)
    }
}

/// The part of a run that is in this process.
#[derive(Debug)]
pub struct Party {
    /// The ranks that are threads of this process.
    ranks: Vec<Arc<dyn Communicator>>,
    /// Ranks on this machine, in this process or another.
    on_machine: usize,
    /// The first of this process's ranks, counted among those of the machine.
    first_on_machine: usize,
    /// What a person should know of how the ranks were found.
    pub notes: Vec<String>,
    // Fields are dropped in order: first nobody watches, then lines are closed.
    _watchdog: Option<Watchdog>,
    _hub: Option<Hub>,
}

impl Party {
    /// All ranks as threads of this process; a rank that gives no sign for `patience` ends the run.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn threads(world: usize, patience: Duration) -> Result<Self> {
        if world == 1 {
            return Ok(Self::of(vec![Arc::new(Alone)]));
        }
        let group = Group::new(world);
        let local = |rank| -> Arc<dyn Communicator> { Arc::new(group.local(rank)) };
        let mut party = Self::of((0..world).map(local).collect());
        party.watch(&group, patience)?;
        Ok(party)
    }

    /// One rank that is alone.
    pub fn alone() -> Self {
        Self::of(vec![Arc::new(Alone)])
    }

    /// One rank of several, the others in other processes; `on_machine` of them on this machine, of which it is number
    /// `place`.
    pub(super) fn member(comm: Arc<dyn Communicator>, on_machine: usize, place: usize) -> Self {
        Self { on_machine, first_on_machine: place, ..Self::of(vec![comm]) }
    }

    /// The rank of a process that an external launcher started, once all ranks have found each other. Rank 0 watches.
    ///
    /// # Errors
    /// When ranks do not come within `patience`, or contradict each other.
    pub fn of_launcher(place: &Place, secret: &Secret, patience: Duration, stop: &Stop) -> Result<Self> {
        let told = |party: &mut Self| {
            let of = format!("rank {} of {}, started by {}", place.rank, place.world, place.launcher);
            party.notes.push(of);
            party.notes.extend(place.ignored.iter().map(|name| format!("ignored: {name} is set too")));
        };
        if place.world == 1 {
            let mut party = Self::alone();
            told(&mut party);
            return Ok(party);
        }
        let (on_machine, local_rank) = (place.local_world, place.local_rank);
        if place.rank > 0 {
            let line = rendezvous::join(place, secret, patience, stop)?;
            let stop = stop.clone();
            let comm = Remote::new(place.rank, place.world, line, "rank 0", move || stop.ask())?;
            return Ok(Self::member(Arc::new(comm), on_machine, local_rank));
        }
        let group = Group::new(place.world);
        let lines = rendezvous::listen(place, secret, patience, stop)?;
        let lost = Arc::downgrade(&group);
        let gone = "its process is gone: the line to it was closed";
        let lost: Lost = Arc::new(move |rank| {
            lost.upgrade().into_iter().for_each(|group| group.abort_by(rank, &Error::failed(gone)));
        });
        let hub = Hub::serve(&group, lines, lost)?;
        let mut party = Self::member(Arc::new(group.local(0)), on_machine, local_rank);
        party.watch(&group, patience)?;
        party._hub = Some(hub);
        told(&mut party);
        Ok(party)
    }

    fn of(ranks: Vec<Arc<dyn Communicator>>) -> Self {
        let on_machine = ranks.len();
        let (first_on_machine, notes) = (0, Vec::new());
        Self { ranks, on_machine, first_on_machine, notes, _watchdog: None, _hub: None }
    }

    fn watch(&mut self, group: &Arc<Group>, patience: Duration) -> Result<()> {
        let watchdog = Watchdog::over(group, patience);
        self._watchdog = Some(watchdog.map_err(|e| Error::failed(format!("cannot watch ranks: {e}")))?);
        Ok(())
    }

    /// Whether rank 0, which writes results, is in this process.
    pub fn leads(&self) -> bool {
        self.ranks.iter().any(|comm| comm.rank() == 0)
    }

    /// The number of ranks of the run.
    pub fn world(&self) -> usize {
        self.ranks.first().map_or(1, |comm| comm.world())
    }

    /// Ranks on this machine, in this process or another.
    pub fn on_machine(&self) -> usize {
        self.on_machine
    }

    /// Processes of the run on this machine, which share its processors.
    pub fn processes_on_machine(&self) -> usize {
        (self.on_machine / self.ranks.len()).max(1)
    }

    /// A rank of this process, counted among those of the machine: the place of its GPU.
    pub fn place_on_machine(&self, rank: usize) -> usize {
        let here = self.ranks.iter().position(|comm| comm.rank() == rank).unwrap_or(0);
        self.first_on_machine + here
    }

    /// Any rank of this process, to end the run by or to be told of its end.
    pub fn first(&self) -> &Arc<dyn Communicator> {
        &self.ranks[0]
    }

    /// Runs `body` once per rank of this process, and returns what the first of them returned.
    ///
    /// A rank that fails or panics makes the meetings of all others fail, so that none waits for it.
    ///
    /// # Errors
    /// The error of the rank that failed first, with its number and step where there are several.
    pub fn run<T: Send>(&self, body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync) -> Result<T> {
        let body = &body;
        let results: Vec<Result<T>> = match self.ranks.as_slice() {
            [only] => vec![guarded(only, body)],
            ranks => std::thread::scope(|scope| {
                let threads: Vec<_> = ranks
                    .iter()
                    .map(|comm| {
                        let thread = std::thread::Builder::new().name(format!("xrun-rank-{}", comm.rank()));
                        thread.spawn_scoped(scope, move || guarded(comm, body)).map_err(|e| {
                            let error = Error::failed(format!("cannot start its thread: {e}"));
                            comm.abort(&error);
                            error
                        })
                    })
                    .collect();
                let lost = || Error::failed("a rank's thread was lost");
                threads.into_iter().map(|rank| rank?.join().unwrap_or_else(|_| Err(lost()))).collect()
            }),
        };
        self.first_cause(results)
    }

    /// What the first rank returned, or why the run was ended.
    fn first_cause<T>(&self, results: Vec<Result<T>>) -> Result<T> {
        if results.iter().any(Result::is_err)
            && let Some(error) = self.first().ended()
        {
            return Err(error);
        }
        let mut results = results.into_iter();
        let first = results.next().unwrap_or_else(|| Err(Error::failed("a run of no ranks")));
        if let Some(error) = results.find_map(Result::err) {
            return Err(error);
        }
        first
    }
}

/// Whether a rank ended only because another one did, which says so itself.
pub fn stopped_by_another(error: &Error) -> bool {
    error.message().contains(STOPPED_BY_ANOTHER)
}

/// Runs a rank's body; tells the others when it ends badly.
fn guarded<T>(
    comm: &Arc<dyn Communicator>,
    body: &(impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync),
) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(|| body(Arc::clone(comm)))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Error::failed(format!("panicked: {}", text.unwrap_or_else(|| "no message".to_string()))))
    });
    result.inspect_err(|e| {
        if !stopped_by_another(e) {
            comm.abort(e);
        }
    })
}

/// Runs `body` on `world` ranks that are threads of this process, and returns what rank 0 returned.
///
/// # Errors
/// As [`Party::run`].
pub fn launch<T: Send>(world: usize, body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync) -> Result<T> {
    Party::threads(world, FOR_EVER)?.run(body)
}

/// Nobody waits that long.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::communicator::Activity;

    #[test]
    fn the_rank_that_fails_is_named_and_nobody_waits() {
        let result: Result<()> = launch(3, |comm| {
            if comm.rank() == 1 {
                comm.now(5, Activity::Steps);
                return Err(Error::does_not_fit("out of memory"));
            }
            comm.barrier("the end")
        });
        let error = result.unwrap_err();
        assert_eq!(error.message(), "rank 1 at step 5: out of memory");
        assert_eq!(error.kind(), crate::error::Kind::DoesNotFit);
    }

    #[test]
    fn a_panic_is_an_error_of_its_rank() {
        let result: Result<()> = launch(2, |comm| {
            assert!(comm.rank() == 0, "injected");
            comm.barrier("the end")
        });
        assert_eq!(result.unwrap_err().message(), "rank 1: panicked: injected");
    }

    #[test]
    fn rank_0_answers() {
        assert_eq!(launch(4, |comm| comm.all_reduce_max("all", comm.rank() as u64)).unwrap(), 3);
    }
}
