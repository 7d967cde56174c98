//! A thread that calls a closure at regular intervals, for watchdogs and heartbeats.

use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls a closure at intervals on its own thread, until the closure breaks or this is dropped.
#[derive(Debug)]
pub(super) struct Poll {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the interval of polls and heartbeats for a timeout.
pub(super) fn interval(timeout: Duration) -> Duration {
    (timeout / 10).clamp(Duration::from_millis(20), Duration::from_secs(1))
}

impl Poll {
    /// Starts the thread. `look` receives the time for which this process was recently suspended.
    ///
    /// A suspended process (SIGSTOP, a sleeping laptop) receives nothing, so that time must not count against
    /// its peers. The allowance shrinks again as time passes.
    ///
    /// # Errors
    /// If the OS cannot start the thread.
    pub fn start(
        name: &str,
        interval: Duration,
        mut look: impl FnMut(Duration) -> ControlFlow<()> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let body = move || {
            let (mut looked, mut suspended) = (Instant::now(), Duration::ZERO);
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let overslept = looked.elapsed().saturating_sub(2 * interval);
                suspended = match overslept.is_zero() {
                    true => suspended.saturating_sub(interval),
                    false => suspended + overslept,
                };
                looked = Instant::now();
                if look(suspended).is_break() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic message was printed when the thread panicked.
            let _ = thread.join();
        }
    }
}
