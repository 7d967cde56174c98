//! The side of all ranks except 0: each connects to rank 0.

use super::address::{address_and_ports, check_stop, ports, resolve};
use super::handshake::{MESSAGE_TIMEOUT, Rejected, introduce};
use super::secret::Secret;
use crate::error::{Error, Result};
use crate::ranks::environment::{RankAssignment, SECRET};
use crate::ranks::{Connection, Stop};
use crate::results::progress::eprint_line;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Pause between two attempts to reach rank 0.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Time after which a rank first reports that it is still looking for rank 0, and the time between further
/// reports.
const FIRST_NOTICE: Duration = Duration::from_secs(5);
const NEXT_NOTICE: Duration = Duration::from_secs(60);

/// Connects a rank other than 0 to rank 0.
///
/// # Errors
/// If rank 0 does not answer within `timeout` or refuses, or a stop is requested.
pub fn join(
    assignment: &RankAssignment,
    secret: &Secret,
    timeout: Duration,
    stop: &Stop,
) -> Result<Connection> {
    let began = Instant::now();
    let deadline = began + timeout;
    let mut notice_after = FIRST_NOTICE;
    let mut found = Found::default();
    loop {
        for port in ports(assignment) {
            match attempt(assignment, port, secret, deadline)? {
                Ok(connection) => return Ok(connection),
                Err(Rejected::Fatal(refused)) => return Err(refused),
                Err(rejected) => found.note(port, rejected),
            }
            check_stop(stop)?;
            if Instant::now() > deadline {
                return Err(Error::failed(format!(
                    "rank {} did not find rank 0 at {} within {} s: {}",
                    assignment.rank,
                    address_and_ports(assignment),
                    timeout.as_secs_f64(),
                    found.describe()
                )));
            }
            if began.elapsed() > notice_after {
                notice_after = began.elapsed() + NEXT_NOTICE;
                eprint_line(&format!(
                    "rank {} is looking for rank 0 at {}, for at most parallelism.timeout_s = {} s: {}",
                    assignment.rank,
                    address_and_ports(assignment),
                    timeout.as_secs_f64(),
                    found.describe()
                ));
            }
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Tries all addresses of a port.
fn attempt(
    assignment: &RankAssignment,
    port: u16,
    secret: &Secret,
    deadline: Instant,
) -> Result<Result<Connection, Rejected>> {
    let (mut unreachable, mut rejected) = ("the name has no address".to_owned(), None);
    for address in resolve(assignment, port)? {
        match TcpStream::connect_timeout(&address, MESSAGE_TIMEOUT) {
            Ok(stream) => match introduce(stream, assignment, secret, deadline) {
                Ok(connection) => return Ok(Ok(connection)),
                Err(why) => rejected = Some(why),
            },
            Err(e) => unreachable = e.to_string(),
        }
    }
    Ok(Err(rejected.unwrap_or(Rejected::Unreachable(unreachable))))
}

/// What this rank found so far instead of rank 0.
#[derive(Default)]
struct Found {
    other_secret: Option<String>,
    /// The last answer at each port.
    strangers: BTreeMap<u16, String>,
    unreachable: String,
}

impl Found {
    fn note(&mut self, port: u16, rejected: Rejected) {
        match rejected {
            Rejected::OtherSecret(why) => {
                if self.other_secret.is_none() {
                    eprint_line(&format!(
                        "warning: {why} (port {port}): set it to the same text for every rank, or to none"
                    ));
                }
                self.other_secret = Some(why);
            }
            Rejected::Unreachable(why) => {
                self.strangers.remove(&port);
                self.unreachable = why;
            }
            Rejected::Stranger(why) => _ = self.strangers.insert(port, why),
            Rejected::Fatal(e) => _ = self.strangers.insert(port, e.to_string()),
        }
    }

    /// Returns the best explanation: a different secret first, then other programs, then no listener.
    fn describe(&self) -> String {
        if let Some(why) = &self.other_secret {
            return format!("{why}: set {SECRET} to the same text for every rank, or to none");
        }
        let Some((port, why)) = self.strangers.first_key_value() else { return self.unreachable.clone() };
        let ports: Vec<String> = self.strangers.keys().map(u16::to_string).collect();
        format!(
            "other programs use ports {} ({port}: {why}). If rank 0 cannot listen on any port, set MASTER_PORT or XRUN_PORT to \
             another",
            ports.join(", ")
        )
    }
}
