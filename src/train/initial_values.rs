//! Values of parameters as they lie in memory, and initial ones that the ranks of a process share.

use crate::device::cpu::{Pool, ViewMut};
use crate::device::lock::lock;
use crate::device::{Elem, Real};
use crate::exec::Engine;
use crate::ir::{FlatBuffer, Param};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Elements that one task rounds.
const ELEMENTS_PER_TASK: usize = 16_384;

/// The values of a parameter, with zeros as padding.
#[derive(Debug)]
pub(super) struct ParameterValues<A> {
    /// The masters.
    pub numbers: Vec<A>,
    /// Their copy that products read, where there is one.
    pub compute_copy: Option<Vec<half::bf16>>,
}

impl<A: Real> ParameterValues<A> {
    /// Rounds masters into the copy that the state of an engine has a slot for.
    pub fn new(engine: &Engine, param: &Param, numbers: Vec<A>) -> Self {
        let has_copy = engine.state.layout().slot(FlatBuffer::ComputeCopy.param(&param.name)).is_some();
        let compute_copy = has_copy.then(|| rounded(engine.pool(), &numbers));
        Self { numbers, compute_copy }
    }
}

/// Initial values of parameters that the ranks of a process share. The first rank that needs those of a
/// parameter computes them, with all threads of the pool, while others wait; each by itself would find the
/// pool at work, and compute them with its own thread alone. The last rank to take them frees them.
#[derive(Debug)]
pub struct InitialValues {
    ranks: usize,
    params: Mutex<HashMap<usize, Arc<SharedValues>>>,
}

/// The values of one parameter.
#[derive(Debug, Default)]
struct SharedValues {
    values: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Number of ranks that have taken them.
    taken: AtomicUsize,
}

impl InitialValues {
    /// Creates the values that so many ranks of this process share.
    pub fn new(ranks: usize) -> Self {
        Self { ranks, params: Mutex::default() }
    }

    /// Returns the values of the parameter with this index, which `compute` gives. Every rank calls it once
    /// for every parameter.
    pub(super) fn get<A: Real>(
        &self,
        index: usize,
        compute: impl Fn() -> ParameterValues<A>,
    ) -> Arc<ParameterValues<A>> {
        if self.ranks == 1 {
            return Arc::new(compute());
        }
        let shared = Arc::clone(lock(&self.params).entry(index).or_default());
        let values = Arc::clone(shared.values.get_or_init(|| Arc::new(compute())));
        if shared.taken.fetch_add(1, Ordering::Relaxed) + 1 == self.ranks {
            lock(&self.params).remove(&index);
        }
        // All ranks have one precision.
        values.downcast().unwrap_or_else(|_| Arc::new(compute()))
    }
}

/// Rounds to bf16.
pub(super) fn rounded<A: Real>(pool: &Pool, numbers: &[A]) -> Vec<half::bf16> {
    let mut rounded = vec![half::bf16::ZERO; numbers.len()];
    let to = ViewMut::from_slice(&mut rounded);
    pool.chunks(numbers.len(), ELEMENTS_PER_TASK, |start, len| {
        for (to, from) in to.slice(start, len).iter_mut().zip(&numbers[start..start + len]) {
            *to = Elem::down(from.to_f64() as f32);
        }
    });
    rounded
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn values(numbers: &[f32]) -> ParameterValues<f32> {
        ParameterValues { numbers: numbers.to_vec(), compute_copy: None }
    }

    #[test]
    fn ranks_compute_each_parameter_once_and_free_it() {
        let (shared, computed) = (InitialValues::new(4), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in 0..5 {
                        let found = shared.get(index, || {
                            computed.fetch_add(1, Ordering::Relaxed);
                            values(&[index as f32, 1.0])
                        });
                        assert_eq!(found.numbers, [index as f32, 1.0]);
                    }
                });
            }
        });
        assert_eq!(computed.load(Ordering::Relaxed), 5);
        assert!(lock(&shared.params).is_empty());
    }

    #[test]
    fn one_rank_keeps_nothing() {
        let alone = InitialValues::new(1);
        assert_eq!(alone.get(0, || values(&[2.0])).numbers, [2.0]);
        assert!(lock(&alone.params).is_empty());
    }
}
