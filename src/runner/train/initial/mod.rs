//! Initial values of parameters, which depend only on the seed, the parameter and the element. The scheme
//! decides which property of the parameter is used ([`Seeds::initial_values_key`]). The ranks of a process
//! share the values.

pub(super) mod base;
pub(super) mod optimizer;
mod same_model;
pub(super) mod weights;

use super::shards::{whole_spec, write_tensor};
use crate::device::cpu::{Pool, ViewMut};
use crate::device::philox::philox;
use crate::device::{DType, Elem, Real};
use crate::error::Result;
use crate::exec::{Engine, padded_bytes};
use crate::ir::{FlatBuffer, Init, Param};
use crate::liveness::report_progress;
use crate::lock::lock;
use crate::plan::Seeds;
use bytemuck::NoUninit;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Sets parameters and the optimizer's slots to their initial values, and the compute copy to the rounded
/// masters. Ranks share the values.
///
/// # Errors
/// If a copy to the device fails.
pub fn initialize(engine: &mut Engine, seeds: &Seeds, shared: &InitialValues) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for (index, param) in layout.params.iter().enumerate() {
        report_progress();
        let key = seeds.initial_values_key(index, &param.name);
        match layout.precision.master {
            DType::F64 => write_initial::<f64>(engine, (index, param), key, shared)?,
            _ => write_initial::<f32>(engine, (index, param), key, shared)?,
        }
        // The state is zero when it is allocated.
        for group in layout.groups.iter().filter(|group| group.params.contains(&index)) {
            for slot in group.slots.iter().filter(|slot| slot.initial != 0.0) {
                let buffer = group.buffer(slot);
                let spec = whole_spec(&layout, &buffer, param)?;
                let values = vec![slot.initial; spec.logical_elements()];
                write_tensor(engine, &buffer, Some(&group.places), param, &padded_bytes(&spec, &values))?;
            }
        }
    }
    Ok(())
}

/// Writes the initial values of a parameter, given with its index.
fn write_initial<A: Real + NoUninit>(
    engine: &mut Engine,
    (index, param): (usize, &Param),
    key: [u32; 2],
    shared: &InitialValues,
) -> Result<()> {
    let values = shared
        .get(index, || ParameterValues::new(engine, param, initial_values::<A>(engine.pool(), param, key)));
    write_values(engine, param, &values)
}

/// Rounds the masters into the copy that matrix products read, if there is one.
///
/// # Errors
/// If the device reports an error.
pub fn refresh_compute_copy(engine: &mut Engine) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    let slots = (layout.slot(FlatBuffer::Params), layout.slot(FlatBuffer::ComputeCopy));
    let (Some(master), Some(compute_copy)) = slots else { return Ok(()) };
    // Only bf16 programs have a compute copy, and their masters are fp32.
    let rounded = rounded(engine.pool(), &engine.state.read::<f32>(master)?);
    engine.state.write(compute_copy, &rounded)
}

/// Writes the values of a parameter, including padding: its master (or the part that this rank owns) and the
/// copies that ops read.
///
/// # Errors
/// If a copy to the device fails.
pub(super) fn write_parameter<A: Real + NoUninit>(
    engine: &mut Engine,
    param: &Param,
    numbers: Vec<A>,
) -> Result<()> {
    let values = ParameterValues::new(engine, param, numbers);
    write_values(engine, param, &values)
}

fn write_values<A: Real + NoUninit>(
    engine: &mut Engine,
    param: &Param,
    values: &ParameterValues<A>,
) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    let bytes = bytemuck::cast_slice(&values.numbers);
    write_tensor(engine, &FlatBuffer::Params, layout.shards.as_deref(), param, bytes)?;
    let slot = layout.slot(FlatBuffer::ComputeCopy.param(&param.name));
    if let (Some(slot), Some(compute_copy)) = (slot, &values.compute_copy) {
        engine.state.write(slot, compute_copy)?;
    }
    if layout.masters_are_sharded() && !param.role.is_matrix() {
        engine.state.write(param.read, &values.numbers)?;
    }
    Ok(())
}

/// Returns the initial values of a parameter in its memory layout, with zeros as padding.
fn initial_values<A: Real>(pool: &Pool, param: &Param, key: [u32; 2]) -> Vec<A> {
    let mut numbers = vec![A::ZERO; param.spec.elements()];
    let runs: Vec<(usize, usize, usize)> = param.spec.runs().collect();
    let values = ViewMut::from_slice(&mut numbers);
    pool.run(runs.len(), |r| {
        let (from, at, len) = runs[r];
        let row = values.slice(at, len);
        match param.init {
            Init::Constant(value) => row.fill(A::from_f64(value)),
            Init::Normal(std) => fill_normal(row, std, key, from),
        }
    });
    numbers
}

/// Fills a row with normal numbers. Its first element is element `from` of the parameter.
fn fill_normal<A: Real>(row: &mut [A], std: f64, key: [u32; 2], from: usize) {
    // A row may begin with the second number of a pair.
    let (first, rest) = row.split_at_mut((from % 2).min(row.len()));
    for value in first {
        *value = A::from_f64(std * normal_pair(key, from / 2)[1]);
    }
    for (i, pair) in rest.chunks_mut(2).enumerate() {
        for (value, number) in pair.iter_mut().zip(normal_pair(key, from.div_ceil(2) + i)) {
            *value = A::from_f64(std * number);
        }
    }
}

/// Returns two standard normal numbers for a key and a pair of elements, with the transform of Box and Muller
/// (1958).
fn normal_pair(key: [u32; 2], pair: usize) -> [f64; 2] {
    let bits = philox([pair as u32, (pair >> 32) as u32, 0, 0], key);
    let unit = |high: u32, low: u32| {
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        (bits as f64 + 0.5) / (1u64 << 53) as f64
    };
    let radius = (-2.0 * unit(bits[0], bits[1]).ln()).sqrt();
    let angle = std::f64::consts::TAU * unit(bits[2], bits[3]);
    [radius * angle.cos(), radius * angle.sin()]
}

/// Number of elements that one task rounds.
const ELEMENTS_PER_TASK: usize = 16_384;

/// The values of a parameter, with zeros as padding.
#[derive(Debug)]
pub(super) struct ParameterValues<A> {
    /// The masters.
    pub numbers: Vec<A>,
    /// The copy that matrix products read, if there is one.
    pub compute_copy: Option<Vec<half::bf16>>,
}

impl<A: Real> ParameterValues<A> {
    /// Wraps masters, and rounds them into a compute copy if the engine's state has a slot for it.
    pub fn new(engine: &Engine, param: &Param, numbers: Vec<A>) -> Self {
        let has_copy = engine.state.layout().slot(FlatBuffer::ComputeCopy.param(&param.name)).is_some();
        let compute_copy = has_copy.then(|| rounded(engine.pool(), &numbers));
        Self { numbers, compute_copy }
    }
}

/// Initial values that the ranks of a process share. The first rank that needs a parameter computes it with
/// all threads of the pool while the others wait. If every rank computed its own, each would find the pool
/// busy and use only its own thread. The last rank to take the values frees them.
#[derive(Debug)]
pub struct InitialValues {
    ranks: usize,
    params: Mutex<HashMap<usize, Arc<SharedValues>>>,
}

/// The values of one parameter.
#[derive(Debug, Default)]
struct SharedValues {
    values: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Number of ranks that have taken the values.
    taken: AtomicUsize,
}

impl InitialValues {
    /// Creates the values for `ranks` ranks of this process.
    pub fn new(ranks: usize) -> Self {
        Self { ranks, params: Mutex::default() }
    }

    /// Returns the values of the parameter with this index. The first call computes them with `compute`.
    /// Every rank must call it exactly once per parameter.
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
        // All ranks have the same precision, so the cast succeeds.
        values.downcast().unwrap_or_else(|_| Arc::new(compute()))
    }
}

/// Rounds numbers to bf16.
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

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let n = 100_000;
        let values: Vec<f64> = (0..n / 2).flat_map(|pair| normal_pair([1, 2], pair)).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn an_element_has_one_number_however_rows_are_cut() {
        let whole = {
            let mut row = [0.0f64; 30];
            fill_normal(&mut row, 0.5, [3, 4], 0);
            row
        };
        assert_eq!(whole[6..8], normal_pair([3, 4], 3).map(|number| 0.5 * number));
        for len in [1, 2, 3, 5, 6, 10, 15] {
            let mut rows = [0.0f64; 30];
            rows.chunks_mut(len).enumerate().for_each(|(r, row)| fill_normal(row, 0.5, [3, 4], r * len));
            assert_eq!(rows, whole, "rows of {len}");
        }
        fill_normal::<f64>(&mut [], 0.5, [3, 4], 7);
    }

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
