//! The side of rank 0: it listens and handles all newcomers in parallel.

use super::address::{check_stop, ports, resolve};
use super::handshake::{Candidate, Rejected, authenticate, configure};
use super::secret::Secret;
use crate::error::{Error, Result};
use crate::ranks::connection::ServerMessage;
use crate::ranks::environment::{RankAssignment, SECRET};
use crate::ranks::poll::interval;
use crate::ranks::server::reject;
use crate::ranks::{Connection, Stop};
use crate::results::progress::eprint_line;
use crate::threads::spawn_detached;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Pause between two polls for a newcomer.
const PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of handshakes in progress. Beyond it, the oldest is closed: a rank finishes its handshake
/// within milliseconds, so the oldest belongs to a silent peer.
const MAX_NEWCOMERS: usize = 128;

/// Accepts, on rank 0, the connections of all other ranks.
///
/// # Errors
/// If no port is free, ranks do not connect within `timeout`, two ranks contradict each other, or a stop is
/// requested.
pub fn accept_ranks(
    assignment: &RankAssignment,
    secret: &Secret,
    timeout: Duration,
    stop: &Stop,
) -> Result<Vec<(usize, Connection)>> {
    let listener = bind(assignment)?;
    let mut ranks = Ranks { assignment, timeout, connections: Vec::new(), other_secret: None, refused: None };
    match ranks.accept(&listener, secret, stop) {
        Ok(()) => Ok(ranks.connections),
        Err(e) => {
            ranks.connections.into_iter().for_each(|(_, connection)| reject(connection, &e));
            Err(e)
        }
    }
}

fn bind(assignment: &RankAssignment) -> Result<TcpListener> {
    let mut failed = None;
    for port in ports(assignment) {
        let bound = resolve(assignment, port)?.into_iter().map(TcpListener::bind);
        for result in bound {
            match result.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
                Ok(listener) => return Ok(listener),
                Err(e) => failed = Some(e),
            }
        }
    }
    let why = failed.map_or_else(|| "the name has no address".to_owned(), |e| e.to_string());
    Err(Error::failed(format!(
        "rank 0 cannot listen at {}, ports from {} on: {why}. MASTER_ADDR must name this machine",
        assignment.address, assignment.port
    )))
}

/// The ranks that have connected so far.
struct Ranks<'a> {
    assignment: &'a RankAssignment,
    timeout: Duration,
    connections: Vec<(usize, Connection)>,
    /// The last peer with a different secret, and the last one rejected for another reason.
    other_secret: Option<String>,
    refused: Option<String>,
}

impl Ranks<'_> {
    /// Waits until all other ranks have connected.
    fn accept(&mut self, listener: &TcpListener, secret: &Secret, stop: &Stop) -> Result<()> {
        let (deadline, mut last_heartbeat) = (Instant::now() + self.timeout, Instant::now());
        let mut newcomers = Newcomers::new(&self.assignment.job, secret);
        while self.connections.len() + 1 < self.assignment.world_size {
            match listener.accept() {
                Ok((stream, from)) => newcomers.admit(stream, from),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
                // The peer is gone already.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(Error::failed(format!("cannot listen for ranks: {e}"))),
            }
            while let Some((from, answered)) = newcomers.next_answered() {
                self.handle_newcomer(from, answered)?;
            }
            if last_heartbeat.elapsed() > interval(self.timeout) {
                last_heartbeat = Instant::now();
                for (_, connection) in &mut self.connections {
                    // A rank that is gone is noticed once all have connected.
                    let _ = connection.send(&ServerMessage::Heartbeat, &[]);
                }
            }
            check_stop(stop)?;
            if Instant::now() > deadline {
                return Err(self.missing());
            }
        }
        Ok(())
    }

    /// Accepts a newcomer, or records why it was rejected.
    fn handle_newcomer(&mut self, from: SocketAddr, answered: Result<Candidate, Rejected>) -> Result<()> {
        match answered {
            Ok(candidate) => {
                if let Some(why) = self.contradiction(&candidate) {
                    candidate.refuse(&why);
                    return Err(Error::usage(why));
                }
                match candidate.welcome() {
                    Ok(connected) => self.connections.push(connected),
                    Err(e) => self.refused = Some(format!("{from}: {e}")),
                }
            }
            Err(Rejected::Fatal(e)) => return Err(e),
            // Any program may connect to a port by mistake. A rank of this run will try again.
            Err(Rejected::Stranger(why) | Rejected::Unreachable(why)) => {
                self.refused = Some(format!("{from}: {why}"));
            }
            Err(Rejected::OtherSecret(why)) => {
                if self.other_secret.is_none() {
                    eprint_line(&format!(
                        "warning: {why} ({from}): set it to the same text for every rank, or to none"
                    ));
                }
                self.other_secret = Some(format!("{from}: {why}"));
            }
        }
        Ok(())
    }

    /// Returns why an authenticated rank contradicts what rank 0 knows, if it does.
    fn contradiction(&self, candidate: &Candidate) -> Option<String> {
        let (rank, world, own_world) = (candidate.rank, candidate.world, self.assignment.world_size);
        if world != own_world {
            return Some(format!("rank {rank} is one of {world} ranks, but rank 0 is one of {own_world}"));
        }
        let known = self.connections.iter().any(|(other, _)| *other == rank);
        (rank == 0 || rank >= own_world || known).then(|| format!("two processes are rank {rank}"))
    }

    /// Returns the error for ranks that did not connect within the timeout.
    fn missing(&self) -> Error {
        let known = |rank: &usize| self.connections.iter().any(|(found, _)| found == rank);
        let missing = (1..self.assignment.world_size).filter(|rank| !known(rank));
        let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
        let last = match (&self.other_secret, &self.refused) {
            (Some(other), _) => format!(" {other}: set {SECRET} to the same text for every rank, or to none"),
            (None, Some(last)) => format!(" The last rejected peer: {last}"),
            (None, None) => String::new(),
        };
        Error::failed(format!(
            "of {} ranks, {} did not connect to {}:{} within {} s.{last}",
            self.assignment.world_size,
            missing.join(", "),
            self.assignment.address,
            self.assignment.port,
            self.timeout.as_secs_f64()
        ))
    }
}

/// Peers whose handshake is in progress, each on its own thread.
struct Newcomers {
    job: String,
    secret: Secret,
    /// Second handles of their connections, oldest first. Closing one ends its thread.
    under_way: VecDeque<(usize, Connection)>,
    admitted: usize,
    sender: Sender<Answered>,
    answered: Receiver<Answered>,
}

/// The end of a handshake: its number, the peer's address, and the result.
type Answered = (usize, SocketAddr, Result<Candidate, Rejected>);

impl Newcomers {
    fn new(job: &str, secret: &Secret) -> Self {
        let (sender, answered) = channel();
        let (job, secret) = (job.to_owned(), secret.clone());
        Self { job, secret, under_way: VecDeque::new(), admitted: 0, sender, answered }
    }

    /// Starts the handshake with a peer. Drops the peer if the OS cannot start a thread; a rank tries again.
    fn admit(&mut self, stream: TcpStream, from: SocketAddr) {
        let Ok(connection) = configure(stream) else { return };
        let Ok(handle) = connection.try_clone() else { return };
        if self.under_way.len() >= MAX_NEWCOMERS
            && let Some((_, oldest)) = self.under_way.pop_front()
        {
            oldest.close();
        }
        let number = self.admitted;
        self.admitted += 1;
        let (job, secret, sender) = (self.job.clone(), self.secret.clone(), self.sender.clone());
        let talk = move || {
            // The receiver is gone once all ranks have connected.
            let _ = sender.send((number, from, authenticate(connection, &job, &secret)));
        };
        if spawn_detached("xrun-newcomer", talk).is_ok() {
            self.under_way.push_back((number, handle));
        }
    }

    /// Returns the next peer whose handshake has ended, with the result.
    fn next_answered(&mut self) -> Option<(SocketAddr, Result<Candidate, Rejected>)> {
        let (number, from, answered) = self.answered.try_recv().ok()?;
        self.under_way.retain(|(other, _)| *other != number);
        Some((from, answered))
    }
}

impl Drop for Newcomers {
    fn drop(&mut self) {
        self.under_way.iter().for_each(|(_, connection)| connection.close());
    }
}
