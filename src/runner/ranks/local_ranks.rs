//! The ranks of a run in this process: either all of them, as threads, or the only rank of one of several
//! processes.

use super::environment::RankAssignment;
use super::rendezvous::{self, Secret};
use super::{ExitGuard, Group, OnDisconnect, Peer, RemoteCommunicator, Server, Stop, Watchdog};
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::{Error, Result};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// The ranks of a run in this process.
pub struct LocalRanks {
    /// One communicator per rank of this process; each rank is a thread.
    comms: Vec<Arc<dyn Communicator>>,
    /// Number of ranks on this machine, over all processes.
    pub on_machine: usize,
    /// Index of this process's first rank among the ranks of the machine.
    first_on_machine: usize,
    /// Log lines about how the ranks were found.
    pub notes: Vec<String>,
    /// True if a parent process prints the error of the run.
    has_parent: bool,
    // Fields are dropped in order: the watchdog must stop before the server closes its connections.
    _watchdog: Option<Watchdog>,
    server: Option<Server>,
}

impl LocalRanks {
    /// Runs all ranks as threads of this process. A rank that shows no progress for `timeout` aborts the run.
    ///
    /// # Errors
    /// If the OS cannot start a thread.
    pub fn threads(world: usize, timeout: Duration) -> Result<Self> {
        let group = Group::new(world);
        let local = |rank| -> Arc<dyn Communicator> { Arc::new(group.local(rank)) };
        let mut ranks = Self::from_communicators((0..world).map(local).collect());
        ranks.watch(&group, timeout)?;
        Ok(ranks)
    }

    /// Creates one rank whose group is in another process. `index` is its position among the `on_machine`
    /// ranks of this machine.
    pub(super) fn remote(comm: Arc<dyn Communicator>, on_machine: usize, index: usize) -> Self {
        Self { on_machine, first_on_machine: index, ..Self::from_communicators(vec![comm]) }
    }

    /// Returns the number of ranks in this process, at least 1.
    pub fn in_process(&self) -> usize {
        self.comms.len()
    }

    /// Lets the parent of this process print why a run was aborted.
    pub(super) fn with_parent(self) -> Self {
        Self { has_parent: true, ..self }
    }

    /// Creates the rank of a process that an external launcher started, once all ranks have connected. Rank 0
    /// owns the group and the watchdog; the others watch the process of rank 0.
    ///
    /// # Errors
    /// If ranks do not connect within `timeout`, or contradict each other.
    pub fn join_launcher(
        assignment: &RankAssignment,
        secret: &Secret,
        timeout: Duration,
        stop: &Stop,
    ) -> Result<Self> {
        let RankAssignment { rank, world_size, launcher, local_world_size, local_rank, ignored, .. } =
            assignment;
        let (rank, world_size) = (*rank, *world_size);
        let mut ranks = if world_size == 1 {
            Self::threads(1, timeout)?
        } else if rank == 0 {
            Self::serve_group(assignment, secret, timeout, stop)?
        } else {
            let connection = rendezvous::join(assignment, secret, timeout, stop)?;
            let (server, stop) = (Peer { name: "rank 0", timeout, watched: true }, stop.clone());
            let comm = RemoteCommunicator::new(rank, world_size, connection, server, move || stop.request())?;
            return Ok(Self::remote(Arc::new(comm), *local_world_size, *local_rank));
        };
        ranks.notes.push(format!("rank {rank} of {world_size}, started by {launcher}"));
        ranks.notes.extend(ignored.iter().map(|name| format!("ignored: {name} is set too")));
        Ok(ranks)
    }

    /// Acts as rank 0 of several processes: accepts the others and serves their collectives.
    fn serve_group(
        assignment: &RankAssignment,
        secret: &Secret,
        timeout: Duration,
        stop: &Stop,
    ) -> Result<Self> {
        let group = Group::new(assignment.world_size);
        let connections = rendezvous::accept_ranks(assignment, secret, timeout, stop)?;
        let weak = Arc::downgrade(&group);
        let on_disconnect: OnDisconnect = Arc::new(move |rank| {
            if let Some(group) = weak.upgrade() {
                let gone = "its process is gone: the connection to it was closed";
                group.abort_for_rank(rank, &Error::failed(gone));
            }
        });
        let server = Server::start(&group, connections, timeout, on_disconnect)?;
        let comm = Arc::new(group.local(0));
        let mut ranks = Self::remote(comm, assignment.local_world_size, assignment.local_rank);
        ranks.watch(&group, timeout)?;
        ranks.server = Some(server);
        Ok(ranks)
    }

    fn from_communicators(comms: Vec<Arc<dyn Communicator>>) -> Self {
        let on_machine = comms.len();
        let (first_on_machine, notes, has_parent) = (0, Vec::new(), false);
        Self { comms, on_machine, first_on_machine, notes, has_parent, _watchdog: None, server: None }
    }

    fn watch(&mut self, group: &Arc<Group>, timeout: Duration) -> Result<()> {
        let here = self.comms.iter().map(|comm| comm.rank()).collect();
        self._watchdog = Some(Watchdog::start(group, here, timeout)?);
        Ok(())
    }

    /// Returns true if rank 0, which writes the results, is in this process.
    pub fn has_rank_zero(&self) -> bool {
        self.comms.iter().any(|comm| comm.rank() == 0)
    }

    /// Returns the number of this run's processes on this machine, which share its CPU cores.
    pub fn processes_on_machine(&self) -> usize {
        (self.on_machine / self.comms.len()).max(1)
    }

    /// Returns the index of a rank of this process among the ranks of the machine, which is also the index of
    /// its GPU.
    pub fn index_on_machine(&self, rank: usize) -> usize {
        let index = self.comms.iter().position(|comm| comm.rank() == rank).unwrap_or(0);
        self.first_on_machine + index
    }

    /// Returns the indexes of this process's ranks among the ranks of the machine.
    pub fn indexes_on_machine(&self) -> Range<usize> {
        self.first_on_machine..self.first_on_machine + self.in_process()
    }

    /// Returns the communicator of this process's first rank, for aborting the run or watching for an abort.
    pub fn first(&self) -> &Arc<dyn Communicator> {
        &self.comms[0]
    }

    /// Runs `body` and aborts the run if it fails, so that ranks in other processes do not wait for this one.
    /// The guard ends this process if the run is aborted while `body` hangs.
    ///
    /// # Errors
    /// If `body` fails, with its error.
    pub fn abort_on_error<T>(&self, body: impl FnOnce(&ExitGuard) -> Result<T>) -> Result<T> {
        let guard = ExitGuard::arm(self.first(), !self.has_parent);
        let result = body(&guard).inspect_err(|e| self.first().abort(e));
        guard.disarm();
        result
    }

    /// Runs the work that remains after training, during which the watchdog still expects progress, and then
    /// reports the rank as finished. `what` completes a sentence that starts with the rank: "draws plots". An
    /// error does not abort the run.
    pub fn finish_after<T>(&self, what: &'static str, body: impl FnOnce() -> T) -> T {
        // After an abort, no other rank waits for this one.
        let guard = self.first().abort_reason().is_none().then(|| {
            self.first().set_status(0, RankPhase::working(what));
            ExitGuard::arm(self.first(), !self.has_parent)
        });
        let result = body();
        self.finish();
        guard.inspect(ExitGuard::disarm);
        result
    }

    /// Reports the first rank of this process as finished. A process that serves others waits until they are
    /// finished too.
    pub(super) fn finish(&self) {
        self.first().set_status(0, RankPhase::Finished);
        if let Some(server) = &self.server {
            server.wait_until_finished();
        }
    }

    /// Runs `body` once per rank of this process, and returns the result of the first rank.
    ///
    /// A rank that fails or panics aborts the run, so that no other rank waits for it.
    ///
    /// # Errors
    /// If a rank fails, with the first error; its rank and step are named if there are several ranks.
    pub fn run<T: Send>(&self, body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync) -> Result<T> {
        self.run_keeping(|comm, _: &mut Option<()>| body(comm))
    }

    /// Runs `body` like [`LocalRanks::run`]. If the rank fails or panics, whatever `body` put into its second
    /// argument is dropped only after the abort, because other ranks may write into that memory until they
    /// learn of it.
    ///
    /// # Errors
    /// Fails like [`LocalRanks::run`].
    pub fn run_keeping<T: Send, K>(
        &self,
        body: impl Fn(Arc<dyn Communicator>, &mut Option<K>) -> Result<T> + Sync,
    ) -> Result<T> {
        let body = &body;
        let results: Vec<Result<T>> = match self.comms.as_slice() {
            [only] => vec![run_rank(only, body)],
            comms => std::thread::scope(|scope| {
                let threads: Vec<_> = comms
                    .iter()
                    .map(|comm| {
                        let thread = std::thread::Builder::new().name(format!("xrun-rank-{}", comm.rank()));
                        thread.spawn_scoped(scope, move || run_rank(comm, body)).map_err(|e| {
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
        self.first_result(results)
    }

    /// Returns the result of the first rank, or the reason for the abort.
    fn first_result<T>(&self, results: Vec<Result<T>>) -> Result<T> {
        if results.iter().any(Result::is_err)
            && let Some(error) = self.first().abort_reason()
        {
            return Err(error);
        }
        let mut results = results.into_iter();
        let first = results.next().unwrap_or_else(|| Err(Error::failed("a run without ranks")));
        if let Some(error) = results.find_map(Result::err) {
            return Err(error);
        }
        first
    }
}

/// Runs the body of one rank. Aborts the run if it fails or panics, unless another rank did so first.
fn run_rank<T, K>(
    comm: &Arc<dyn Communicator>,
    body: &(impl Fn(Arc<dyn Communicator>, &mut Option<K>) -> Result<T> + Sync),
) -> Result<T> {
    let mut kept = None;
    let run = AssertUnwindSafe(|| body(Arc::clone(comm), &mut kept));
    let result = catch_unwind(run).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Error::failed(format!("panicked: {}", message.unwrap_or_else(|| "no message".to_string()))))
    });
    result.inspect_err(|e| {
        if !e.is_from_other_rank() {
            comm.abort(e);
        }
    })
}

/// Runs `body` on `world` ranks as threads of this process, with no effective timeout, and returns the result
/// of rank 0.
///
/// # Errors
/// Fails like [`LocalRanks::run`].
pub fn launch<T: Send>(world: usize, body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync) -> Result<T> {
    LocalRanks::threads(world, NO_TIMEOUT)?.run(body)
}

/// A hundred years.
const NO_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::communicator::RankPhase;
    use std::sync::Mutex;

    #[test]
    fn the_rank_that_fails_is_named_and_nobody_waits() {
        let result: Result<()> = launch(3, |comm| {
            if comm.rank() == 1 {
                comm.set_status(5, RankPhase::working("computes"));
                return Err(Error::does_not_fit("out of memory"));
            }
            comm.barrier("the end")
        });
        let error = result.unwrap_err();
        assert_eq!(error.message(), "rank 1 at step 5: out of memory");
        assert_eq!(error.kind(), crate::error::ErrorKind::DoesNotFit);
        assert!(!error.is_from_other_rank());
    }

    /// The error's type, not its text, decides whether it came from another rank.
    #[test]
    fn an_error_that_quotes_another_rank_is_still_the_ranks_own() {
        let result: Result<()> = launch(2, |comm| match comm.rank() {
            1 => Err(Error::failed("the log says: another rank stopped the run")),
            _ => comm.barrier("the end"),
        });
        let error = result.unwrap_err();
        assert_eq!(error.message(), "rank 1: the log says: another rank stopped the run");
    }

    #[test]
    fn a_panic_is_an_error_of_its_rank() {
        let result: Result<()> = launch(2, |comm| {
            assert!(comm.rank() == 0, "injected");
            comm.barrier("the end")
        });
        assert_eq!(result.unwrap_err().message(), "rank 1: panicked: injected");
    }

    /// Other ranks may write into the memory of a failed rank until they know of the failure.
    #[test]
    fn kept_values_of_a_failed_rank_are_dropped_after_the_abort() {
        struct Kept<'a>(Arc<dyn Communicator>, &'a Mutex<Vec<Option<String>>>);
        impl Drop for Kept<'_> {
            fn drop(&mut self) {
                let reason = self.0.abort_reason().map(|e| e.to_string());
                self.1.lock().unwrap().push(reason);
            }
        }
        for panics in [false, true] {
            let dropped = Mutex::new(Vec::new());
            let ranks = LocalRanks::threads(2, NO_TIMEOUT).unwrap();
            let result: Result<()> = ranks.run_keeping(|comm, kept| {
                *kept = Some(Kept(Arc::clone(&comm), &dropped));
                if comm.rank() == 0 {
                    return comm.barrier("the end");
                }
                assert!(!panics, "no memory");
                Err(Error::failed("no memory"))
            });
            let expected = if panics { "rank 1: panicked: no memory" } else { "rank 1: no memory" };
            assert_eq!(result.unwrap_err().message(), expected);
            let dropped = dropped.into_inner().unwrap();
            assert!(
                dropped.len() == 2 && dropped.iter().all(|r| r.as_deref() == Some(expected)),
                "{dropped:?}"
            );
        }
    }

    #[test]
    fn the_result_comes_from_rank_0() {
        assert_eq!(launch(4, |comm| comm.all_reduce_max("all", comm.rank() as u64)).unwrap(), 3);
    }
}
