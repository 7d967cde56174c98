//! Framed messages between two processes: a JSON header and a body of raw bytes.
//!
//! ```text
//! header bytes: u32 | body bytes: u64 | header | body          (little-endian)
//! ```
//!
//! Both ends run the same binary on machines with the same byte order. The handshake of a TCP connection
//! checks the version.

use crate::device::communicator::{CollectiveResult, Contribution, RankPhase};
use crate::error::{Error, ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Largest header in bytes.
const MAX_HEADER: u32 = 1 << 20;

/// Largest handshake message in bytes; it has no body.
const MAX_HANDSHAKE: u32 = 1 << 16;

/// Largest body in bytes: more than the gradients of any model that fits a GPU.
const MAX_BODY: u64 = 1 << 40;

/// Connection between two processes.
#[derive(Debug)]
pub enum Connection {
    /// Between a parent and its child.
    Unix(UnixStream),
    /// Between machines, or between processes that an external launcher started.
    Tcp(TcpStream),
}

/// Runs an expression on either kind of stream. They share methods but have no common trait for them.
macro_rules! on_stream {
    ($connection:expr, $stream:ident => $body:expr) => {
        match $connection {
            Connection::Unix($stream) => $body,
            Connection::Tcp($stream) => $body,
        }
    };
}

impl Connection {
    /// Returns a second handle of the same connection, so that one thread can read while another writes.
    ///
    /// # Errors
    /// If the OS has no handle left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Connection::Unix(stream) => Connection::Unix(stream.try_clone()?),
            Connection::Tcp(stream) => Connection::Tcp(stream.try_clone()?),
        })
    }

    /// Sets the timeout of each read and write; `None` waits without limit.
    ///
    /// # Errors
    /// If the OS reports an error.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        on_stream!(self, stream => {
            stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
        })
    }

    /// Closes both directions, which wakes a thread that reads. Does nothing if the connection is closed
    /// already.
    pub fn close(&self) {
        let _ = on_stream!(self, stream => stream.shutdown(Shutdown::Both));
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// If the other end is gone.
    pub fn send(&mut self, header: &impl Serialize, body: &[&[u8]]) -> io::Result<()> {
        let header = serde_json::to_vec(header)?;
        let bytes: u64 = body.iter().map(|part| part.len() as u64).sum();
        let mut head = Vec::with_capacity(12 + header.len());
        head.extend((header.len() as u32).to_le_bytes());
        head.extend(bytes.to_le_bytes());
        head.extend(&header);
        self.write_all(&head)?;
        body.iter().try_for_each(|part| self.write_all(part))?;
        self.flush()
    }

    /// Receives a frame. Calls `arrived` after each part of it, because a large frame takes long.
    ///
    /// # Errors
    /// If the other end is gone or sends an invalid frame ([`io::ErrorKind::InvalidData`]).
    pub fn receive<T: DeserializeOwned>(&mut self, arrived: impl FnMut()) -> io::Result<(T, Vec<u8>)> {
        let mut reader = ReportingReader { connection: self, arrived };
        let (mut header_bytes, mut body_bytes) = ([0; 4], [0; 8]);
        reader.read_exact(&mut header_bytes)?;
        reader.read_exact(&mut body_bytes)?;
        let (header_bytes, body_bytes) = (u32::from_le_bytes(header_bytes), u64::from_le_bytes(body_bytes));
        if header_bytes > MAX_HEADER || body_bytes > MAX_BODY {
            return Err(invalid_frame(format!("a frame of {header_bytes} + {body_bytes} bytes")));
        }
        let header = read_bytes(&mut reader, u64::from(header_bytes))?;
        let header = serde_json::from_slice(&header).map_err(|e| invalid_frame(e.to_string()))?;
        Ok((header, read_bytes(&mut reader, body_bytes)?))
    }

    /// Receives a handshake message, a short frame without a body, from a peer that is not authenticated yet.
    ///
    /// # Errors
    /// Fails like [`Connection::receive`], and if the message is incomplete at `deadline`, however slowly it
    /// arrives.
    pub fn receive_handshake<T: DeserializeOwned>(&mut self, deadline: Instant) -> io::Result<T> {
        let mut head = [0; 12];
        self.read_until(&mut head, deadline)?;
        let [a, b, c, d, body @ ..] = head;
        let (bytes, body) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(body));
        if bytes > MAX_HANDSHAKE || body > 0 {
            return Err(invalid_frame(format!("a handshake message of {bytes} + {body} bytes")));
        }
        let mut message = vec![0; bytes as usize];
        self.read_until(&mut message, deadline)?;
        serde_json::from_slice(&message).map_err(|e| invalid_frame(e.to_string()))
    }

    /// Fills a buffer before `deadline`.
    fn read_until(&mut self, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"));
            }
            self.set_timeout(Some(left))?;
            match self.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => buffer = &mut buffer[read..],
                // The loop checks the deadline, because a signal may interrupt a read early.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Reads `bytes` bytes. Memory grows with the bytes that arrive, not with the length that a header claims.
fn read_bytes(reader: &mut impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(bytes.min(1 << 20) as usize);
    let read = reader.take(bytes).read_to_end(&mut all)?;
    if read as u64 == bytes { Ok(all) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads a connection and calls `arrived` after each part.
struct ReportingReader<'a, F> {
    connection: &'a mut Connection,
    arrived: F,
}

impl<F: FnMut()> Read for ReportingReader<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.read(buffer).inspect(|_| (self.arrived)())
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        on_stream!(self, stream => stream.read(buffer))
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        on_stream!(self, stream => stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        on_stream!(self, stream => stream.flush())
    }
}

/// Sends a message without a body. Does nothing while another message is being sent, because its bytes prove
/// the same: this process is alive. Breaks if the other end is gone.
pub(super) fn send_if_idle(connection: &Mutex<Connection>, message: &impl Serialize) -> ControlFlow<()> {
    let sent = match connection.try_lock() {
        Ok(mut connection) => connection.send(message, &[]),
        Err(TryLockError::Poisoned(connection)) => connection.into_inner().send(message, &[]),
        Err(TryLockError::WouldBlock) => Ok(()),
    };
    if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

fn invalid_frame(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("received an invalid frame: {why}"))
}

/// Message from a rank to the server of its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RankMessage {
    /// Calls a collective. The body is the contribution.
    Collective { name: String, kind: PayloadKind },
    /// Publishes the status of the rank.
    Status { step: u64, phase: RankPhase },
    /// The rank made progress since its last message; the arriving bytes are the message.
    Progress,
    /// Carries an exit report in the body.
    ExitReport,
    /// Aborts the run.
    Abort { kind: ErrorKind, reason: String },
}

/// Message from the server to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ServerMessage {
    /// Result of the collective that the rank waits for; `lengths` are the lengths of the parts of the body.
    Result { kind: PayloadKind, lengths: Vec<u64> },
    /// The run is aborted.
    Aborted { kind: ErrorKind, reason: String },
    /// Request to save and stop.
    Stop,
    /// The server's process is alive; the arriving bytes are the message.
    Heartbeat,
}

impl ServerMessage {
    /// Returns the message that tells ranks why the run was aborted.
    pub(super) fn aborted(error: &Error) -> Self {
        Self::Aborted { kind: error.kind(), reason: error.message().to_owned() }
    }
}

/// Content of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PayloadKind {
    SumF32,
    SumF64,
    Gather,
    Broadcast,
}

/// Encodes a contribution as its kind and body.
pub(super) fn encode_contribution(contribution: &Contribution) -> (PayloadKind, &[u8]) {
    match contribution {
        Contribution::SumF32(values) => (PayloadKind::SumF32, bytemuck::cast_slice(values)),
        Contribution::SumF64(values) => (PayloadKind::SumF64, bytemuck::cast_slice(values)),
        Contribution::Gather(bytes) => (PayloadKind::Gather, bytes),
        Contribution::Broadcast(bytes) => (PayloadKind::Broadcast, bytes),
    }
}

/// Decodes a contribution.
///
/// # Errors
/// If the body is not a whole number of values.
pub(super) fn decode_contribution(kind: PayloadKind, body: Vec<u8>) -> io::Result<Contribution> {
    Ok(match kind {
        PayloadKind::SumF32 => Contribution::SumF32(values(&body)?),
        PayloadKind::SumF64 => Contribution::SumF64(values(&body)?),
        PayloadKind::Gather => Contribution::Gather(body),
        PayloadKind::Broadcast => Contribution::Broadcast(body),
    })
}

/// Encodes a result as its kind and the parts of its body.
pub(super) fn encode_result(result: &CollectiveResult) -> (PayloadKind, Vec<&[u8]>) {
    match result {
        CollectiveResult::SumF32(values) => (PayloadKind::SumF32, vec![bytemuck::cast_slice(values)]),
        CollectiveResult::SumF64(values) => (PayloadKind::SumF64, vec![bytemuck::cast_slice(values)]),
        CollectiveResult::Bytes(all) => (PayloadKind::Gather, all.iter().map(Vec::as_slice).collect()),
    }
}

/// Decodes a result whose body has parts of the given lengths in bytes.
///
/// # Errors
/// If the body is not a whole number of values, or is shorter than its parts.
pub(super) fn decode_result(kind: PayloadKind, lengths: &[u64], body: &[u8]) -> io::Result<CollectiveResult> {
    Ok(match kind {
        PayloadKind::SumF32 => CollectiveResult::SumF32(values(body)?),
        PayloadKind::SumF64 => CollectiveResult::SumF64(values(body)?),
        PayloadKind::Gather | PayloadKind::Broadcast => {
            let mut rest = body;
            let mut part = |&length: &u64| {
                let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
                let length = length.ok_or_else(|| invalid_frame("parts beyond the body".into()))?;
                let (part, after) = rest.split_at(length);
                rest = after;
                Ok(part.to_vec())
            };
            CollectiveResult::Bytes(lengths.iter().map(&mut part).collect::<io::Result<_>>()?)
        }
    })
}

fn values<T: bytemuck::Pod>(body: &[u8]) -> io::Result<Vec<T>> {
    if !body.len().is_multiple_of(size_of::<T>()) {
        return Err(invalid_frame(format!(
            "{} bytes are not a whole number of {}-byte values",
            body.len(),
            size_of::<T>()
        )));
    }
    Ok(bytemuck::pod_collect_to_vec(body))
}
