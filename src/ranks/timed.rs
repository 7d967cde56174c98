//! How long a rank waits for others.

use crate::device::communicator::{Activity, Communicator, Deposit, Hook, Outcome};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A communicator that counts the time spent in meetings.
#[derive(Debug)]
pub struct Timed {
    inner: Arc<dyn Communicator>,
    nanoseconds: AtomicU64,
}

impl Timed {
    /// Counts from now on.
    pub fn new(inner: Arc<dyn Communicator>) -> Self {
        Self { inner, nanoseconds: AtomicU64::new(0) }
    }

    /// The time in meetings since this was asked last.
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.swap(0, Ordering::Relaxed))
    }

    fn count<T>(&self, meet: impl FnOnce(&dyn Communicator) -> T) -> T {
        let began = Instant::now();
        let met = meet(&*self.inner);
        self.nanoseconds.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        met
    }
}

impl Communicator for Timed {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn meet(&self, meeting: &str, mine: Deposit) -> Result<Arc<Outcome>> {
        self.count(|inner| inner.meet(meeting, mine))
    }

    fn now(&self, step: u64, activity: Activity) {
        self.inner.now(step, activity);
    }

    fn abort(&self, error: &Error) {
        self.inner.abort(error);
    }

    fn ended(&self) -> Option<Error> {
        self.inner.ended()
    }

    fn on_abort(&self, hook: Hook) {
        self.inner.on_abort(hook);
    }

    // A rank that is alone has nothing to copy.
    fn all_reduce_sum_f32(&self, meeting: &str, values: &mut [f32]) -> Result<()> {
        self.count(|inner| inner.all_reduce_sum_f32(meeting, values))
    }

    fn all_reduce_sum_f64(&self, meeting: &str, values: &mut [f64]) -> Result<()> {
        self.count(|inner| inner.all_reduce_sum_f64(meeting, values))
    }
}
