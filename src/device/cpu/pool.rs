//! A thread pool whose tasks run with the machine's widest vector instructions.
//!
//! Work is cut into tasks by the op, from shapes alone, never by the number of threads: so the bits of a
//! result do not depend on how many threads there are.

use crate::error::{Error, Result};
use rayon::prelude::*;

/// A pool of worker threads.
#[derive(Debug)]
pub struct Pool {
    workers: rayon::ThreadPool,
    arch: pulp::Arch,
}

impl Pool {
    /// Creates a pool of `threads` workers.
    ///
    /// # Errors
    /// When the system reports an error to start them.
    pub fn new(threads: usize) -> Result<Self> {
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|i| format!("xrun-cpu-{i}"))
            .build()
            .map_err(|e| Error::failed(format!("cannot start {threads} worker threads: {e}")))?;
        Ok(Self { workers, arch: pulp::Arch::new() })
    }

    /// Returns the number of workers.
    pub fn threads(&self) -> usize {
        self.workers.current_num_threads()
    }

    /// Runs `task(0)` to `task(count - 1)`, in any order, on any worker.
    pub fn run(&self, count: usize, task: impl Fn(usize) + Sync) {
        let run = |index| self.arch.dispatch(Task { task: &task, index });
        match count {
            0 => {}
            1 => run(0),
            _ => self.spread(count, &run),
        }
    }

    /// Not generic: a copy of what spreads work for each of a hundred loops is a fifth of what there is to
    /// compile.
    fn spread(&self, count: usize, run: &(dyn Fn(usize) + Sync)) {
        self.workers.install(|| (0..count).into_par_iter().with_max_len(1).for_each(run));
    }

    /// Runs `task(start, len)` over `total` items in runs of `run` items (the last may be shorter).
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

/// One call of a task. A plain closure would reach it through a shim that is not inlined, and so be compiled
/// without the vector instructions that it is dispatched to.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

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
}
