//! Signals: the first one requests the run to save and stop, and a second SIGINT or SIGTERM ends it at once.
//! Both are acknowledged on arrival, because the current step may take minutes.

use crate::error::{Error, Result};
use crate::results::progress::eprint_line;
use crate::results::streams::drain;
use crate::threads::spawn_detached;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Signals with which a person or a program asks for the end. A second one is a demand.
const REQUESTS: [i32; 2] = [SIGINT, SIGTERM];

/// Signals that announce the end: the terminal or the connection closes (SIGHUP), the batch system or the
/// user's script warns (SIGUSR1 and SIGUSR2, as Slurm's `--signal`), or the limit of processor time is near
/// (SIGXCPU, once per second). They ask for the same, but however many come, none of them ends the process
/// before it has saved. Neither xrun nor NCCL uses them otherwise.
const NOTICES: [i32; 4] = [SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU];

/// Signals that follow the first one within this time count as the same: `timeout` sends one to the process
/// and one to its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// How long the signal thread waits for a line to be written. A paused terminal or a full pipe must not keep
/// a second signal from ending the process.
const SAY_TIMEOUT: Duration = Duration::from_millis(200);

/// A request to stop, shared between threads.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    requested: AtomicBool,
    /// True if the first signal announced the end, rather than asked for it.
    announced: AtomicBool,
    /// Leader of a process group that a second signal also kills; 0 if there is none.
    group: AtomicU32,
}

/// While this exists, a second signal kills a process group together with this process.
#[derive(Debug)]
pub struct KilledTogether(Stop);

impl Drop for KilledTogether {
    fn drop(&mut self) {
        self.0.0.group.store(0, Ordering::SeqCst);
    }
}

/// Ignores SIGXFSZ. The OS sends it when a write exceeds the limit on file size (`ulimit -f`), and by default
/// it ends the process without a message. The write also fails with an error, which is handled like a full
/// disk.
pub fn ignore_file_size_signal() {
    // The handler only sets a flag. If it cannot be installed, the signal still ends the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

impl Stop {
    /// Starts a thread that handles the signals of the process. It prints `acknowledgement` to stderr at the
    /// first one.
    ///
    /// # Errors
    /// If the handlers or the thread cannot be installed.
    pub fn on_signals(acknowledgement: Option<&'static str>) -> Result<Self> {
        let stop = Self::default();
        let refused = |e: std::io::Error| Error::failed(format!("cannot listen to signals: {e}"));
        let ignored = ignored_signals();
        // What `nohup` ignores stays ignored.
        let heeded = NOTICES.iter().filter(|signal| !ignored.contains(signal));
        let mut signals = Signals::new(REQUESTS.iter().chain(heeded)).map_err(refused)?;
        let for_thread = stop.clone();
        let listen = move || {
            let (mut first, mut is_acknowledged): (Option<Instant>, bool) = (None, false);
            for signal in signals.forever() {
                if !for_thread.requested() && NOTICES.contains(&signal) {
                    for_thread.0.announced.store(true, Ordering::SeqCst);
                }
                for_thread.request();
                // Only signals count as a second request, not requests from other ranks.
                let before = first;
                if REQUESTS.contains(&signal) {
                    first = first.or_else(|| Some(Instant::now()));
                }
                if !std::mem::replace(&mut is_acknowledged, true) {
                    acknowledgement.into_iter().for_each(print_line);
                }
                let Some(first) = before.filter(|_| REQUESTS.contains(&signal)) else { continue };
                if first.elapsed() >= SAME_REQUEST {
                    signal_group(for_thread.0.group.load(Ordering::SeqCst), true);
                    print_line("second signal: exiting without saving");
                    signal_hook::low_level::exit(128 + signal);
                }
            }
        };
        spawn_detached("xrun-signals", listen).map_err(refused)?;
        Ok(stop)
    }

    /// Requests a stop from within the process.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::SeqCst);
    }

    /// Returns true if a stop was requested.
    pub fn requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }

    /// Returns true if the first signal announced the end of the time, as Slurm's `--signal` does. After a
    /// request by a person or a program it returns false.
    pub fn was_announced(&self) -> bool {
        self.0.announced.load(Ordering::SeqCst)
    }

    /// Makes a second signal also kill the process group of `leader`, for a caller that waits for it.
    pub fn kill_together(&self, leader: u32) -> KilledTogether {
        self.0.group.store(leader, Ordering::SeqCst);
        KilledTogether(self.clone())
    }
}

/// Returns the signals that this process ignores, as the process that started it decided; none on systems
/// other than Linux.
fn ignored_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_ignored(&status)
}

/// Parses the ignored signals from the content of `/proc/PID/status`: a mask in hexadecimal, from signal 1.
fn parse_ignored(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (0..64).filter(|bit| mask >> bit & 1 == 1).map(|bit| bit + 1).collect()
}

/// Prints a line to stderr, and waits for that no longer than [`SAY_TIMEOUT`].
fn print_line(text: &'static str) {
    let (saying, said) = channel::<()>();
    let line = move || {
        eprint_line(text);
        let _ = drain(SAY_TIMEOUT);
        drop(saying);
    };
    if spawn_detached("xrun-says", line).is_ok() {
        let _ = said.recv_timeout(SAY_TIMEOUT);
    }
}

/// Sends SIGTERM, or SIGKILL if `at_once`, to the process group that was started with `leader` as its first
/// process.
pub fn signal_group(leader: u32, at_once: bool) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = if at_once { Signal::KILL } else { Signal::TERM };
    // Group 1 would mean every process that this one may signal.
    if let Some(leader) = i32::try_from(leader).ok().filter(|&leader| leader > 1).and_then(Pid::from_raw) {
        // An error means that the group has ended.
        let _ = kill_process_group(leader, signal);
    }
}

/// Smallest stack of the first thread, in bytes. Commands take a fraction of it; some systems start with
/// less.
const LEAST_STACK: u64 = 1 << 20;

/// Returns an error if the limit on the stack (`ulimit -s`) is so small that the process would be aborted
/// without a message.
pub fn stack_fault() -> Option<Error> {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Stack).current.filter(|limit| *limit < LEAST_STACK)?;
    Some(Error::failed(format!(
        "the stack of this process is limited to {} KiB, and xrun needs {}; raise it with `ulimit -s {}`",
        limit >> 10,
        LEAST_STACK >> 10,
        8 * (LEAST_STACK >> 10)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(parse_ignored("Name:\txrun\nSigIgn:\t0000000000001001\nSigCgt:\tff\n"), [SIGHUP, 13]);
        for text in ["", "SigIgn:\tx\n", "SigIgn:\n"] {
            assert!(parse_ignored(text).is_empty());
        }
    }
}
