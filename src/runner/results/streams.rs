//! Lines on stdout and stderr that a reader who does not read cannot stop.
//!
//! A pipe that nobody reads is full after 64 KiB, and a terminal can be paused. A write then waits, and with
//! it the training, and the watchdog that should end the run. So a line is written at once only if that
//! cannot wait; otherwise it goes to a queue, which a thread writes. If the queue is full, its oldest lines
//! are left out, and their number is written in their place.

use super::stdout::Stdout;
use crate::error::ErrorKind;
use crate::lock::lock;
use crate::threads::spawn_detached;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The most bytes that wait for a reader: hours of steps of a large model.
const MAX_WAITING: usize = 16 << 20;

/// A pipe or terminal that is ready takes this many bytes without waiting (`PIPE_BUF` of Linux).
const READY_BYTES: usize = 4096;

/// How long the end of a process waits for a reader that reads nothing: normally, and after a signal.
const PATIENCE: Duration = Duration::from_secs(10);
const STOPPED_PATIENCE: Duration = Duration::from_secs(1);

/// Where a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// stdout.
    Out,
    /// stderr.
    Err,
}

/// What the lines of a stream are, and so how their absence is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Text, or the live lines of a terminal.
    ForPeople,
    /// A JSON object per line.
    Json,
}

/// The lines that wait for a reader.
#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Line>,
    bytes: usize,
    /// True while a thread writes.
    is_written: bool,
    /// Counts the lines that were written.
    written: u64,
}

#[derive(Debug)]
struct Line {
    bytes: Vec<u8>,
    /// How many lines this one stands for, if they were left out; 0 for a line of its own.
    left_out: u64,
}

impl Waiting {
    /// Adds a line. Leaves out the oldest lines if there are too many bytes, and counts them in the place of
    /// the last of them.
    fn push(&mut self, bytes: Vec<u8>, kind: Lines, most: usize) {
        self.bytes += bytes.len();
        self.lines.push_back(Line { bytes, left_out: 0 });
        let mut left_out = 0;
        while self.bytes > most && self.lines.len() > 1 {
            let Some(line) = self.lines.pop_front() else { break };
            self.bytes -= line.bytes.len();
            left_out += line.left_out.max(1);
        }
        if left_out > 0 {
            let bytes = describe(left_out, kind);
            self.bytes += bytes.len();
            self.lines.push_front(Line { bytes, left_out });
        }
    }

    fn pop(&mut self) -> Option<Line> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.bytes.len();
        Some(line)
    }
}

/// Returns the line that stands for lines that were left out.
fn describe(left_out: u64, kind: Lines) -> Vec<u8> {
    match kind {
        Lines::Json => format!("{}\n", json!({"event": "left_out", "lines": left_out})),
        Lines::ForPeople => format!("({left_out} lines are left out here, because nothing read them)\n"),
    }
    .into_bytes()
}

/// One of the two streams of this process.
struct Console {
    stream: Stream,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

static OUT: Console = Console::new(Stream::Out);
static ERR: Console = Console::new(Stream::Err);

impl Console {
    const fn new(stream: Stream) -> Self {
        let waiting = Waiting { lines: VecDeque::new(), bytes: 0, is_written: false, written: 0 };
        Self { stream, waiting: Mutex::new(waiting), changed: Condvar::new() }
    }

    fn on(stream: Stream) -> &'static Self {
        match stream {
            Stream::Out => &OUT,
            Stream::Err => &ERR,
        }
    }

    /// Writes lines at once, or queues them if that might wait. A closed stream is not an error.
    fn write(&'static self, bytes: Vec<u8>, kind: Lines) {
        let mut waiting = lock(&self.waiting);
        if !waiting.is_written && waiting.lines.is_empty() && bytes.len() <= READY_BYTES && self.is_ready() {
            waiting.is_written = true;
            drop(waiting);
            self.put(&bytes);
            waiting = lock(&self.waiting);
            waiting.is_written = false;
            self.changed.notify_all();
        } else {
            waiting.push(bytes, kind, MAX_WAITING);
        }
        self.start_writing(waiting);
    }

    /// Starts a thread that writes what waits, unless one does or nothing waits.
    fn start_writing(&'static self, mut waiting: MutexGuard<'static, Waiting>) {
        if waiting.is_written || waiting.lines.is_empty() {
            return;
        }
        waiting.is_written = true;
        let write_all = move || {
            loop {
                let mut waiting = lock(&self.waiting);
                let Some(line) = waiting.pop() else {
                    waiting.is_written = false;
                    self.changed.notify_all();
                    return;
                };
                drop(waiting);
                self.put(&line.bytes);
                lock(&self.waiting).written += 1;
                self.changed.notify_all();
            }
        };
        if spawn_detached("xrun-console", write_all).is_err() {
            // The lines wait until a thread can be started.
            waiting.is_written = false;
        }
    }

    /// Writes bytes, however long that takes.
    fn put(&self, bytes: &[u8]) {
        let _ = match self.stream {
            Stream::Out => Stdout.write_all(bytes).and_then(|()| Stdout.flush()),
            Stream::Err => io::stderr().write_all(bytes),
        };
    }

    /// Returns true if [`READY_BYTES`] can be written now without waiting, or fail at once.
    fn is_ready(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = |fd: &dyn AsFd| {
            let mut polled = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)];
            // Waiting for a stream that cannot be polled would wait for ever.
            poll(&mut polled, Some(&now)).map_or(true, |ready| ready > 0)
        };
        match self.stream {
            Stream::Out => ready(&io::stdout()),
            Stream::Err => ready(&io::stderr()),
        }
    }

    /// Waits until every line is written, or until none was for `patience`. Returns true if all are written.
    fn drain(&self, patience: Duration) -> bool {
        let mut waiting = lock(&self.waiting);
        let mut written = waiting.written;
        let mut since = Instant::now();
        while waiting.is_written || !waiting.lines.is_empty() {
            if waiting.written != written {
                (written, since) = (waiting.written, Instant::now());
            }
            let Some(left) = patience.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) else {
                return false;
            };
            waiting = match self.changed.wait_timeout(waiting, left) {
                Ok((waiting, _)) => waiting,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }
}

/// Waits until everything that was said is written. Stops waiting for a reader that reads nothing for
/// `patience`; what waits is then lost with the process. Returns true if everything is written.
pub fn drain(patience: Duration) -> bool {
    let out = OUT.drain(patience);
    ERR.drain(patience) && out
}

/// Waits as [`drain`] does at the end of a process, which an error of this kind ends. A process that was told
/// to stop does not wait long. Returns true if everything is written.
pub fn drain_at_end(ended: Option<ErrorKind>) -> bool {
    drain(if ended == Some(ErrorKind::Interrupted) { STOPPED_PATIENCE } else { PATIENCE })
}

/// Writes to a stream without ever waiting for its reader. What is written before a flush stays together.
#[derive(Debug)]
pub struct Handle {
    stream: Stream,
    lines: Lines,
    bytes: Vec<u8>,
}

impl Handle {
    /// Creates a handle for lines of one kind.
    pub fn new(stream: Stream, lines: Lines) -> Self {
        Self { stream, lines, bytes: Vec::new() }
    }
}

impl Write for Handle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        if !bytes.is_empty() {
            Console::on(self.stream).write(bytes, self.lines);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_find_no_room_are_counted_in_their_place() {
        let mut waiting = Waiting::default();
        (0..10).for_each(|n| waiting.push(format!("line {n}\n").into_bytes(), Lines::ForPeople, 70));
        (10..20).for_each(|n| waiting.push(format!("line {n}\n").into_bytes(), Lines::ForPeople, 100));
        let lines: Vec<Line> = std::iter::from_fn(|| waiting.pop()).collect();
        let all = String::from_utf8(lines.iter().flat_map(|line| line.bytes.clone()).collect()).unwrap();
        let first = all.lines().next().unwrap();
        let left_out: usize = first.trim_start_matches('(').split(' ').next().unwrap().parse().unwrap();
        assert_eq!(left_out + all.lines().count() - 1, 20, "{all}");
        assert!(all.ends_with("line 19\n"), "{all}");
        assert_eq!(waiting.bytes, 0);
        assert_eq!(describe(3, Lines::Json), b"{\"event\":\"left_out\",\"lines\":3}\n");
    }
}
