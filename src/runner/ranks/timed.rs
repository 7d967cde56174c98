//! Measures the time that a rank spends in collectives.

use crate::device::communicator::{AbortHook, CollectiveResult, Communicator, Contribution, RankPhase};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Communicator that adds up the time spent in collectives.
#[derive(Debug)]
pub struct TimedCommunicator {
    inner: Arc<dyn Communicator>,
    nanoseconds: AtomicU64,
}

impl TimedCommunicator {
    /// Wraps a communicator, with the time at zero.
    pub fn new(inner: Arc<dyn Communicator>) -> Self {
        Self { inner, nanoseconds: AtomicU64::new(0) }
    }

    /// Returns the time spent in collectives since the last call, and resets it to zero.
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.swap(0, Ordering::Relaxed))
    }

    fn timed<T>(&self, call: impl FnOnce(&dyn Communicator) -> T) -> T {
        let began = Instant::now();
        let result = call(&*self.inner);
        self.nanoseconds.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }
}

impl Communicator for TimedCommunicator {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn collective(&self, name: &str, contribution: Contribution) -> Result<Arc<CollectiveResult>> {
        self.timed(|inner| inner.collective(name, contribution))
    }

    fn set_status(&self, step: u64, phase: RankPhase) {
        self.inner.set_status(step, phase);
    }

    fn abort(&self, error: &Error) {
        self.inner.abort(error);
    }

    fn abort_reason(&self) -> Option<Error> {
        self.inner.abort_reason()
    }

    fn on_abort(&self, hook: AbortHook) {
        self.inner.on_abort(hook);
    }
}
