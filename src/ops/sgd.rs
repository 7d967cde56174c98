//! SGD with momentum: updates all parameters in one pass over memory.
//!
//! Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in the form
//! and order of operations of PyTorch's `torch.optim.SGD` (torch/optim/sgd.py, `_single_tensor_sgd`) without
//! dampening. The gradient is first multiplied by the factor of global-norm clipping. Weight decay is
//! coupled, as there: it is added to the gradient before the momentum.

use super::segments::{ELEMENTS_PER_TASK, Places, Segments, case_of_owner, update_inputs};
use crate::device::gpu::{Arg, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use std::ops::Range;

/// Columns of the schedule, which has a row per step: the learning rate.
pub const SCHEDULE_WIDTH: usize = 1;

/// Elements that the inner loop updates before the compute copy of them is stored.
const CHUNK: usize = 64;

/// `(params, momentum, compute copy) ← SGD(grads, …)`, in place.
///
/// Inputs: grads `[n]`, schedule `[steps + 1, 1]` (row 0 is not read), step `[1]` (u32), clip `[1]` (the
/// factor of clipping), bad `[1]` (u32; not 0 after a loss or gradient norm that is not finite: nothing is
/// updated). Outputs, all updated in place: params `[n]`, momentum `[n]` unless the factor is 0, and the
/// compute copy `[n]` if activations have a narrower format than the master parameters. Of a group of
/// parameters, the momentum has its elements alone. Where ranks update what they own, the momentum, and
/// params if there is a compute copy, are the rank's shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    /// Momentum μ; 0 for SGD without momentum, which has no momentum buffer.
    pub momentum: f64,
    /// Weight decay λ: `λ · parameter` is added to the gradient in segments that decay.
    pub weight_decay: f64,
    /// Ranges with and without weight decay, in order, that are updated.
    pub segments: Segments,
    /// Formats of the master parameters and of the compute copy.
    pub precision: Precision,
}

/// Scalars of one step, in the accumulator type.
#[derive(Clone, Copy)]
struct Step<A> {
    clip: A,
    lr: A,
    decay: A,
    momentum: A,
}

impl<A: Real> Step<A> {
    /// Updates one element. Returns the new parameter and momentum from the parameter `p`, momentum `m` and
    /// gradient `g`.
    #[inline(always)]
    fn update(&self, p: A, m: Option<A>, g: A, decays: bool) -> (A, A) {
        let g = g * self.clip;
        // A fused multiply-add, as PyTorch's `add(other, alpha=…)` computes it.
        let g = if decays { self.decay.fma(p, g) } else { g };
        let m = m.map_or(g, |m| self.momentum * m + g);
        ((-self.lr).fma(m, p), m)
    }
}

impl Sgd {
    fn has_momentum(&self) -> bool {
        self.momentum != 0.0
    }

    /// Runs on the CPU with compute copies of type `E`.
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        if cx.input_u32(4)[0] != 0 {
            return;
        }
        let (grads, schedule) = (cx.input::<Acc<E>>(0), cx.input::<Acc<E>>(1));
        let step = Step {
            clip: cx.input::<Acc<E>>(3).get(0),
            lr: schedule.get(cx.input_u32(2)[0] as usize),
            decay: Acc::<E>::from_f64(self.weight_decay),
            momentum: Acc::<E>::from_f64(self.momentum),
        };
        let params = cx.output::<Acc<E>>(0);
        let momentum = self.has_momentum().then(|| cx.output::<Acc<E>>(1));
        let copy_index = 1 + usize::from(self.has_momentum());
        let compute_copy = self.precision.has_compute_copy().then(|| cx.output::<E>(copy_index));
        for segment in self.segments.of_rank(cx.comm.rank()) {
            cx.pool.chunks(
                segment.len,
                ELEMENTS_PER_TASK,
                #[inline(always)]
                |start, len| {
                    for at in (start..start + len).step_by(CHUNK) {
                        let count = CHUNK.min(start + len - at);
                        let g = grads.slice(segment.start + at, count);
                        let p = params.slice(segment.master + at, count);
                        match momentum {
                            Some(momentum) => {
                                let m = momentum.slice(segment.offset + at, count);
                                for i in 0..count {
                                    (p[i], m[i]) = step.update(p[i], Some(m[i]), g[i], segment.decay);
                                }
                            }
                            None => {
                                for i in 0..count {
                                    (p[i], _) = step.update(p[i], None, g[i], segment.decay);
                                }
                            }
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

impl Op for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn attributes(&self) -> String {
        format!("momentum={} weight_decay={} segments={}", self.momentum, self.weight_decay, self.segments)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let grads = update_inputs(inputs, self.precision, SCHEDULE_WIDTH)?;
        let (masters, slot) = self.segments.masters_and_slot(grads).ok_or("segments are of the gradients")?;
        let mut outputs = vec![masters];
        outputs.extend(self.has_momentum().then_some(slot));
        if self.precision.has_compute_copy() {
            outputs.push(grads.with_dtype(self.precision.act_dtype));
        }
        Ok(outputs)
    }

    /// Reads gradient, master and momentum; writes master, momentum and compute copy.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let written: usize = outputs.iter().map(|output| output.dtype.size()).sum();
        let masters = &outputs[..1 + usize::from(self.has_momentum())];
        let read = masters.iter().chain(&inputs[..1]).map(|tensor| tensor.dtype.size()).sum::<usize>();
        Cost { product_flops: 0.0, bytes: (self.segments.updated() * (written + read)) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn output_range(&self, output: usize, rank: usize) -> Option<Range<usize>> {
        Some(self.segments.output_range(output, usize::from(self.has_momentum()), rank))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let kernel = Kernel::new("sgd", "sgd")
            .with_type("T", self.precision.act_dtype)
            .with("HAS_MOMENTUM", u8::from(self.has_momentum()))
            .with("HAS_COMPUTE_COPY", u8::from(self.precision.has_compute_copy()));
        let mut args: Vec<Arg> = cx.inputs.iter().map(|&tensor| tensor.into()).collect();
        let mut outputs = cx.outputs.iter().copied();
        let mut next = |exists: bool| if exists { outputs.next().unwrap_or(0) } else { 0 };
        let tensors = [true, self.has_momentum(), self.precision.has_compute_copy()].map(&mut next);
        args.extend(tensors.map(Arg::from));
        args.extend([self.weight_decay, self.momentum].map(|constant| Arg::F32(constant as f32)));
        self.segments.launch(cx.queue, kernel, args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let n = 20_011;
        let all = [(0..DECAYED, true), (DECAYED..n, false)];
        let case = |name: &str, momentum: f64, bad: f64, (segments, places): (Segments, Places)| {
            let op = Sgd { momentum, weight_decay: 0.1, segments, precision };
            let tensor = |shape: &[usize]| Spec::new(shape, precision.master);
            let inputs = vec![
                (tensor(&[n]), Fill::Normal(0.0, 1.0)),
                (tensor(&[3, SCHEDULE_WIDTH]), Fill::Values(vec![0.0, 0.02, 0.01])),
                (Spec::new([1], DType::U32), Fill::Values(vec![1.0])),
                (tensor(&[1]), Fill::Values(vec![0.5])),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            let mut outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0))];
            outputs.extend(op.has_momentum().then_some((Mode::Add, Fill::Normal(0.0, 0.3))));
            outputs.extend(precision.has_compute_copy().then_some((Mode::Add, Fill::Normal(0.0, 1.0))));
            Case::new(name, op, inputs, move |arrays| reference(momentum, arrays, &places))
                .differentiable(&[])
                .upstream(&[])
                .outputs(outputs)
        };
        let whole = || (Segments::whole(&all), (0..n).map(|i| (i, i, i)).collect());
        let owned = || case_of_owner(&all, 12_288, precision);
        Cases::Own(vec![
            case("momentum", 0.9, 0.0, whole()),
            case("without momentum", 0.0, 0.0, whole()),
            case("after a bad step nothing moves", 0.9, 1.0, whole()),
            case("what rank 0 of two owns of the second half", 0.9, 0.0, owned()),
            case("the same without momentum", 0.0, 0.0, owned()),
        ])
    }
}

/// Number of elements of a test case that decay: the first ones.
const DECAYED: usize = 12_345;

/// Computes the update one element at a time, in f64.
fn reference(momentum: f64, i: &[Array], places: &Places) -> Vec<Array> {
    let (grads, lr, clip, bad) = (&i[0].data, i[1].data[i[2].data[0] as usize], i[3].data[0], i[4].data[0]);
    let mut out: Vec<Array> = i[5..].to_vec();
    if bad != 0.0 {
        return out;
    }
    for &(flat, master, slot) in places {
        let p = out[0].data[master];
        let mut step = grads[flat] * clip + if flat < DECAYED { 0.1 * p } else { 0.0 };
        if momentum != 0.0 {
            step += momentum * out[1].data[slot];
            out[1].data[slot] = step;
        }
        out[0].data[master] = p - lr * step;
        if out.len() > 1 + usize::from(momentum != 0.0) {
            let last = out.len() - 1;
            out[last].data[flat] = out[0].data[master];
        }
    }
    out
}
