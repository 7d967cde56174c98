//! Writing checkpoints in a thread of its own, while training goes on.

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

/// Time between looks at a write that is waited for.
const POLL: Duration = Duration::from_millis(5);

/// The lowest priority of a Linux scheduler (`nice`): where training has work for a core, the writer gets 1.5
/// % of it (weight 15 beside 1024, `sched_prio_to_weight` in the kernel's `kernel/sched/core.c`).
#[cfg(target_os = "linux")]
const LOWEST_PRIORITY: i32 = 19;

/// A copy of a training state, which stays as it is while training goes on.
pub trait HeldState: Send + 'static {
    /// Returns its tensors.
    fn snapshot(&self) -> Snapshot<'_>;
}

/// A checkpoint to be written.
pub struct Write<S> {
    /// Its metadata.
    pub meta: Meta,
    /// The state.
    pub state: S,
    /// Makes durable what the checkpoint builds on; it comes before the first byte.
    pub before: Box<dyn FnOnce() -> Result<()> + Send>,
}

/// A write that has ended.
#[derive(Debug)]
pub struct Written<S> {
    /// The step of the checkpoint.
    pub step: u64,
    /// Time from its start to its end.
    pub took: Duration,
    /// As [`Store::save`]: everything is durable, or the earlier checkpoints are untouched.
    pub saved: Result<Saved>,
    /// The memory of the state, for the next one; `None` where the thread was lost.
    pub state: Option<S>,
}

/// Writes checkpoints in the background, one at a time.
pub struct BackgroundWriter<S> {
    store: Arc<Store>,
    in_flight: Option<InFlight<S>>,
}

/// A write that has not been collected.
struct InFlight<S> {
    step: u64,
    started: Instant,
    /// Parts that are done.
    parts: Arc<AtomicU64>,
    thread: JoinHandle<(S, Result<Saved>, Duration)>,
}

impl<S: HeldState> BackgroundWriter<S> {
    /// Creates a writer without a write.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, in_flight: None }
    }

    /// Returns the step of the checkpoint in flight; `None` where there is none.
    pub fn in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|write| write.step)
    }

    /// Starts a write. One that is in flight has to be collected before, by [`BackgroundWriter::wait`].
    ///
    /// # Errors
    /// When a write is in flight, or the system refuses a thread.
    pub fn start(&mut self, write: Write<S>) -> Result<()> {
        if let Some(step) = self.in_flight() {
            return Err(Error::failed(format!("the checkpoint of step {step} is still being written")));
        }
        let Write { meta, state, before } = write;
        let (step, started, parts) = (meta.step, Instant::now(), Arc::new(AtomicU64::new(0)));
        let (store, pace) = (Arc::clone(&self.store), Pace::Beside(Arc::clone(&parts)));
        let thread = Builder::new().name("checkpoint".to_owned()).spawn(move || {
            lower_priority();
            let synced = before().map_err(|e| e.context(not_saved(step)));
            let saved = synced.and_then(|()| store.save_at(&pace, &meta, &state.snapshot()));
            (state, saved, started.elapsed())
        });
        let thread = thread.map_err(|e| Error::failed(format!("{}: no thread: {e}", not_saved(step))))?;
        self.in_flight = Some(InFlight { step, started, parts, thread });
        Ok(())
    }

    /// Returns the write in flight if it has ended.
    pub fn ended(&mut self) -> Option<Written<S>> {
        let ended = self.in_flight.take_if(|write| write.thread.is_finished());
        ended.map(InFlight::collect)
    }

    /// Waits for the write in flight. While it makes progress, the watchdogs see some; `None` where there is
    /// none.
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
                let lost = format!("{}: its thread panicked: {}", not_saved(step), message_of(&*panic));
                Written { step, took: started.elapsed(), saved: Err(Error::failed(lost)), state: None }
            }
        }
    }
}

impl<S> Drop for BackgroundWriter<S> {
    /// Waits: whoever opens the folder next is alone with it.
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

/// Returns what a panic said.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Gives the calling thread the lowest priority. Where it cannot, the thread works at the usual one.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    // On Linux the priority is that of a thread; 0 is the calling one.
    let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
}
