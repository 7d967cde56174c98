//! Rendezvous of ranks that know only an address: rank 0 listens, the others connect, and both sides prove
//! that they know the secret of the run.
//!
//! ```text
//! rank → 0   Hello     { version, job, rank, world, nonce }
//! 0 → rank   Challenge { nonce, proof of the secret over both nonces }       or Refused { why, permanent }
//! rank → 0   Proof     { proof of the secret over both nonces and the rank }
//! 0 → rank   Welcome                                                         or Refused { why, permanent }
//! ```

use super::environment::{PORTS, RankAssignment, SECRET, is_loopback};
use super::server::reject;
use super::{Connection, Stop};
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time that an unauthenticated peer has for each message of the handshake.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two attempts to reach rank 0.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Both ends must be the same version: frames are not compatible between versions.
const VERSION: &str = concat!("xrun ", env!("CARGO_PKG_VERSION"), " rendezvous 1");

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hello {
    version: String,
    job: String,
    rank: usize,
    world: usize,
    nonce: [u8; 16],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Challenge { nonce: [u8; 16], proof: [u8; 32] },
    Refused { why: String, permanent: bool },
    Welcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Proof {
    proof: [u8; 32],
}

/// Failure of a handshake.
enum Rejected {
    /// The peer is not a rank of this run, or the network failed: the next attempt may succeed.
    Retry(String),
    /// Ranks of this run contradict each other.
    Fatal(Error),
}

impl From<io::Error> for Rejected {
    fn from(error: io::Error) -> Self {
        Self::Retry(error.to_string())
    }
}

/// Secret that only ranks of one run know.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Derives the secret of a run whose rank 0 listens at `address`.
    ///
    /// # Errors
    /// When other machines can reach the address and `text` is missing or empty.
    pub fn from_text(text: Option<&str>, address: &str) -> Result<Self> {
        let text = text.unwrap_or_default();
        if text.is_empty() && !is_loopback(address) {
            return Err(Error::usage(format!(
                "ranks meet at {address}, which other machines can reach, and {SECRET} is not set: set it to the same \
                 random text for every rank, such as the output of `openssl rand -hex 16`"
            )));
        }
        Ok(Self(blake3::derive_key("xrun 2026 rendezvous of ranks", text.as_bytes())))
    }

    /// Derives the secret from the variable [`SECRET`] of the environment.
    ///
    /// # Errors
    /// As [`Secret::from_text`].
    pub fn from_environment(address: &str) -> Result<Self> {
        Self::from_text(std::env::var(SECRET).ok().as_deref(), address)
    }

    fn proof(&self, role: &str, a: [u8; 16], b: [u8; 16], rank: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(role.as_bytes()).update(&a).update(&b).update(&(rank as u64).to_le_bytes());
        *hasher.finalize().as_bytes()
    }
}

fn nonce() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::failed(format!("the system has no random numbers: {e}")))?;
    Ok(bytes)
}

/// Accepts, as rank 0, the connections of all other ranks, each with its rank.
///
/// # Errors
/// When no port is free, ranks do not connect within `timeout`, two contradict each other, or a stop is
/// requested.
pub fn accept_ranks(
    assignment: &RankAssignment,
    secret: &Secret,
    timeout: Duration,
    stop: &Stop,
) -> Result<Vec<(usize, Connection)>> {
    let mut connections = Vec::new();
    match accept_into(&mut connections, assignment, secret, timeout, stop) {
        Ok(()) => Ok(connections),
        Err(e) => {
            connections.into_iter().for_each(|(_, connection)| reject(connection, &e));
            Err(e)
        }
    }
}

/// Waits until `connections` has all other ranks.
fn accept_into(
    connections: &mut Vec<(usize, Connection)>,
    assignment: &RankAssignment,
    secret: &Secret,
    timeout: Duration,
    stop: &Stop,
) -> Result<()> {
    let listener = bind(assignment)?;
    let deadline = Instant::now() + timeout;
    let mut last_refused = None;
    while connections.len() + 1 < assignment.world_size {
        match listener.accept() {
            Ok((stream, from)) => match accept_one(stream, assignment, secret, connections) {
                Ok(connection) => connections.push(connection),
                Err(Rejected::Fatal(contradiction)) => return Err(contradiction),
                // Any program may connect to a port by mistake; a rank of this run tries again.
                Err(Rejected::Retry(why)) => last_refused = Some(format!("{from}: {why}")),
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(RETRY_INTERVAL / 5),
            Err(e) => return Err(Error::failed(format!("cannot listen for ranks: {e}"))),
        }
        check_stop(stop)?;
        if Instant::now() > deadline {
            let missing =
                (1..assignment.world_size).filter(|rank| connections.iter().all(|(found, _)| found != rank));
            let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
            let last = last_refused.map(|why| format!(" The last one refused: {why}")).unwrap_or_default();
            return Err(Error::failed(format!(
                "of {} ranks, {} did not connect to {}:{} within {} s.{last}",
                assignment.world_size,
                missing.join(", "),
                assignment.address,
                assignment.port,
                timeout.as_secs_f64()
            )));
        }
    }
    Ok(())
}

/// Fails if a stop is requested: there is nothing to save yet.
fn check_stop(stop: &Stop) -> Result<()> {
    match stop.requested() {
        true => Err(Error::new(ErrorKind::Interrupted, "stopped by a signal before all ranks had connected")),
        false => Ok(()),
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
    let why = failed.map_or_else(|| "it has no address".to_owned(), |e| e.to_string());
    Err(Error::failed(format!(
        "rank 0 cannot listen at {} on a port from {} on: {why}. MASTER_ADDR has to be this machine's",
        assignment.address, assignment.port
    )))
}

fn ports(assignment: &RankAssignment) -> impl Iterator<Item = u16> {
    let first = assignment.port;
    (0..PORTS).filter_map(move |more| first.checked_add(more))
}

fn resolve(assignment: &RankAssignment, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (assignment.address.as_str(), port).to_socket_addrs();
    found
        .map(Iterator::collect)
        .map_err(|e| Error::failed(format!("MASTER_ADDR = {}: {e}", assignment.address)))
}

/// Runs rank 0's side of the handshake. Returns the connection with its rank.
fn accept_one(
    stream: TcpStream,
    assignment: &RankAssignment,
    secret: &Secret,
    known: &[(usize, Connection)],
) -> Result<(usize, Connection), Rejected> {
    stream.set_nonblocking(false)?;
    let mut connection = configure(stream)?;
    let hello: Hello = connection.receive_handshake(Instant::now() + MESSAGE_TIMEOUT)?;
    let refuse = |connection: &mut Connection, why: String, permanent: bool| {
        let refused = Answer::Refused { why: why.clone(), permanent };
        let _ = connection.send(&refused, &[]);
        why
    };
    if hello.version != VERSION {
        let why = format!("rank 0 is {VERSION}, and rank {} is {}", hello.rank, hello.version);
        return Err(Rejected::Retry(refuse(&mut connection, why, true)));
    }
    if hello.job != assignment.job {
        return Err(Rejected::Retry(refuse(&mut connection, "this is another run".to_owned(), false)));
    }
    let nonce = nonce().map_err(|e| Rejected::Retry(e.to_string()))?;
    let proof = secret.proof("rank 0", hello.nonce, nonce, 0);
    connection.send(&Answer::Challenge { nonce, proof }, &[])?;
    let closed = |e: io::Error| {
        Rejected::Retry(format!("rank {} left without a proof ({e}): it has another {SECRET}", hello.rank))
    };
    let proof: Proof = connection.receive_handshake(Instant::now() + MESSAGE_TIMEOUT).map_err(closed)?;
    let expected = secret.proof("rank", nonce, hello.nonce, hello.rank);
    // `blake3::Hash` compares in constant time.
    if blake3::Hash::from(proof.proof) != blake3::Hash::from(expected) {
        let why = format!("rank {} has another {SECRET}", hello.rank);
        return Err(Rejected::Retry(refuse(&mut connection, why, true)));
    }
    if let Some(why) = contradiction(&hello, assignment, known) {
        return Err(Rejected::Fatal(Error::usage(refuse(&mut connection, why, true))));
    }
    connection.send(&Answer::Welcome, &[])?;
    connection.set_timeout(None)?;
    Ok((hello.rank, connection))
}

/// Returns why an authenticated rank cannot belong to the run as rank 0 knows it.
fn contradiction(
    hello: &Hello,
    assignment: &RankAssignment,
    known: &[(usize, Connection)],
) -> Option<String> {
    let (rank, world) = (hello.rank, hello.world);
    if world != assignment.world_size {
        return Some(format!(
            "rank {rank} is one of {world} ranks, and rank 0 one of {}",
            assignment.world_size
        ));
    }
    let taken = rank == 0 || rank >= assignment.world_size || known.iter().any(|(other, _)| *other == rank);
    taken.then(|| format!("two processes are rank {rank}"))
}

/// Connects, as any other rank, to rank 0.
///
/// # Errors
/// When it does not answer within `timeout`, or refuses, or a stop is requested.
pub fn join(
    assignment: &RankAssignment,
    secret: &Secret,
    timeout: Duration,
    stop: &Stop,
) -> Result<Connection> {
    let deadline = Instant::now() + timeout;
    // An answer is a better reason than no answer.
    let (mut unreachable, mut answered) = ("nobody listens".to_owned(), None);
    loop {
        for port in ports(assignment) {
            for address in resolve(assignment, port)? {
                let stream = match TcpStream::connect_timeout(&address, MESSAGE_TIMEOUT) {
                    Ok(stream) => stream,
                    Err(e) => {
                        unreachable = e.to_string();
                        continue;
                    }
                };
                match connect(stream, assignment, secret, deadline) {
                    Ok(connection) => return Ok(connection),
                    Err(Rejected::Fatal(refused)) => return Err(refused),
                    Err(Rejected::Retry(why)) => answered = Some(why),
                }
            }
        }
        if Instant::now() > deadline {
            return Err(Error::failed(format!(
                "rank {} did not find rank 0 at {}:{} within {} s: {}",
                assignment.rank,
                assignment.address,
                assignment.port,
                timeout.as_secs_f64(),
                answered.unwrap_or(unreachable)
            )));
        }
        check_stop(stop)?;
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Runs the side of the handshake of any rank but 0.
fn connect(
    stream: TcpStream,
    assignment: &RankAssignment,
    secret: &Secret,
    deadline: Instant,
) -> Result<Connection, Rejected> {
    let mut connection = configure(stream)?;
    let own_nonce = nonce().map_err(|e| Rejected::Retry(e.to_string()))?;
    let (rank, world) = (assignment.rank, assignment.world_size);
    let hello =
        Hello { version: VERSION.to_owned(), job: assignment.job.clone(), rank, world, nonce: own_nonce };
    connection.send(&hello, &[])?;
    let mut answer_by = Instant::now() + MESSAGE_TIMEOUT;
    loop {
        match connection.receive_handshake(answer_by)? {
            Answer::Refused { why, permanent: true } => {
                return Err(Rejected::Fatal(Error::usage(format!("rank 0 refused rank {rank}: {why}"))));
            }
            Answer::Refused { why, .. } => return Err(Rejected::Retry(why)),
            Answer::Challenge { nonce, proof } => {
                let expected = secret.proof("rank 0", own_nonce, nonce, 0);
                if blake3::Hash::from(proof) != blake3::Hash::from(expected) {
                    return Err(Rejected::Retry(format!(
                        "the process that listens there has another {SECRET}"
                    )));
                }
                let proof = secret.proof("rank", nonce, own_nonce, rank);
                connection.send(&Proof { proof }, &[])?;
                // Rank 0 is authenticated and may count this rank already, so a slow answer must not cause a
                // second attempt.
                answer_by = deadline.max(Instant::now() + MESSAGE_TIMEOUT);
            }
            Answer::Welcome => {
                connection.set_timeout(None)?;
                return Ok(connection);
            }
        }
    }
}

/// Configures a TCP stream: small frames are sent at once, a machine that vanished is noticed within seconds,
/// and messages of the handshake have a timeout.
fn configure(stream: TcpStream) -> io::Result<Connection> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(2))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        // In milliseconds. Keepalive probes are not sent while data waits to be acknowledged.
        sockopt::set_tcp_user_timeout(&stream, 5000)?;
    }
    let connection = Connection::Tcp(stream);
    connection.set_timeout(Some(MESSAGE_TIMEOUT))?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a port that no other test of this process uses.
    fn port() -> u16 {
        TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
    }

    fn assignment(rank: usize, world: usize, port: u16) -> RankAssignment {
        RankAssignment {
            launcher: "test",
            rank,
            world_size: world,
            local_rank: rank,
            local_world_size: world,
            address: "127.0.0.1".to_owned(),
            port,
            // Tests run in parallel, and their ports lie close together.
            job: format!("at {port}"),
            ignored: Vec::new(),
        }
    }

    fn secret(text: &str) -> Secret {
        Secret::from_text(Some(text), "127.0.0.1").unwrap()
    }

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// Returns the ranks that rank 0 accepted, and the result of each other rank.
    fn rendezvous(
        zero: RankAssignment,
        others: Vec<(RankAssignment, &'static str)>,
        timeout: Duration,
    ) -> (Result<Vec<usize>>, Vec<Result<()>>) {
        let zero = std::thread::spawn(move || {
            accept_ranks(&zero, &secret("s"), timeout, &Stop::default())
                .map(|connections| connections.into_iter().map(|(rank, _)| rank).collect())
        });
        let others: Vec<_> = others
            .into_iter()
            .map(|(assignment, text)| {
                std::thread::spawn(move || {
                    join(&assignment, &secret(text), timeout, &Stop::default()).map(|_| ())
                })
            })
            .collect();
        (zero.join().unwrap(), others.into_iter().map(|other| other.join().unwrap()).collect())
    }

    #[test]
    fn ranks_connect_in_any_order() {
        let port = port();
        let others = (1..4).rev().map(|rank| (assignment(rank, 4, port), "s")).collect();
        let (found, joined) = rendezvous(assignment(0, 4, port), others, TIMEOUT);
        let mut found = found.unwrap();
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
        assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    }

    #[test]
    fn connected_ranks_are_told_which_are_missing() {
        use crate::device::communicator::Communicator;
        use crate::ranks::RemoteCommunicator;
        let port = port();
        let zero = std::thread::spawn(move || {
            accept_ranks(&assignment(0, 3, port), &secret("s"), Duration::from_secs(1), &Stop::default())
                .map(|_| ())
        });
        let connection = join(&assignment(1, 3, port), &secret("s"), TIMEOUT, &Stop::default()).unwrap();
        let one = RemoteCommunicator::new(1, 3, connection, "rank 0", || {}).unwrap();
        assert!(zero.join().unwrap().unwrap_err().message().contains("of 3 ranks, 2 did not connect"));
        let told = one.barrier("the beginning").unwrap_err();
        assert!(told.message().contains("of 3 ranks, 2 did not connect"), "{told}");
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let (found, _) = rendezvous(assignment(0, 2, port), vec![(assignment(1, 2, port), "s")], TIMEOUT);
        assert_eq!(found.unwrap(), [1]);
    }

    #[test]
    fn ranks_that_contradict_each_other_are_refused() {
        let first = port();
        let (found, joined) =
            rendezvous(assignment(0, 2, first), vec![(assignment(1, 3, first), "s")], TIMEOUT);
        assert!(found.unwrap_err().message().contains("rank 1 is one of 3 ranks, and rank 0 one of 2"));
        assert!(joined[0].as_ref().unwrap_err().message().contains("one of 3 ranks"));
        let second = port();
        let both = vec![(assignment(1, 3, second), "s"), (assignment(1, 3, second), "s")];
        let (found, joined) = rendezvous(assignment(0, 3, second), both, TIMEOUT);
        assert!(found.unwrap_err().message().contains("two processes are rank 1"));
        assert_eq!(joined.iter().filter(|joined| joined.is_err()).count(), 1);
    }

    #[test]
    fn another_secret_or_another_run_does_not_join() {
        let soon = Duration::from_millis(400);
        let first = port();
        let (found, joined) =
            rendezvous(assignment(0, 2, first), vec![(assignment(1, 2, first), "other")], soon);
        let said = found.unwrap_err();
        assert!(said.message().contains("of 2 ranks, 1 did not connect"), "{said}");
        assert!(joined[0].is_err(), "it does not know the secret");
        let second = port();
        let other = RankAssignment { job: "another".to_owned(), ..assignment(1, 2, second) };
        let (found, joined) = rendezvous(assignment(0, 2, second), vec![(other, "s")], soon);
        assert!(found.unwrap_err().message().contains("another run"));
        assert!(joined[0].as_ref().unwrap_err().message().contains("did not find rank 0"));
    }

    #[test]
    fn a_peer_that_sends_slowly_delays_no_rank() {
        use std::io::Write;
        let port = port();
        let drip = move || {
            let deadline = Instant::now() + TIMEOUT;
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => break stream,
                    Err(e) => assert!(Instant::now() < deadline, "{e}"),
                }
            };
            // Announces a long message, and sends it byte by byte until the other end closes.
            let announced = [&1000_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
            let mut sent = stream.write_all(&announced);
            while sent.is_ok() && Instant::now() < deadline {
                std::thread::sleep(MESSAGE_TIMEOUT / 8);
                sent = stream.write_all(b" ");
            }
            sent.is_err()
        };
        let peer = std::thread::spawn(drip);
        let (found, joined) =
            rendezvous(assignment(0, 2, port), vec![(assignment(1, 2, port), "s")], TIMEOUT);
        assert_eq!(found.unwrap(), [1]);
        assert!(joined[0].is_ok());
        assert!(peer.join().unwrap(), "its connection was closed");
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let stop = Stop::default();
        stop.request();
        let port = port();
        let waits = [
            accept_ranks(&assignment(0, 2, port), &secret("s"), TIMEOUT, &stop).map(|_| ()),
            join(&assignment(1, 2, port), &secret("s"), TIMEOUT, &stop).map(|_| ()),
        ];
        for ended in waits {
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
        }
    }

    #[test]
    fn an_address_that_others_can_reach_needs_a_secret() {
        assert!(Secret::from_text(None, "localhost").is_ok());
        let error = Secret::from_text(None, "10.0.0.7").unwrap_err();
        assert!(error.message().contains(SECRET), "{error}");
        assert!(Secret::from_text(Some("x"), "10.0.0.7").is_ok());
    }
}
