//! Writes checkpoints in a background thread while training continues.

use super::manifest::Meta;
use super::pace::Pace;
use super::save::{Saved, Store};
use super::tensors::Snapshot;
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time between polls of a write that a caller waits for.
const POLL: Duration = Duration::from_millis(5);

/// The lowest priority on Linux (`nice`). On a core that training uses, the writer gets 1.5 % of the time
/// (weight 15 beside 1024, `sched_prio_to_weight` in the kernel's `kernel/sched/core.c`).
#[cfg(target_os = "linux")]
const LOWEST_PRIORITY: i32 = 19;

/// A copy of a training state that stays unchanged while training continues.
pub trait HeldState: Send + 'static {
    /// Returns the tensors of the state.
    fn snapshot(&self) -> Snapshot<'_>;
}

/// A checkpoint to be written.
pub struct Write<S> {
    /// Metadata of the checkpoint.
    pub meta: Meta,
    /// The state.
    pub state: S,
    /// Makes durable what the checkpoint depends on, such as rows. Runs before the first byte is written.
    pub before: Box<dyn FnOnce() -> Result<()> + Send>,
}

/// A write that has ended.
#[derive(Debug)]
pub struct Written<S> {
    /// The step of the checkpoint.
    pub step: u64,
    /// Time from the start of the write to its end.
    pub took: Duration,
    /// The result, as for [`Store::save`]: either everything is durable, or the earlier checkpoints are
    /// untouched.
    pub saved: Result<Saved>,
    /// The memory of the state, for the next write; `None` if the thread panicked.
    pub state: Option<S>,
}

/// Writes checkpoints in the background, one at a time.
pub struct BackgroundWriter<S> {
    store: Arc<Store>,
    in_flight: Option<InFlight<S>>,
}

/// A write whose result was not collected yet.
struct InFlight<S> {
    step: u64,
    started: Instant,
    /// Number of finished parts.
    parts: Arc<AtomicU64>,
    thread: JoinHandle<(S, Result<Saved>, Duration)>,
}

impl<S: HeldState> BackgroundWriter<S> {
    /// Creates a writer with no write in flight.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, in_flight: None }
    }

    /// Returns the step of the checkpoint in flight, if there is one.
    pub fn in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|write| write.step)
    }

    /// Starts a write. Collect an earlier one first, with [`BackgroundWriter::wait`].
    ///
    /// # Errors
    /// If a write is in flight, or the OS cannot start a thread.
    pub fn start(&mut self, write: Write<S>) -> Result<()> {
        if let Some(step) = self.in_flight() {
            return Err(Error::failed(format!("the checkpoint of step {step} is still being written")));
        }
        let Write { meta, state, before } = write;
        let (step, started, parts) = (meta.step, Instant::now(), Arc::new(AtomicU64::new(0)));
        let (store, pace) = (Arc::clone(&self.store), Pace::Background(Arc::clone(&parts)));
        let thread = Builder::new().name("checkpoint".to_owned()).spawn(move || {
            lower_priority();
            let synced = before().map_err(|e| e.context(not_saved(step)));
            let saved = synced.and_then(|()| store.save_at(&pace, &meta, &state.snapshot()));
            (state, saved, started.elapsed())
        });
        let thread =
            thread.map_err(|e| Error::failed(format!("{}: cannot start a thread: {e}", not_saved(step))))?;
        self.in_flight = Some(InFlight { step, started, parts, thread });
        Ok(())
    }

    /// Returns the write in flight if it has ended.
    pub fn ended(&mut self) -> Option<Written<S>> {
        let ended = self.in_flight.take_if(|write| write.thread.is_finished());
        ended.map(InFlight::collect)
    }

    /// Waits for the write in flight; returns `None` if there is none. Reports the progress of the write to
    /// the watchdogs.
    pub fn wait(&mut self) -> Option<Written<S>> {
        let mut seen = 0;
        while let Some(write) = &self.in_flight {
            if write.thread.is_finished() {
                return self.ended();
            }
            let parts = write.parts.load(Ordering::Relaxed);
            if parts != seen {
                seen = parts;
                report_progress();
            }
            std::thread::sleep(POLL);
        }
        None
    }
}

impl<S> InFlight<S> {
    fn collect(self) -> Written<S> {
        let Self { step, started, thread, .. } = self;
        match thread.join() {
            Ok((state, saved, took)) => Written { step, took, saved, state: Some(state) },
            Err(panic) => {
                let lost = format!("{}: its thread panicked: {}", not_saved(step), panic_message(&*panic));
                Written { step, took: started.elapsed(), saved: Err(Error::failed(lost)), state: None }
            }
        }
    }
}

impl<S> Drop for BackgroundWriter<S> {
    /// Waits for the write, because the next user of the folder must have it to itself.
    fn drop(&mut self) {
        if let Some(write) = self.in_flight.take() {
            write.collect();
        }
    }
}

impl<S> fmt::Debug for BackgroundWriter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.in_flight.as_ref().map(|write| write.step);
        f.debug_struct("BackgroundWriter").field("in_flight", &step).finish_non_exhaustive()
    }
}

fn not_saved(step: u64) -> String {
    format!("checkpoint of step {step} not saved, earlier ones are untouched")
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Gives the calling thread the lowest priority. If that fails, the thread keeps the usual one.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    // On Linux, each thread has its own priority; 0 is the calling thread.
    let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
}
