//! Initial values of parameters: a pure function of the seed, the parameter and the element.

use crate::device::cpu::ViewMut;
use crate::device::philox::philox;
use crate::device::{DType, Elem, Real};
use crate::error::Result;
use crate::exec::Engine;
use crate::ir::{Init, Param};
use crate::liveness::report_progress;
use std::sync::Arc;

/// Sets parameters and the optimizer's slots to their initial values, and the compute copy to the rounded
/// masters.
///
/// # Errors
/// When a copy to the device fails.
pub fn initialize(engine: &mut Engine, seed: u64) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for (index, param) in layout.params.iter().enumerate() {
        report_progress();
        match layout.precision.master {
            DType::F64 => fill::<f64>(engine, param, index, seed)?,
            _ => fill::<f32>(engine, param, index, seed)?,
        }
        // The state is zero as it is allocated.
        for slot in layout.optimizer_slots.iter().filter(|slot| slot.initial != 0.0) {
            let id = engine.state.slot(&format!("{}.{}", slot.buffer, param.name))?;
            engine.state.set_values(id, &vec![slot.initial; param.spec.logical_elements()])?;
        }
    }
    refresh_compute_copy(engine)
}

/// Rounds the masters into the copy that products read, where there is one.
///
/// # Errors
/// When the device refuses.
pub fn refresh_compute_copy(engine: &mut Engine) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    let (Some(master), Some(compute_copy)) = (layout.slot("params.flat"), layout.slot("compute_copy.flat"))
    else {
        return Ok(());
    };
    // Only bf16 programs have a compute copy, and their masters are fp32.
    let rounded: Vec<half::bf16> = engine.state.read::<f32>(master)?.iter().map(|v| Elem::down(*v)).collect();
    engine.state.write(compute_copy, &rounded)
}

fn fill<A: Real>(engine: &mut Engine, param: &Param, index: usize, seed: u64) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    let Some(slot) = layout.slot(&format!("params.{}", param.name)) else { return Ok(()) };
    let pool = Arc::clone(engine.pool());
    let runs: Vec<(usize, usize, usize)> = param.spec.runs().collect();
    let key = [seed as u32 ^ 0x1417_c0de, (seed >> 32) as u32 ^ index as u32];
    engine.state.update::<A>(slot, |numbers| {
        let values = ViewMut::from_slice(numbers);
        pool.run(runs.len(), |r| {
            let (from, at, len) = runs[r];
            let row = values.slice(at, len);
            match param.init {
                Init::Ones => row.fill(A::ONE),
                Init::Zeros => row.fill(A::ZERO),
                Init::Normal(std) => {
                    for (i, value) in row.iter_mut().enumerate() {
                        *value = A::from_f64(std * normal(key, from + i));
                    }
                }
            }
        });
    })
}

/// Returns a standard normal number for a key and an element, by the transform of Box and Muller (1958).
fn normal(key: [u32; 2], element: usize) -> f64 {
    let pair = element / 2;
    let bits = philox([pair as u32, (pair >> 32) as u32, 0, 0], key);
    let unit = |high: u32, low: u32| {
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        (bits as f64 + 0.5) / (1u64 << 53) as f64
    };
    let radius = (-2.0 * unit(bits[0], bits[1]).ln()).sqrt();
    let angle = std::f64::consts::TAU * unit(bits[2], bits[3]);
    radius * if element.is_multiple_of(2) { angle.cos() } else { angle.sin() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let n = 100_000;
        let values: Vec<f64> = (0..n).map(|i| normal([1, 2], i)).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }
}
