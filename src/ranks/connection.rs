//! Frames on a stream between two processes: a header in JSON, values as they lie in memory.
//!
//! ```text
//! header bytes: u32 | body bytes: u64 | header | body          (little-endian)
//! ```
//!
//! Both ends are the same binary on machines of one byte order, which the handshake of who connects has to see to.

use crate::device::communicator::{Activity, Deposit, Outcome};
use crate::error::{Error, Kind as ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Most bytes of a header.
const MAX_HEADER: u32 = 1 << 20;

/// Most bytes of a word of a handshake, which has no body.
const MAX_WORD: u32 = 1 << 16;

/// Most bytes of a body: more than the gradients of any model that fits a GPU.
const MAX_BODY: u64 = 1 << 40;

/// A connection between two processes.
#[derive(Debug)]
pub enum Line {
    /// Within a machine, from parent to child.
    #[cfg(unix)]
    Unix(UnixStream),
    /// Between machines, or between processes that do not know each other.
    Tcp(TcpStream),
}

/// Both kinds of stream have the same methods and no trait for them.
macro_rules! of_either {
    ($line:expr, $stream:ident => $body:expr) => {
        match $line {
            #[cfg(unix)]
            Line::Unix($stream) => $body,
            Line::Tcp($stream) => $body,
        }
    };
}

impl Line {
    /// A second handle of the same connection, for a thread that reads while another one writes.
    ///
    /// # Errors
    /// When the system has no handle left.
    pub fn another(&self) -> io::Result<Self> {
        Ok(match self {
            #[cfg(unix)]
            Line::Unix(stream) => Line::Unix(stream.try_clone()?),
            Line::Tcp(stream) => Line::Tcp(stream.try_clone()?),
        })
    }

    /// Limits how long a read or write may take; `None` waits for ever.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn limit(&self, patience: Option<Duration>) -> io::Result<()> {
        of_either!(self, stream => stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience)))
    }

    /// Closes both directions, so that a thread that reads is woken. What was closed already stays closed.
    pub fn close(&self) {
        let _ = of_either!(self, stream => stream.shutdown(Shutdown::Both));
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// When the other end is gone.
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

    /// Receives a frame.
    ///
    /// # Errors
    /// When the other end is gone, or sends what is no frame.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<(T, Vec<u8>)> {
        let (mut header_bytes, mut body_bytes) = ([0; 4], [0; 8]);
        self.read_exact(&mut header_bytes)?;
        self.read_exact(&mut body_bytes)?;
        let (header_bytes, body_bytes) = (u32::from_le_bytes(header_bytes), u64::from_le_bytes(body_bytes));
        if header_bytes > MAX_HEADER || body_bytes > MAX_BODY {
            return Err(no_frame(format!("a frame of {header_bytes} + {body_bytes} bytes")));
        }
        let header = self.exactly(u64::from(header_bytes))?;
        let header = serde_json::from_slice(&header).map_err(|e| no_frame(e.to_string()))?;
        Ok((header, self.exactly(body_bytes)?))
    }

    /// Receives a short frame without a body, from somebody who may be a stranger.
    ///
    /// # Errors
    /// As [`Line::receive`], and when it is not whole at `deadline`, however slowly it comes.
    pub fn receive_word<T: DeserializeOwned>(&mut self, deadline: Instant) -> io::Result<T> {
        let mut head = [0; 12];
        self.fill(&mut head, deadline)?;
        let [a, b, c, d, body @ ..] = head;
        let (bytes, body) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(body));
        if bytes > MAX_WORD || body > 0 {
            return Err(no_frame(format!("a word of {bytes} + {body} bytes")));
        }
        let mut word = vec![0; bytes as usize];
        self.fill(&mut word, deadline)?;
        serde_json::from_slice(&word).map_err(|e| no_frame(e.to_string()))
    }

    fn fill(&mut self, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long over a word"));
            }
            self.limit(Some(left))?;
            match self.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => buffer = &mut buffer[read..],
                // At the deadline, or before it for a signal: the clock decides.
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

    /// Memory grows with what comes, not with what was announced.
    fn exactly(&mut self, bytes: u64) -> io::Result<Vec<u8>> {
        let mut all = Vec::with_capacity(bytes.min(1 << 20) as usize);
        let read = self.take(bytes).read_to_end(&mut all)?;
        if read as u64 == bytes { Ok(all) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        of_either!(self, stream => stream.read(buffer))
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        of_either!(self, stream => stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        of_either!(self, stream => stream.flush())
    }
}

fn no_frame(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("what came is no frame: {why}"))
}

/// What a rank tells the group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Up {
    /// It comes to a meeting; the body is what it brings.
    Meet { meeting: String, kind: Kind },
    /// What it does now.
    Now { step: u64, activity: Activity },
    /// How it ended, in the body.
    LastWords,
    /// It ends the run, or ends because of itself.
    Abort { kind: ErrorKind, reason: String },
}

/// What the group tells a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Down {
    /// What came of the meeting that it is in; `lengths` are those of the parts of the body.
    Outcome { kind: Kind, lengths: Vec<u64> },
    /// The run is ended.
    Ended { kind: ErrorKind, reason: String },
    /// Somebody asks the run to save and stop.
    Stop,
}

impl Down {
    /// The run is ended, and why.
    pub(super) fn ended(why: &Error) -> Self {
        Self::Ended { kind: why.kind(), reason: why.message().to_owned() }
    }
}

/// What a body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    SumF32,
    SumF64,
    Bytes,
    FromFirst,
}

impl Deposit {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Deposit::SumF32(_) => Kind::SumF32,
            Deposit::SumF64(_) => Kind::SumF64,
            Deposit::Bytes(_) => Kind::Bytes,
            Deposit::FromFirst(_) => Kind::FromFirst,
        }
    }

    pub(super) fn body(&self) -> &[u8] {
        match self {
            Deposit::SumF32(values) => bytemuck::cast_slice(values),
            Deposit::SumF64(values) => bytemuck::cast_slice(values),
            Deposit::Bytes(bytes) | Deposit::FromFirst(bytes) => bytes,
        }
    }

    pub(super) fn of(kind: Kind, body: Vec<u8>) -> io::Result<Self> {
        Ok(match kind {
            Kind::SumF32 => Deposit::SumF32(values(&body)?),
            Kind::SumF64 => Deposit::SumF64(values(&body)?),
            Kind::Bytes => Deposit::Bytes(body),
            Kind::FromFirst => Deposit::FromFirst(body),
        })
    }
}

impl Outcome {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Outcome::SumF32(_) => Kind::SumF32,
            Outcome::SumF64(_) => Kind::SumF64,
            Outcome::Bytes(_) => Kind::Bytes,
        }
    }

    pub(super) fn body(&self) -> Vec<&[u8]> {
        match self {
            Outcome::SumF32(values) => vec![bytemuck::cast_slice(values)],
            Outcome::SumF64(values) => vec![bytemuck::cast_slice(values)],
            Outcome::Bytes(all) => all.iter().map(Vec::as_slice).collect(),
        }
    }

    pub(super) fn of(kind: Kind, lengths: &[u64], body: &[u8]) -> io::Result<Self> {
        Ok(match kind {
            Kind::SumF32 => Outcome::SumF32(values(body)?),
            Kind::SumF64 => Outcome::SumF64(values(body)?),
            Kind::Bytes | Kind::FromFirst => {
                let mut rest = body;
                let mut part = |&length: &u64| {
                    let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
                    let (part, after) =
                        rest.split_at(length.ok_or_else(|| no_frame("parts beyond the body".into()))?);
                    rest = after;
                    Ok(part.to_vec())
                };
                Outcome::Bytes(lengths.iter().map(&mut part).collect::<io::Result<_>>()?)
            }
        })
    }
}

fn values<T: bytemuck::Pod>(body: &[u8]) -> io::Result<Vec<T>> {
    if !body.len().is_multiple_of(size_of::<T>()) {
        return Err(no_frame(format!("{} bytes of numbers of {}", body.len(), size_of::<T>())));
    }
    Ok(bytemuck::pod_collect_to_vec(body))
}
