//! Handles a connection: reads one request and writes one response, each within a time limit.

use super::request::{MAX_HEAD, Refusal, Request};
use super::response::{Method, Response};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The times that a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until the head of the request has arrived.
    pub read: Duration,
    /// Until the response has been taken.
    pub write: Duration,
}

/// The most bytes that are read and discarded after a refusal. Closing a connection with unread bytes resets
/// it, and the client would not see the response.
const MAX_DRAINED: usize = 1 << 20;

/// The status of a request that did not arrive in time.
const TIMEOUT_STATUS: u16 = 408;

/// How long to wait for the end of those bytes.
const DRAIN: Duration = Duration::from_millis(500);

/// Reads the request of a connection, answers it with `respond`, and closes the connection. A client that
/// goes away is not an error.
pub fn answer(stream: &mut TcpStream, limits: Limits, respond: impl FnOnce(&Request) -> Response) {
    let (method, response, has_more) = match read(stream, Instant::now() + limits.read) {
        Ok(Some(request)) => (request.method, respond(&request), false),
        Ok(None) => return,
        Err(refusal) => (Method::Get, refusal.response(), refusal.status != TIMEOUT_STATUS),
    };
    finish(stream, &response.to_bytes(method), limits, has_more);
}

/// Refuses a connection, whatever it asks for and however slowly.
pub fn reject(stream: &mut TcpStream, limits: Limits, refusal: &Refusal) {
    // Read what has arrived of the request, because closing with unread bytes would reset the connection
    // before the client has its answer.
    let is_whole = read(stream, Instant::now() + limits.read).is_ok();
    finish(stream, &refusal.response().to_bytes(Method::Get), limits, !is_whole);
}

/// Writes a response and closes the connection.
fn finish(stream: &mut TcpStream, response: &[u8], limits: Limits, has_more: bool) {
    let is_written = write(stream, response, Instant::now() + limits.write).is_ok();
    if is_written && stream.shutdown(Shutdown::Write).is_ok() && has_more {
        drain(stream);
    }
}

/// Reads a request, or returns `None` if the client has gone away.
fn read(stream: &mut TcpStream, until: Instant) -> Result<Option<Request>, Refusal> {
    let late = || Refusal::new(TIMEOUT_STATUS, "the request did not arrive in time");
    let mut head = Vec::new();
    let mut part = [0; 4 << 10];
    loop {
        let left = time_left(until).ok_or_else(late)?;
        let wait = MAX_HEAD - head.len();
        let space = part.len().min(wait);
        let read = stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut part[..space]));
        match read {
            Ok(0) => return Ok(None),
            Ok(count) => head.extend_from_slice(&part[..count]),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if is_timeout(&e) => return Err(late()),
            Err(_) => return Ok(None),
        }
        if let Some(request) = Request::parse(&head)? {
            return Ok(Some(request));
        }
    }
}

/// Writes bytes until a deadline, however slowly the client takes them.
fn write(stream: &mut TcpStream, bytes: &[u8], until: Instant) -> std::io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let left = time_left(until).ok_or(ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads what a client still sends, within limits.
fn drain(stream: &mut TcpStream) {
    let until = Instant::now() + DRAIN;
    let mut part = [0; 4 << 10];
    let mut drained = 0;
    while drained < MAX_DRAINED {
        let Some(left) = time_left(until) else { return };
        match stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut part)) {
            Ok(0) | Err(_) => return,
            Ok(count) => drained += count,
        }
    }
}

/// Returns the time until a deadline, or `None` once it has passed.
fn time_left(until: Instant) -> Option<Duration> {
    Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
