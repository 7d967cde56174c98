//! Lion: updates parameters in one pass over memory.
//!
//! Chen et al., "Symbolic discovery of optimization algorithms" (2023), Algorithm 2, in the order of
//! operations of the authors' PyTorch code (google/automl, lion/lion_pytorch.py), after the gradient is
//! multiplied by the factor of global-norm clipping. Rates and decay of a step are rows of a table, computed
//! once in f64.

use super::segments::{ELEMENTS_PER_TASK, Places, Segments, case_of_owner, update_inputs};
use crate::device::gpu::{Arg, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use std::ops::Range;

/// Columns of the schedule, which has a row per step: what decaying parameters are multiplied by, and the
/// learning rate.
pub const SCHEDULE_WIDTH: usize = 2;

/// Elements that the inner loop updates before the compute copy of them is stored.
const CHUNK: usize = 64;

/// `(params, momentum, compute copy) ← Lion(grads, …)`, in place.
///
/// Inputs: grads `[n]`, schedule `[steps + 1, 2]` (row 0 is not read), step `[1]` (u32), clip `[1]` (the
/// factor of clipping), bad `[1]` (u32; not 0 after a loss or gradient norm that is not finite: nothing is
/// updated). Outputs, all updated in place: params `[n]`, momentum `[n]`, and the compute copy `[n]` if
/// activations have a narrower format than the master parameters. Of a group of parameters, the momentum has
/// its elements alone. Where ranks update what they own, the momentum, and params if there is a compute copy,
/// are the rank's shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    /// Weight of the momentum in the direction of a step.
    pub beta1: f64,
    /// Weight of the momentum in the one that is kept.
    pub beta2: f64,
    /// Ranges with and without weight decay, in order, that are updated.
    pub segments: Segments,
    /// Formats of the master parameters and of the compute copy.
    pub precision: Precision,
}

/// Scalars of one step, in the accumulator type.
#[derive(Clone, Copy)]
struct Step<A> {
    clip: A,
    decay: A,
    lr: A,
    beta1: A,
    one_minus_beta1: A,
    beta2: A,
    one_minus_beta2: A,
}

impl<A: Real> Step<A> {
    /// Updates one element. Returns the new parameter and momentum from the parameter `p`, momentum `m` and
    /// gradient `g`.
    #[inline(always)]
    fn update(&self, p: A, m: A, g: A) -> (A, A) {
        let g = g * self.clip;
        // Three roundings, as there: the sign is that of the rounded sum.
        let direction = m * self.beta1 + g * self.one_minus_beta1;
        let p = p * self.decay;
        let p = if direction > A::ZERO {
            p - self.lr
        } else if direction < A::ZERO {
            p + self.lr
        } else {
            p
        };
        // A fused multiply-add, as PyTorch's `add(other, alpha=…)` computes it.
        (p, self.one_minus_beta2.fma(g, m * self.beta2))
    }
}

impl Lion {
    /// Runs on the CPU with compute copies of type `E`.
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        if cx.input_u32(4)[0] != 0 {
            return;
        }
        let (grads, table) = (cx.input::<Acc<E>>(0), cx.input::<Acc<E>>(1));
        let row = cx.input_u32(2)[0] as usize * SCHEDULE_WIDTH;
        let constant = |value: f64| Acc::<E>::from_f64(value);
        let step = Step {
            clip: cx.input::<Acc<E>>(3).get(0),
            decay: table.get(row),
            lr: table.get(row + 1),
            beta1: constant(self.beta1),
            one_minus_beta1: constant(1.0 - self.beta1),
            beta2: constant(self.beta2),
            one_minus_beta2: constant(1.0 - self.beta2),
        };
        let (params, momentum) = (cx.output::<Acc<E>>(0), cx.output::<Acc<E>>(1));
        let compute_copy = self.precision.has_compute_copy().then(|| cx.output::<E>(2));
        for segment in self.segments.of_rank(cx.comm.rank()) {
            let step = if segment.decay { step } else { Step { decay: Acc::<E>::ONE, ..step } };
            cx.pool.chunks(
                segment.len,
                ELEMENTS_PER_TASK,
                #[inline(always)]
                |start, len| {
                    for at in (start..start + len).step_by(CHUNK) {
                        let count = CHUNK.min(start + len - at);
                        let g = grads.slice(segment.start + at, count);
                        let p = params.slice(segment.master + at, count);
                        let m = momentum.slice(segment.offset + at, count);
                        for i in 0..count {
                            (p[i], m[i]) = step.update(p[i], m[i], g[i]);
                        }
                        if let Some(compute_copy) = compute_copy {
                            compute_copy.store(segment.start + at, p);
                        }
                    }
                },
            );
        }
    }
}

impl Op for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn attributes(&self) -> String {
        format!("betas=({},{}) segments={}", self.beta1, self.beta2, self.segments)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let grads = update_inputs(inputs, self.precision, SCHEDULE_WIDTH)?;
        let (masters, slot) = self.segments.masters_and_slot(grads).ok_or("segments are of the gradients")?;
        let mut outputs = vec![masters, slot];
        if self.precision.has_compute_copy() {
            outputs.push(grads.with_dtype(self.precision.act_dtype));
        }
        Ok(outputs)
    }

    /// Reads gradient, master and momentum; writes master, momentum and compute copy.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let written: usize = outputs.iter().map(|output| output.dtype.size()).sum();
        let read = outputs[..2].iter().chain(&inputs[..1]).map(|tensor| tensor.dtype.size()).sum::<usize>();
        Cost { product_flops: 0.0, bytes: (self.segments.updated() * (written + read)) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn output_range(&self, output: usize, rank: usize) -> Option<Range<usize>> {
        Some(self.segments.output_range(output, 1, rank))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let kernel = Kernel::new("lion", "lion")
            .with_type("T", self.precision.act_dtype)
            .with("HAS_COMPUTE_COPY", u8::from(self.precision.has_compute_copy()));
        let mut args: Vec<Arg> =
            cx.inputs.iter().chain(&cx.outputs[..2]).map(|&tensor| tensor.into()).collect();
        let compute_copy = if self.precision.has_compute_copy() { cx.output(2) } else { 0 };
        args.push(compute_copy.into());
        let constants = [self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2];
        args.extend(constants.map(|constant| Arg::F32(constant as f32)));
        self.segments.launch(cx.queue, kernel, args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let n = 20_011;
        let all = [(0..DECAYED, true), (DECAYED..n, false)];
        let case = |name: &str, bad: f64, (segments, places): (Segments, Places)| {
            let op = Lion { beta1: BETAS[0], beta2: BETAS[1], segments, precision };
            let tensor = |shape: &[usize]| Spec::new(shape, precision.master);
            let inputs = vec![
                (tensor(&[n]), Fill::Normal(0.0, 1.0)),
                (tensor(&[2, SCHEDULE_WIDTH]), Fill::Values(vec![0.0, 0.0, 0.99, 0.02])),
                (Spec::new([1], DType::U32), Fill::Values(vec![1.0])),
                (tensor(&[1]), Fill::Values(vec![0.5])),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            let mut outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0)), (Mode::Add, Fill::Normal(0.0, 0.3))];
            outputs.extend(precision.has_compute_copy().then_some((Mode::Add, Fill::Normal(0.0, 1.0))));
            Case::new(name, op, inputs, move |i| reference(i, &places))
                .differentiable(&[])
                .upstream(&[])
                .outputs(outputs)
        };
        let whole = || (Segments::whole(&all), (0..n).map(|i| (i, i, i)).collect());
        Cases::Own(vec![
            case("a step", 0.0, whole()),
            case("after a bad step nothing moves", 1.0, whole()),
            case("what rank 0 of two owns of the second half", 0.0, case_of_owner(&all, 12_288, precision)),
        ])
    }
}

/// Betas and number of elements that decay, the first ones, of a test case.
const BETAS: [f64; 2] = [0.9, 0.99];
const DECAYED: usize = 12_345;

/// Computes the update one element at a time, in f64.
fn reference(i: &[Array], places: &Places) -> Vec<Array> {
    let (grads, clip, bad) = (&i[0].data, i[3].data[0], i[4].data[0]);
    let row = &i[1].data[i[2].data[0] as usize * SCHEDULE_WIDTH..];
    let mut out: Vec<Array> = i[5..].to_vec();
    if bad != 0.0 {
        return out;
    }
    for &(flat, master, slot) in places {
        let (g, p, m) = (grads[flat] * clip, out[0].data[master], out[1].data[slot]);
        let direction = BETAS[0] * m + (1.0 - BETAS[0]) * g;
        let decayed = if flat < DECAYED { row[0] * p } else { p };
        out[0].data[master] = decayed - row[1] * direction.signum();
        out[1].data[slot] = BETAS[1] * m + (1.0 - BETAS[1]) * g;
        if out.len() > 2 {
            out[2].data[flat] = out[0].data[master];
        }
    }
    out
}
