//! AdamW: updates all parameters in one pass over memory.
//!
//! Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), in the order of operations of
//! PyTorch's `torch.optim.AdamW`, after the gradient is multiplied by the factor of global-norm clipping. The
//! factors that change from step to step are a table with a row per step, computed once in f64 by
//! [`schedule_row`].

use super::segments::{ELEMENTS_PER_TASK, Places, Segments, case_of_owner, update_inputs};
use crate::device::gpu::{Arg, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Shards, Spec};
use std::ops::Range;

/// Columns of the schedule, which has a row per step.
pub const SCHEDULE_WIDTH: usize = 4;

/// Elements that the inner loop updates before the compute copy of them is stored.
const CHUNK: usize = 64;

/// `(params, m, v, compute copy) ← AdamW(grads, …)`, in place.
///
/// Inputs: grads `[n]`, schedule `[steps + 1, 4]` (row 0 is not read), step `[1]` (u32), clip `[1]` (the
/// factor of clipping), bad `[1]` (u32; not 0 after a loss or gradient norm that is not finite: nothing is
/// updated). Outputs, all updated in place: params, m, v `[n]`, and the compute copy `[n]` if activations
/// have a narrower format than the master parameters. Of a group of parameters, m and v have its elements
/// alone. Where ranks update what they own, m and v, and params if there is a compute copy, are the rank's
/// shard. The other elements are left as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Ranges with and without weight decay, in order, that are updated.
    pub segments: Segments,
    /// Formats of the master parameters and of the compute copy.
    pub precision: Precision,
}

/// Returns the row of step `t` (from 1) at the learning rate `lr`, of which decaying parameters lose the
/// share `decay`: `[1 − decay, lr / (1 − β1^t), √(1 − β2^t), lr]`.
pub fn schedule_row(lr: f64, decay: f64, (beta1, beta2): (f64, f64), t: u64) -> [f64; SCHEDULE_WIDTH] {
    // Not powi: its rounding is unspecified, and t may exceed i32.
    let power = |beta: f64| (beta.ln() * t as f64).exp();
    [1.0 - decay, lr / (1.0 - power(beta1)), (1.0 - power(beta2)).sqrt(), lr]
}

/// Scalars of one step, in the accumulator type.
#[derive(Clone, Copy)]
struct Step<A> {
    clip: A,
    decay: A,
    size: A,
    correction: A,
    one_minus_beta1: A,
    beta2: A,
    one_minus_beta2: A,
    eps: A,
}

impl<A: Real> Step<A> {
    /// Updates one element. Returns the new parameter and moments from the parameter `p`, moments `m` and `v`
    /// and gradient `g`.
    #[inline(always)]
    fn update(&self, p: A, m: A, v: A, g: A) -> (A, A, A) {
        let g = g * self.clip;
        let m = self.one_minus_beta1.fma(g - m, m);
        let v = (self.one_minus_beta2 * g).fma(g, self.beta2 * v);
        let denominator = v.sqrt() / self.correction + self.eps;
        // Three roundings, as in PyTorch: where decay and step cancel, any other order is many ulp away.
        let p = p * self.decay - self.size * m / denominator;
        (p, m, v)
    }
}

impl AdamW {
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
            size: table.get(row + 1),
            correction: table.get(row + 2),
            one_minus_beta1: constant(1.0 - self.beta1),
            beta2: constant(self.beta2),
            one_minus_beta2: constant(1.0 - self.beta2),
            eps: constant(self.eps),
        };
        let (params, m, v) = (cx.output::<Acc<E>>(0), cx.output::<Acc<E>>(1), cx.output::<Acc<E>>(2));
        let compute_copy = self.precision.has_compute_copy().then(|| cx.output::<E>(3));
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
                        let [m, v] = [m, v].map(|slot| slot.slice(segment.offset + at, count));
                        for i in 0..count {
                            (p[i], m[i], v[i]) = step.update(p[i], m[i], v[i], g[i]);
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

impl Op for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn attributes(&self) -> String {
        format!("betas=({},{}) eps={} segments={}", self.beta1, self.beta2, self.eps, self.segments)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let Precision { act_dtype, .. } = self.precision;
        let grads = update_inputs(inputs, self.precision, SCHEDULE_WIDTH)?;
        let (masters, slot) = self.segments.masters_and_slot(grads).ok_or("segments are of the gradients")?;
        let mut outputs = vec![masters, slot.clone(), slot];
        if self.precision.has_compute_copy() {
            outputs.push(grads.with_dtype(act_dtype));
        }
        Ok(outputs)
    }

    /// Reads gradient, master and moments; writes master, moments and compute copy.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let written: usize = outputs.iter().map(|output| output.dtype.size()).sum();
        let read = outputs[..3].iter().chain(&inputs[..1]).map(|tensor| tensor.dtype.size()).sum::<usize>();
        Cost { product_flops: 0.0, bytes: (self.segments.updated() * (written + read)) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn output_range(&self, output: usize, rank: usize) -> Option<Range<usize>> {
        Some(self.segments.output_range(output, 2, rank))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let kernel = Kernel::new("adamw", "adamw")
            .with_type("T", self.precision.act_dtype)
            .with("HAS_COMPUTE_COPY", u8::from(self.precision.has_compute_copy()));
        let mut args: Vec<Arg> =
            cx.inputs.iter().chain(&cx.outputs[..3]).map(|&tensor| tensor.into()).collect();
        let compute_copy = if self.precision.has_compute_copy() { cx.output(3) } else { 0 };
        args.push(compute_copy.into());
        let constants = [1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.eps];
        args.extend(constants.map(|constant| Arg::F32(constant as f32)));
        self.segments.launch(cx.queue, kernel, args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let n = 20_011;
        let all = [(0..DECAYED, true), (DECAYED..n, false)];
        let op = |segments| AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, segments, precision };
        let case = |name: &str, bad: f64, op: AdamW, at: Places| {
            let tensor = |shape: &[usize]| Spec::new(shape, precision.master);
            let table: Vec<f64> =
                (1..=3).flat_map(|t| schedule_row(1e-2, 1e-3, (op.beta1, op.beta2), t)).collect();
            let inputs = vec![
                (tensor(&[n]), Fill::Normal(0.0, 1.0)),
                (tensor(&[3, SCHEDULE_WIDTH]), Fill::Values(table)),
                (Spec::new([1], DType::U32), Fill::Values(vec![1.0])),
                (tensor(&[1]), Fill::Values(vec![0.5])),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            let mut outputs = vec![
                (Mode::Add, Fill::Normal(0.0, 1.0)),
                (Mode::Add, Fill::Normal(0.0, 0.3)),
                (Mode::Add, Fill::Uniform(0.0, 0.5)),
            ];
            outputs.extend(precision.has_compute_copy().then_some((Mode::Add, Fill::Normal(0.0, 1.0))));
            Case::new(name, op, inputs, move |i| reference(i, &at))
                .differentiable(&[])
                .upstream(&[])
                .outputs(outputs)
        };
        let whole = || (op(Segments::whole(&all)), (0..n).map(|i| (i, i, i)).collect());
        let owned = |from: usize| {
            let (segments, places) = case_of_owner(&all, from, precision);
            (op(segments), places)
        };
        // Of two groups one, whose pieces begin within blocks of a kernel.
        let group = [(192..2176, true), (12_288..DECAYED, true), (DECAYED..19_968, false)];
        let flat = [192..2176, 12_288..19_968];
        let of_group = op(Segments::new(&group, &Shards::new(&[n], 1, n).restricted(&flat), None, n));
        let pieces = flat.into_iter().flatten().enumerate().map(|(at, i)| (i, i, at)).collect();
        let ((second, at), (bad, everywhere)) = (whole(), whole());
        let ((sharded, places), (second_half, places_there)) = (owned(0), owned(12_288));
        Cases::Own(vec![
            case("second step", 0.0, second, at),
            case("after a bad step nothing moves", 1.0, bad, everywhere),
            case("what rank 0 of two owns", 0.0, sharded, places),
            case("what it owns of the second half", 0.0, second_half, places_there),
            case("a group", 0.0, of_group, pieces),
        ])
    }
}

/// Number of elements of a test case that decay: the first ones.
const DECAYED: usize = 12_345;

/// Computes the textbook form, one element at a time, in f64.
fn reference(i: &[Array], places: &Places) -> Vec<Array> {
    let (grads, table, clip, bad) = (&i[0].data, &i[1].data, i[3].data[0], i[4].data[0]);
    let t = i[2].data[0] as usize;
    let mut out: Vec<Array> = i[5..].to_vec();
    if bad != 0.0 {
        return out;
    }
    let row = &table[t * SCHEDULE_WIDTH..];
    for &(flat, master, slot) in places {
        let g = grads[flat] * clip;
        let decayed = out[0].data[master] * if flat < DECAYED { row[0] } else { 1.0 };
        let m = 0.9 * out[1].data[slot] + (1.0 - 0.9) * g;
        let v = 0.95 * out[2].data[slot] + (1.0 - 0.95) * g * g;
        let p = decayed - row[1] * m / (v.sqrt() / row[2] + 1e-8);
        (out[0].data[master], out[1].data[slot], out[2].data[slot]) = (p, m, v);
        if out.len() > 3 {
            out[3].data[flat] = p;
        }
    }
    out
}
