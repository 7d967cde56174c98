//! A thread pool whose tasks run with the machine's widest vector instructions.
//!
//! Ops divide their work into tasks from shapes alone, not from the number of threads. So the bits of a
//! result do not depend on how many threads there are.
//!
//! A step of a small model runs a hundred jobs, the shortest of which take 30 µs. So the calling thread works
//! too, and workers spin for a while before they sleep: waking one takes 6 µs in the median and 17 µs in the
//! 90th percentile (of 2,000, on a virtual machine with two cores).

use crate::error::{Error, Result};
use crate::lock::lock;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// A pool of threads: the caller and its workers.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a job runs. If another thread holds it, the caller runs its job alone.
    one_job: Mutex<()>,
    arch: pulp::Arch,
}

/// Data shared by callers and workers.
#[derive(Debug, Default)]
struct Shared {
    /// The current job; see [`State`].
    state: AtomicU64,
    /// The job's function; valid while the state is open or workers are in the job.
    job: Mutex<Option<Job>>,
    /// Index of the job's next task.
    next: AtomicUsize,
    /// Number of workers that sleep or are about to.
    sleeping: AtomicUsize,
    shutting_down: AtomicBool,
    /// Guards sleeping and waking.
    sleep: Mutex<()>,
    wake: Condvar,
    /// Wakes the caller once the last worker has left.
    last_worker_left: Condvar,
}

/// A job's number, whether it is open to workers, and how many workers are in it, packed into one word.
#[derive(Clone, Copy, Debug)]
struct State(u64);

impl State {
    const OPEN: u64 = 1 << 16;
    const NUMBER: u64 = 1 << 17;

    fn number(self) -> u64 {
        self.0 / Self::NUMBER
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn workers(self) -> u64 {
        self.0 % Self::OPEN
    }
}

/// A function of a task's index, and the number of tasks.
#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize) + Sync),
    count: usize,
    panic: *const Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the function is `Sync`, and the caller keeps the targets of both pointers alive until every worker
// has left.
unsafe impl Send for Job {}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tasks", self.count)
    }
}

/// Spins until `found` returns something, for at most [`SPIN_TIME`].
fn spin_until<T>(mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        for _ in 0..64 {
            if let Some(found) = found() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if began.elapsed() > SPIN_TIME {
            return None;
        }
    }
}

impl Pool {
    /// Creates a pool of `threads` threads (at least 1), including the caller of [`Pool::run`].
    ///
    /// # Errors
    /// If the OS cannot start a worker thread.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with_instructions(threads, pulp::Arch::new())
    }

    /// Creates a pool whose tasks run with these vector instructions.
    ///
    /// # Errors
    /// If the OS cannot start a worker thread.
    pub fn with_instructions(threads: usize, arch: pulp::Arch) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut pool = Self { shared, workers: Vec::new(), one_job: Mutex::new(()), arch };
        for i in 1..threads {
            let shared = pool.shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("xrun-cpu-{i}"))
                .spawn(move || shared.work())
                .map_err(|e| Error::failed(format!("cannot start {threads} worker threads: {e}")))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Returns the vector instructions that tasks run with.
    pub fn arch(&self) -> pulp::Arch {
        self.arch
    }

    /// Runs `task(0)` to `task(count - 1)`, in any order, on any thread, and returns when all are done. If a
    /// task panics, the panic is passed on. Tasks may call `run` themselves, and so may several threads at
    /// once: if the pool is busy, the caller runs its tasks alone.
    pub fn run(&self, count: usize, task: impl Fn(usize) + Sync) {
        let run = |index| self.arch.dispatch(Task { task: &task, index });
        match count {
            0 => {}
            1 => run(0),
            _ => self.spread(count, &run),
        }
    }

    /// Runs a job on the pool if it is free. Not generic, because a copy for each of a hundred loops would be
    /// a fifth of all code to compile.
    fn spread(&self, count: usize, run: &(dyn Fn(usize) + Sync)) {
        let free = if self.workers.is_empty() { None } else { self.one_job.try_lock().ok() };
        match free {
            Some(_one_job) => self.shared.run(count, run),
            None => (0..count).for_each(run),
        }
    }

    /// Runs `task(start, len)` over `total` items in chunks of `run` items; the last may be shorter.
    pub fn chunks(&self, total: usize, run: usize, task: impl Fn(usize, usize) + Sync) {
        self.run(
            total.div_ceil(run),
            #[inline(always)]
            |i| {
                let start = i * run;
                task(start, run.min(total - start));
            },
        );
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutting_down.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of their tasks, so joining cannot fail.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Opens a job, works on it, and closes it. Only one caller at a time.
    fn run(&self, count: usize, run: &(dyn Fn(usize) + Sync)) {
        let panic = Mutex::new(None);
        let run: *const (dyn Fn(usize) + Sync) = run;
        // SAFETY: this only erases the function's lifetime. Workers follow the pointer only while they are in
        // the job, and `close` returns after the last one has left.
        let run = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync + 'static)>(run)
        };
        let job = Job { run, count, panic: &raw const panic };
        *lock(&self.job) = Some(job);
        self.next.store(0, Ordering::SeqCst);
        let number = State(self.state.load(Ordering::SeqCst)).number() + 1;
        self.state.store(number * State::NUMBER + State::OPEN, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
        self.take_tasks(job);
        self.close();
        if let Some(panic) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// Closes the job to further workers and waits until all workers have left.
    fn close(&self) {
        self.state.fetch_and(!State::OPEN, Ordering::SeqCst);
        let empty = || (State(self.state.load(Ordering::SeqCst)).workers() == 0).then_some(());
        if spin_until(empty).is_none() {
            let mut guard = lock(&self.sleep);
            while empty().is_none() {
                guard = self.last_worker_left.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
        *lock(&self.job) = None;
    }

    /// Runs tasks until none is left. The caller must be in the job or have opened it.
    fn take_tasks(&self, job: Job) {
        // SAFETY: the function and the slot for a panic exist until every thread has left the job.
        let (run, panic) = unsafe { (&*job.run, &*job.panic) };
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= job.count {
                return;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(index))) {
                self.next.store(job.count, Ordering::Relaxed);
                lock(panic).get_or_insert(payload);
            }
        }
    }

    /// Runs on a worker thread: works on one job after another until the pool shuts down.
    fn work(&self) {
        let mut last = 0;
        loop {
            let enter = || {
                if self.shutting_down.load(Ordering::SeqCst) {
                    return Some(None);
                }
                self.enter(last).map(Some)
            };
            match spin_until(enter).or_else(|| self.sleep_until(enter)) {
                Some(Some(number)) => {
                    last = number;
                    let job = *lock(&self.job);
                    if let Some(job) = job {
                        self.take_tasks(job);
                    }
                    self.leave();
                }
                _ => return,
            }
        }
    }

    /// Sleeps until `found` returns something.
    fn sleep_until<T>(&self, found: impl Fn() -> Option<T>) -> Option<T> {
        let mut guard = lock(&self.sleep);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            if let Some(found) = found() {
                break found;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        Some(result)
    }

    /// Enters the open job, unless it is number `last`, and returns its number.
    fn enter(&self, last: u64) -> Option<u64> {
        let state = State(self.state.load(Ordering::SeqCst));
        if !state.is_open() || state.number() == last {
            return None;
        }
        let entered = self.state.compare_exchange(state.0, state.0 + 1, Ordering::SeqCst, Ordering::Relaxed);
        entered.is_ok().then_some(state.number())
    }

    /// Leaves the job. The last worker to leave a closed job wakes the caller.
    fn leave(&self) {
        let before = State(self.state.fetch_sub(1, Ordering::SeqCst));
        if !before.is_open() && before.workers() == 1 {
            drop(lock(&self.sleep));
            self.last_worker_left.notify_all();
        }
    }
}

/// One call of a task. A closure would be reached through a shim that is not inlined, and would be compiled
/// without the vector instructions it is dispatched to.
struct Task<'a, F> {
    task: &'a F,
    index: usize,
}

impl<F: Fn(usize)> pulp::WithSimd for Task<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _simd: S) {
        (self.task)(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_once() {
        let pool = Pool::new(3).unwrap();
        let seen: Vec<AtomicUsize> = (0..1001).map(|_| AtomicUsize::new(0)).collect();
        pool.chunks(seen.len(), 17, |start, len| {
            for s in &seen[start..start + len] {
                s.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
    }

    /// Runs short jobs from several threads and from within tasks, with pauses in which workers fall asleep.
    #[test]
    fn many_short_jobs() {
        let pool = Pool::new(4).unwrap();
        std::thread::scope(|scope| {
            for caller in 0..3 {
                let pool = &pool;
                scope.spawn(move || {
                    for job in 0..2000usize {
                        let (tasks, sum) = (job % 7, AtomicUsize::new(0));
                        pool.run(tasks, |i| {
                            pool.run(2, |j| {
                                sum.fetch_add(i * 2 + j, Ordering::Relaxed);
                            });
                        });
                        assert_eq!(sum.into_inner(), (0..2 * tasks).sum::<usize>());
                        if job % 500 == caller {
                            std::thread::sleep(2 * SPIN_TIME);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_is_passed_on_and_the_pool_works_on() {
        let pool = Pool::new(3).unwrap();
        for round in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, |i| assert!(i != 7 + round, "task {i}"));
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("task {}", 7 + round));
            let done = AtomicUsize::new(0);
            pool.run(50, |_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 50);
        }
    }

    #[test]
    fn pools_end_whether_their_workers_sleep_or_not() {
        for threads in 0..6 {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads.max(1));
            pool.run(3, |_| {});
            if threads % 2 == 0 {
                std::thread::sleep(2 * SPIN_TIME);
            }
        }
    }
}
