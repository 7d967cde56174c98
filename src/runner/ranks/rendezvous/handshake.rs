//! Both sides of the handshake on a new connection.

use super::secret::Secret;
use crate::error::{Error, Result};
use crate::ranks::Connection;
use crate::ranks::environment::{RankAssignment, SECRET};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Time limit for each message of an unauthenticated peer.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Both ends must have the same version, because frames are not compatible between versions.
const VERSION: &str = concat!("xrun ", env!("CARGO_PKG_VERSION"), " rendezvous 2");

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
#[serde(rename_all = "snake_case")]
enum Reply {
    Proof { proof: [u8; 32] },
    OtherSecret,
}

/// Why a handshake failed.
pub(super) enum Rejected {
    /// Nobody listens at the address.
    Unreachable(String),
    /// The peer is not a rank of this run, or the network failed. The next attempt may succeed.
    Stranger(String),
    /// The peer belongs to a run of the same name but has a different secret, most likely by mistake.
    OtherSecret(String),
    /// Ranks of this run contradict each other.
    Fatal(Error),
}

impl From<io::Error> for Rejected {
    fn from(error: io::Error) -> Self {
        Self::Stranger(match error.kind() {
            // The OS reports a read timeout as either kind.
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                format!("it sent nothing for {} s", MESSAGE_TIMEOUT.as_secs())
            }
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => error.to_string(),
        })
    }
}

/// A rank that proved the secret and waits to be accepted.
pub(super) struct Candidate {
    pub rank: usize,
    pub world: usize,
    connection: Connection,
}

impl Candidate {
    /// Accepts the rank into the run.
    ///
    /// # Errors
    /// If the rank is gone.
    pub fn welcome(mut self) -> io::Result<(usize, Connection)> {
        self.connection.send(&Answer::Welcome, &[])?;
        self.connection.set_timeout(None)?;
        Ok((self.rank, self.connection))
    }

    /// Tells the rank why it was rejected.
    pub fn refuse(mut self, why: &str) {
        refuse(&mut self.connection, why, true);
    }
}

fn refuse(connection: &mut Connection, why: &str, permanent: bool) {
    // A peer that is gone needs no answer.
    let _ = connection.send(&Answer::Refused { why: why.to_owned(), permanent }, &[]);
}

fn nonce() -> Result<[u8; 16], Rejected> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Rejected::Stranger(format!("the OS gave no random numbers: {e}")))?;
    Ok(bytes)
}

/// Runs rank 0's side until the other rank has proved the secret.
pub(super) fn authenticate(
    mut connection: Connection,
    job: &str,
    secret: &Secret,
) -> Result<Candidate, Rejected> {
    let hello: Hello = connection.receive_handshake(Instant::now() + MESSAGE_TIMEOUT)?;
    if hello.version != VERSION {
        let why = format!("rank 0 is {VERSION}, but rank {} is {}", hello.rank, hello.version);
        refuse(&mut connection, &why, true);
        return Err(Rejected::Stranger(why));
    }
    if hello.job != job {
        let why = "this is another run".to_owned();
        refuse(&mut connection, &why, false);
        return Err(Rejected::Stranger(why));
    }
    let nonce = nonce()?;
    let proof = secret.proof("rank 0", hello.nonce, nonce, 0);
    connection.send(&Answer::Challenge { nonce, proof }, &[])?;
    let other_secret = || Rejected::OtherSecret(format!("rank {} has a different {SECRET}", hello.rank));
    match connection.receive_handshake(Instant::now() + MESSAGE_TIMEOUT)? {
        Reply::Proof { proof } if secret.accepts(proof, "rank", nonce, hello.nonce, hello.rank) => {}
        Reply::Proof { .. } => {
            refuse(&mut connection, &format!("rank {} has a different {SECRET}", hello.rank), true);
            return Err(other_secret());
        }
        Reply::OtherSecret => return Err(other_secret()),
    }
    Ok(Candidate { rank: hello.rank, world: hello.world, connection })
}

/// Runs the side of the other ranks. Waits for the welcome until `deadline`.
pub(super) fn introduce(
    stream: TcpStream,
    assignment: &RankAssignment,
    secret: &Secret,
    deadline: Instant,
) -> Result<Connection, Rejected> {
    let mut connection = configure(stream)?;
    let own_nonce = nonce()?;
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
            Answer::Refused { why, .. } => return Err(Rejected::Stranger(why)),
            Answer::Challenge { nonce, proof } => {
                if !secret.accepts(proof, "rank 0", own_nonce, nonce, 0) {
                    connection.send(&Reply::OtherSecret, &[])?;
                    return Err(Rejected::OtherSecret(format!("rank 0 has a different {SECRET}")));
                }
                let proof = secret.proof("rank", nonce, own_nonce, rank);
                connection.send(&Reply::Proof { proof }, &[])?;
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

/// Configures a TCP stream: sends small frames at once, notices a vanished machine within seconds, and sets a
/// timeout for the messages of the handshake.
pub(super) fn configure(stream: TcpStream) -> io::Result<Connection> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(2))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        // In milliseconds. The OS sends no keepalive probes while data waits for an acknowledgment.
        sockopt::set_tcp_user_timeout(&stream, 5000)?;
    }
    let connection = Connection::Tcp(stream);
    connection.set_timeout(Some(MESSAGE_TIMEOUT))?;
    Ok(connection)
}
