//! Serves ranks in other processes: runs their collectives in the group, and sends them results and aborts.

use super::connection::{
    Connection, RankMessage, ServerMessage, decode_contribution, encode_result, send_if_idle,
};
use super::group::Group;
use super::poll::{Poll, interval};
use crate::device::communicator::Contribution;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::threads::spawn_detached;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum time for which dropping the server of an aborted run waits until the reason was sent. It takes
/// almost none of it, except when a rank does not read.
const ABORT_SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time that [`Server::wait_until_finished`] waits. After the last step a rank takes milliseconds,
/// except if it is suspended.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the ranks behind connections with three threads per rank. One reads its messages, one waits in
/// collectives on its behalf, and one sends heartbeats, so that the rank knows that this process is alive.
pub struct Server {
    group: Arc<Group>,
    connections: Arc<Connections>,
    /// Second handles of the connections. Closing one wakes a thread that writes.
    handles: Vec<Connection>,
    exit_reports: Arc<ExitReports>,
    /// The reading thread of each rank.
    readers: BTreeMap<usize, JoinHandle<()>>,
    _heartbeats: Vec<Poll>,
}

/// Exit reports by rank.
type ExitReports = Mutex<BTreeMap<usize, Vec<u8>>>;

/// Called for a rank whose connection ended before the rank reported that it was finished.
pub type OnDisconnect = Arc<dyn Fn(usize) + Send + Sync>;

impl Server {
    /// Starts to serve connections, each given with its rank, and to send heartbeats at the interval for
    /// `timeout`.
    ///
    /// # Errors
    /// If no thread or handle is available.
    pub fn start(
        group: &Arc<Group>,
        connections: Vec<(usize, Connection)>,
        timeout: Duration,
        on_disconnect: OnDisconnect,
    ) -> Result<Self> {
        let failed = |e: std::io::Error| Error::failed(format!("cannot serve ranks: {e}"));
        let (mut writers, mut handles, mut readers) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut heartbeats = Vec::with_capacity(connections.len());
        let exit_reports: Arc<ExitReports> = Arc::default();
        for (rank, connection) in connections {
            let read_half = connection.try_clone().map_err(failed)?;
            handles.push(connection.try_clone().map_err(failed)?);
            let writer = Arc::new(Mutex::new(connection));
            let (sender, calls) = channel();
            let reader = Reader {
                group: Arc::clone(group),
                rank,
                calls: sender,
                on_disconnect: Arc::clone(&on_disconnect),
                exit_reports: Arc::clone(&exit_reports),
            };
            let thread = std::thread::Builder::new().name(format!("xrun-read-{rank}"));
            readers.insert(rank, thread.spawn(move || reader.run(read_half)).map_err(failed)?);
            let (group, answers) = (Arc::clone(group), Arc::clone(&writer));
            let collect = move || run_collectives(&group, rank, &calls, &answers);
            spawn_detached(format!("xrun-collect-{rank}"), collect).map_err(failed)?;
            let to = Arc::clone(&writer);
            let beat = move |_| send_if_idle(&to, &ServerMessage::Heartbeat);
            heartbeats.push(Poll::start("xrun-heartbeat", interval(timeout), beat).map_err(failed)?);
            writers.push(writer);
        }
        let connections = Arc::new(Connections { writers, sending_abort: Mutex::default() });
        let for_abort = Arc::clone(&connections);
        group.on_abort(Box::new(move |error| for_abort.send_abort(error)));
        let group = Arc::clone(group);
        Ok(Self { group, connections, handles, exit_reports, readers, _heartbeats: heartbeats })
    }

    /// Whether the connection of a rank has ended and all its messages were handled.
    pub fn has_read_all(&self, rank: usize) -> bool {
        self.readers.get(&rank).is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the ranks have closed all connections, and returns the last exit report of one rank.
    pub fn into_exit_report(mut self, rank: usize) -> Option<Vec<u8>> {
        for reader in std::mem::take(&mut self.readers).into_values() {
            // The panic message was printed when the thread panicked.
            let _ = reader.join();
        }
        lock(&self.exit_reports).remove(&rank)
    }

    /// Waits until every rank reported that it is finished, or the run is aborted. If its connection ended
    /// before that, a rank would take the run for failed.
    pub fn wait_until_finished(&self) {
        let ranks: Vec<usize> = self.readers.keys().copied().collect();
        self.group.wait_until_finished(&ranks, FINISH_TIMEOUT);
    }

    /// Asks every rank to save and stop.
    pub fn request_stop(&self) {
        self.connections.send_to_all(&ServerMessage::Stop);
    }
}

impl Drop for Server {
    /// Sends the reason for an abort before it closes the connections.
    fn drop(&mut self) {
        if let Some(error) = self.group.abort_reason() {
            self.connections.send_abort(&error);
            self.connections.wait_for_abort_sent(ABORT_SEND_TIMEOUT);
        }
        self.handles.iter().for_each(Connection::close);
    }
}

/// The write halves of all connections.
struct Connections {
    writers: Vec<Arc<Mutex<Connection>>>,
    /// Set when the abort is being sent. The channel closes once it was sent to all ranks.
    sending_abort: Mutex<Option<Receiver<Infallible>>>,
}

impl Connections {
    /// Sends a message to every rank, each on its own thread, so that a rank that does not read delays no
    /// other. The returned channel closes when all were sent.
    fn send_to_all(&self, message: &ServerMessage) -> Receiver<Infallible> {
        let (sending, sent) = channel();
        for writer in &self.writers {
            let (writer, message, sending) = (Arc::clone(writer), message.clone(), sending.clone());
            let body = move || {
                // A rank that is gone needs no message.
                let _ = send(&writer, &message, &[]);
                drop(sending);
            };
            // If no thread can start, the message is lost, but the rank will see its connection end.
            let _ = spawn_detached("xrun-send", body);
        }
        sent
    }

    /// Starts to send the reason for an abort to every rank. Only the first call has an effect.
    fn send_abort(&self, error: &Error) {
        let mut sending = lock(&self.sending_abort);
        sending.get_or_insert_with(|| self.send_to_all(&ServerMessage::aborted(error)));
    }

    /// Waits at most `timeout` until the reason for an abort was sent to every rank.
    fn wait_for_abort_sent(&self, timeout: Duration) {
        if let Some(sent) = &*lock(&self.sending_abort) {
            let _ = sent.recv_timeout(timeout);
        }
    }
}

/// Tells a connected rank why there will be no run.
pub fn reject(mut connection: Connection, error: &Error) {
    // A rank that is gone needs no message.
    let _ = connection.send(&ServerMessage::aborted(error), &[]);
}

fn send(connection: &Mutex<Connection>, header: &ServerMessage, body: &[&[u8]]) -> std::io::Result<()> {
    lock(connection).send(header, body)
}

/// Reads the messages of one rank.
struct Reader {
    group: Arc<Group>,
    rank: usize,
    calls: Sender<(String, Contribution)>,
    on_disconnect: OnDisconnect,
    exit_reports: Arc<ExitReports>,
}

impl Reader {
    /// Handles messages until the connection ends.
    fn run(&self, mut connection: Connection) {
        let (group, rank) = (&self.group, self.rank);
        loop {
            match connection.receive::<RankMessage>(|| group.progressed(rank)) {
                Ok((RankMessage::Collective { name, kind }, body)) => match decode_contribution(kind, body) {
                    Ok(contribution) => drop(self.calls.send((name, contribution))),
                    Err(e) => group.abort_for_rank(rank, &Error::failed(e.to_string())),
                },
                Ok((RankMessage::Status { step, phase }, _)) => group.set_status(rank, step, phase),
                Ok((RankMessage::Progress, _)) => {}
                Ok((RankMessage::ExitReport, report)) => {
                    let mut reports = lock(&self.exit_reports);
                    reports.insert(rank, report);
                }
                Ok((RankMessage::Abort { kind, reason }, _)) => {
                    group.abort_for_rank(rank, &Error::new(kind, reason));
                }
                Err(e) => {
                    if e.kind() == std::io::ErrorKind::InvalidData {
                        group.abort_for_rank(rank, &Error::failed(e.to_string()));
                    } else if !group.is_finished(rank) {
                        (self.on_disconnect)(rank);
                    }
                    return;
                }
            }
        }
    }
}

/// Runs the collectives that a rank calls, and sends it the results. Returns when the run is aborted; the
/// group's hook sends the abort to all ranks.
fn run_collectives(
    group: &Group,
    rank: usize,
    calls: &Receiver<(String, Contribution)>,
    connection: &Mutex<Connection>,
) {
    while let Ok((name, contribution)) = calls.recv() {
        let Ok(result) = group.collective(rank, &name, contribution) else { return };
        let (kind, body) = encode_result(&result);
        let lengths = body.iter().map(|part| part.len() as u64).collect();
        if send(connection, &ServerMessage::Result { kind, lengths }, &body).is_err() {
            return;
        }
    }
}
