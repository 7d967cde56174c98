//! SIGINT and SIGTERM: the first asks the run to save and stop, a second one later ends it at once. Here they are heard, and
//! sent to runs in processes of their own.

use crate::error::{Error, Result};
use crate::results::progress::tell;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Signals that follow the first one sooner are the same wish: `timeout` sends one to the process and one to its group.
const AGAIN: Duration = Duration::from_millis(500);

/// Whether somebody asked the run to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    asked: AtomicBool,
    /// The leader of a group of processes that end with this one; 0 for none.
    tied: AtomicU32,
}

/// Until this is dropped, a second signal ends a group of processes with this one.
#[derive(Debug)]
pub struct Tied<'a>(&'a Stop);

impl Drop for Tied<'_> {
    fn drop(&mut self) {
        self.0.0.tied.store(0, Ordering::SeqCst);
    }
}

impl Stop {
    /// Listens to the process's signals, from a thread of its own.
    ///
    /// # Errors
    /// When the system refuses the handlers or the thread.
    pub fn on_signals() -> Result<Self> {
        let stop = Self::default();
        let refused = |e: std::io::Error| Error::failed(format!("cannot listen to signals: {e}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
        let asked = stop.clone();
        let listen = move || {
            let mut first: Option<Instant> = None;
            for signal in signals.forever() {
                asked.ask();
                // What another rank asked for is no signal to this process.
                if first.get_or_insert_with(Instant::now).elapsed() >= AGAIN {
                    tell("a second signal: nothing more is saved");
                    signal_group(asked.0.tied.load(Ordering::SeqCst), true);
                    signal_hook::low_level::exit(128 + signal);
                }
            }
        };
        std::thread::Builder::new().name("xrun-signals".to_owned()).spawn(listen).map_err(refused)?;
        Ok(stop)
    }

    /// Asks for a stop from within the process.
    pub fn ask(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
    }

    /// Whether a stop was asked for.
    pub fn asked(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// Lets a second signal end the processes of this group too, for whoever waits for them.
    pub fn tie(&self, leader: u32) -> Tied<'_> {
        self.0.tied.store(leader, Ordering::SeqCst);
        Tied(self)
    }
}

/// Asks the processes of a group to save and stop, or ends them at once. `leader` was started as the first of its group.
#[cfg(unix)]
pub fn signal_group(leader: u32, at_once: bool) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = if at_once { Signal::KILL } else { Signal::TERM };
    // Group 1 would be everybody.
    if let Some(leader) = i32::try_from(leader).ok().filter(|&leader| leader > 1).and_then(Pid::from_raw) {
        // One that is gone needs no signal.
        let _ = kill_process_group(leader, signal);
    }
}

/// Ends a process and its children. Here they cannot be asked.
#[cfg(not(unix))]
pub fn signal_group(leader: u32, at_once: bool) {
    if at_once {
        let _ =
            std::process::Command::new("taskkill").args(["/F", "/T", "/PID", &leader.to_string()]).status();
    }
}
