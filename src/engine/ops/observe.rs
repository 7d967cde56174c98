//! The largest magnitude of a tensor, from which a scale for 8-bit floats follows.

use super::lanes::rows_per_task;
use crate::device::cpu::{Pool, View};
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use std::sync::atomic::{AtomicU32, Ordering};

/// `maximum ← max(maximum, |x|)` for all elements of x; NaN if one is NaN.
///
/// Input: x. Output: maximum `[1]`, f32, with `Mode::Add`, which here means that the old value is an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observe;

/// Returns the largest magnitude of a tensor; NaN if an element is NaN.
pub(super) fn largest<E: Elem>(pool: &Pool, x: View<'_, E>) -> f32 {
    // The bits of magnitudes order like the magnitudes, with NaN above infinity.
    let most = AtomicU32::new(0);
    pool.chunks(x.len(), rows_per_task(1), |start, len| {
        let magnitudes = x.slice(start, len).iter().map(|x| (x.up().to_f64() as f32).abs().to_bits());
        most.fetch_max(magnitudes.max().unwrap_or(0), Ordering::Relaxed);
    });
    f32::from_bits(most.into_inner())
}

/// Queues the search for the largest magnitude of input 0, whose bits become the number at `maximum` if they
/// are larger.
pub(super) fn launch_largest(cx: &GpuNode<'_>, maximum: DevicePtr) -> Result<()> {
    const THREADS: u32 = 256;
    /// Neighbors that a thread loads at once.
    const VEC: usize = 8;
    /// Blocks for each multiprocessor.
    const BLOCKS: usize = 8;
    let x = cx.input_spec(0);
    let most = BLOCKS * cx.queue.properties().sm_count;
    let blocks = x.elements().div_ceil(VEC * THREADS as usize).clamp(1, most);
    let kernel = Kernel::new("observe", "observe").with("T", x.dtype).with("VEC", VEC);
    let args = [cx.input(0).into(), maximum.into(), Arg::U64(x.elements() as u64)];
    cx.queue.launch(kernel, Grid::new(blocks, THREADS), &args)
}

impl Op for Observe {
    fn name(&self) -> &'static str {
        "observe"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] if x.dtype.is_float() => Ok(vec![Spec::new([1], DType::F32)]),
            _ => Err("takes one float tensor".into()),
        }
    }

    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, &[])
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let found = dispatch_float!(cx.input_spec(0).dtype, E => largest(cx.pool, cx.input::<E>(0)));
        let maximum = &mut cx.output::<f32>(0).slice(0, 1)[0];
        *maximum = f32::from_bits(maximum.to_bits().max(found.to_bits()));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_largest(cx, cx.output(0))
    }

    fn cases(precision: Precision) -> Cases {
        let case = |shape: [usize; 2], before: f64| {
            let x = (Spec::new(shape, precision.act_dtype), Fill::Normal(0.0, 1.0));
            let reference = |inputs: &[Array]| {
                let largest = inputs[0].data.iter().fold(inputs[1].data[0], |most, x| most.max(x.abs()));
                vec![Array { shape: vec![1], data: vec![f64::from(largest as f32)] }]
            };
            Case::new(format!("n{} d{} from {before}", shape[0], shape[1]), Observe, vec![x], reference)
                .without_gradient()
                .outputs(vec![(Mode::Add, Fill::Values(vec![before]))])
        };
        Cases::Own(vec![
            case([1, 1], 0.0),
            case([3, 5], 0.0),
            case([17, 65], 0.0),
            case([256, 24], 100.0),
            case([1000, 1024], 0.0),
        ])
    }
}
