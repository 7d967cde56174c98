//! Communicator of a rank whose group lives in another process.

use super::connection::{
    Connection, RankMessage, ServerMessage, decode_result, encode_contribution, send_if_idle,
};
use super::group::with_rank;
use super::poll::{Poll, interval};
use crate::device::communicator::{AbortHook, CollectiveResult, Communicator, Contribution, RankPhase};
use crate::error::{Error, Result};
use crate::liveness::parts_done;
use crate::lock::lock;
use crate::threads::spawn_detached;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Communicator of a rank that reaches its group over a connection.
pub struct RemoteCommunicator {
    rank: usize,
    world_size: usize,
    connection: Arc<Mutex<Connection>>,
    /// Second handle of the connection. Closing it wakes a thread that reads or writes.
    handle: Connection,
    results: Mutex<Receiver<CollectiveResult>>,
    shared: Arc<Shared>,
    // Dropped after the connection is closed.
    _polls: Vec<Poll>,
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// How errors name it.
    pub name: &'a str,
    /// Time without progress after which the run fails. This rank reports its progress more often.
    pub timeout: Duration,
    /// True if its silence for that time ends this rank. A parent is not watched, because it may be suspended
    /// together with its terminal.
    pub watched: bool,
}

/// State shared with the threads that read and watch the connection.
struct Shared(Mutex<State>);

struct State {
    finished: bool,
    step: u64,
    aborted: Option<Error>,
    hooks: Vec<AbortHook>,
    /// When bytes last arrived.
    heard: Instant,
}

impl fmt::Debug for RemoteCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteCommunicator")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .finish_non_exhaustive()
    }
}

impl RemoteCommunicator {
    /// Starts to read a connection to the server of a group, and to report the progress of this process to
    /// the server. Calls `stop` when the server requests to save and stop.
    ///
    /// # Errors
    /// If no thread or handle is available.
    pub fn new(
        rank: usize,
        world_size: usize,
        connection: Connection,
        server: Peer<'_>,
        stop: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let failed = |e| Error::failed(format!("cannot listen to {}: {e}", server.name));
        let (read_half, handle) =
            (connection.try_clone().map_err(failed)?, connection.try_clone().map_err(failed)?);
        let (sender, results) = channel();
        let shared = Arc::new(Shared::new());
        let state = Arc::clone(&shared);
        let lost = Error::failed(format!("{} is gone: the connection to it was closed", server.name));
        let listen = move || match read_messages(read_half, &sender, &state, &stop) {
            // The server may close the connection once this rank is finished.
            None if state.lock().finished => {}
            error => state.abort(&error.unwrap_or(lost)),
        };
        spawn_detached("xrun-read", listen).map_err(failed)?;
        let connection = Arc::new(Mutex::new(connection));
        let every = interval(server.timeout);
        let mut polls =
            vec![Poll::start("xrun-progress", every, report(Arc::clone(&connection))).map_err(failed)?];
        if server.watched {
            let closes = handle.try_clone().map_err(failed)?;
            let look = watch(server, Arc::clone(&shared), closes);
            polls.push(Poll::start("xrun-watch", every, look).map_err(failed)?);
        }
        Ok(Self { rank, world_size, connection, handle, results: Mutex::new(results), shared, _polls: polls })
    }

    /// Closes the connection.
    #[cfg(test)]
    pub(super) fn close(&self) {
        self.handle.close();
    }

    fn send(&self, header: &RankMessage, body: &[u8]) -> Result<()> {
        let mut connection = lock(&self.connection);
        // The thread that reads knows why the connection was closed.
        connection
            .send(header, &[body])
            .map_err(|e| self.shared.error_or(&format!("the connection is closed: {e}")))
    }
}

/// Returns a closure that reports the progress of this process over the connection.
fn report(connection: Arc<Mutex<Connection>>) -> impl FnMut(Duration) -> ControlFlow<()> + Send + 'static {
    let mut parts = parts_done();
    move |_| {
        let now_done = parts_done();
        if std::mem::replace(&mut parts, now_done) == now_done {
            return ControlFlow::Continue(());
        }
        send_if_idle(&connection, &RankMessage::Progress)
    }
}

/// Returns a closure that watches for silence of the server. After too long a silence, it aborts the run of
/// this rank and closes the connection, so that a thread that waits for the server gets the error.
fn watch(
    server: Peer<'_>,
    shared: Arc<Shared>,
    connection: Connection,
) -> impl FnMut(Duration) -> ControlFlow<()> + Send + 'static {
    let (name, timeout) = (server.name.to_owned(), server.timeout);
    move |suspended| {
        let (silent, finished) = {
            let state = shared.lock();
            (state.heard.elapsed(), state.finished)
        };
        if finished || silent <= timeout + suspended {
            return ControlFlow::Continue(());
        }
        shared.abort(&Error::failed(format!(
            "no sign of the process of {name} for {:.0} s: it is suspended, or its machine does not answer. If it is only \
             slow, raise parallelism.timeout_s",
            silent.as_secs_f64()
        )));
        connection.close();
        ControlFlow::Break(())
    }
}

/// Handles messages until the connection ends. Returns why it ended, if the server said so.
fn read_messages(
    mut connection: Connection,
    results: &Sender<CollectiveResult>,
    shared: &Shared,
    stop: &impl Fn(),
) -> Option<Error> {
    loop {
        match connection.receive::<ServerMessage>(|| shared.lock().heard = Instant::now()) {
            Ok((ServerMessage::Result { kind, lengths }, body)) => match decode_result(kind, &lengths, &body)
            {
                // The receiver is gone if this rank is being dropped.
                Ok(result) => drop(results.send(result)),
                Err(e) => return Some(Error::failed(e.to_string())),
            },
            Ok((ServerMessage::Aborted { kind, reason }, _)) => return Some(Error::new(kind, reason)),
            Ok((ServerMessage::Stop, _)) => stop(),
            Ok((ServerMessage::Heartbeat, _)) => {}
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                return Some(Error::failed(e.to_string()));
            }
            Err(_) => return None,
        }
    }
}

impl Shared {
    fn new() -> Self {
        let (aborted, hooks) = (None, Vec::new());
        Self(Mutex::new(State { finished: false, step: 0, aborted, hooks, heard: Instant::now() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Stores the first reason and runs the hooks.
    fn abort(&self, error: &Error) {
        let mut state = self.lock();
        let error = state.aborted.get_or_insert_with(|| error.clone()).clone();
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        hooks.into_iter().for_each(|hook| hook(&error));
    }

    /// Returns the reason for the abort, or an error with this message if there was none.
    fn error_or(&self, message: &str) -> Error {
        self.lock().aborted.clone().unwrap_or_else(|| Error::failed(message)).caused_by_other_rank()
    }
}

impl Communicator for RemoteCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn collective(&self, name: &str, contribution: Contribution) -> Result<Arc<CollectiveResult>> {
        // Locked until the result arrives, so that there is only one collective at a time.
        let results = lock(&self.results);
        let (kind, body) = encode_contribution(&contribution);
        self.send(&RankMessage::Collective { name: name.to_owned(), kind }, body)?;
        results.recv().map(Arc::new).map_err(|_| self.shared.error_or("the connection is closed"))
    }

    fn set_status(&self, step: u64, phase: RankPhase) {
        let mut state = self.shared.lock();
        (state.finished, state.step) = (phase == RankPhase::Finished, step);
        drop(state);
        // If the connection is closed, the next collective fails.
        let _ = self.send(&RankMessage::Status { step, phase }, &[]);
    }

    fn send_exit_report(&self, report: &[u8]) {
        let _ = self.send(&RankMessage::ExitReport, report);
    }

    fn abort(&self, error: &Error) {
        let _ =
            self.send(&RankMessage::Abort { kind: error.kind(), reason: error.message().to_owned() }, &[]);
        // Matches the wording of the group's own message, which may arrive after this rank has read the
        // reason.
        let step = self.shared.lock().step;
        self.shared.abort(&with_rank(self.rank, step, error));
    }

    fn abort_reason(&self) -> Option<Error> {
        self.shared.lock().aborted.clone()
    }

    fn on_abort(&self, hook: AbortHook) {
        let mut state = self.shared.lock();
        match state.aborted.clone() {
            None => state.hooks.push(hook),
            Some(error) => {
                drop(state);
                hook(&error);
            }
        }
    }
}

impl Drop for RemoteCommunicator {
    fn drop(&mut self) {
        self.handle.close();
    }
}
