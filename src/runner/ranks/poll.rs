//! A thread that looks at something at regular intervals, for watchdogs and heartbeats.

use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls a closure at intervals from its own thread, until that breaks or this is dropped.
#[derive(Debug)]
pub(super) struct Poll {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the interval of looks and heartbeats that suits a timeout.
pub(super) fn interval(timeout: Duration) -> Duration {
    (timeout / 10).clamp(Duration::from_millis(20), Duration::from_secs(1))
}

impl Poll {
    /// Starts the thread. `look` is given the time that this process was suspended lately.
    ///
    /// A process that was suspended (SIGSTOP, a sleeping laptop) received nothing during that time, so it
    /// must not count against others. It is forgotten again at the pace at which time passes.
    ///
    /// # Errors
    /// When the thread cannot be started.
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
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}
