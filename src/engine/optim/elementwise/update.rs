//! The op of optimizers that treat every element alike: it updates all parameters in one pass over memory.

use super::cases::cases;
use super::rule::{MAX_SCALARS, Rule, Scalars};
use crate::device::cpu::ViewMut;
use crate::device::gpu::{Arg, Kernel, MAX_RANKS};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Cases, Cost, CpuNode, GpuNode, Op, Precision, Spec};
use crate::ops::segments::{ELEMENTS_PER_TASK, Segments};
use std::ops::Range;

/// Elements that the inner loop updates before it stores their compute copy.
const CHUNK: usize = 64;

/// `(params, slots, compute copy) ← rule(clip · grads, …)`, in place.
///
/// Inputs: grads `[n]`, schedule `[steps + 1, columns]` (row 0 is not read), step `[1]` (u32), clip `[1]`
/// (the clipping factor), bad `[1]` (u32; not 0 after a non-finite loss or gradient norm: then nothing is
/// updated). Outputs, all updated in place: params `[n]`, `N` slots `[n]`, and the compute copy `[n]` if
/// activations have a narrower format than the master parameters. The slots of a group hold only the group's
/// elements. If ranks divide the update, the slots are the rank's shard, and so are params if there is a
/// compute copy. Elements outside the segments stay unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct ElementwiseUpdate<R, const N: usize> {
    /// The rule.
    pub rule: R,
    /// Ranges to update, with and without weight decay, in order.
    pub segments: Segments,
    /// Formats of the master parameters and of the compute copy.
    pub precision: Precision,
}

impl<R: Rule<N>, const N: usize> ElementwiseUpdate<R, N> {
    /// Runs the update on the CPU, with a compute copy of type `E`.
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        if cx.input_u32(4)[0] != 0 {
            return;
        }
        let (grads, clip) = (cx.input::<Acc<E>>(0), cx.input::<Acc<E>>(3).get(0));
        let scalars = self.scalars::<Acc<E>>(cx);
        let params = cx.output::<Acc<E>>(0);
        let slots: [ViewMut<'_, Acc<E>>; N] = std::array::from_fn(|slot| cx.output::<Acc<E>>(1 + slot));
        let compute_copy = self.precision.has_compute_copy().then(|| cx.output::<E>(1 + N));
        for segment in self.segments.for_rank(cx.comm.rank()) {
            cx.pool.chunks(
                segment.len,
                ELEMENTS_PER_TASK,
                #[inline(always)]
                |start, len| {
                    for at in (start..start + len).step_by(CHUNK) {
                        let count = CHUNK.min(start + len - at);
                        let g = grads.slice(segment.start + at, count);
                        let p = params.slice(segment.master + at, count);
                        let slots = slots.map(|slot| slot.slice(segment.offset + at, count));
                        for i in 0..count {
                            // Index the slots: iterators over them keep the loop from being vectorized.
                            let mut held = [Acc::<E>::ZERO; N];
                            for slot in 0..N {
                                held[slot] = slots[slot][i];
                            }
                            (p[i], held) = R::update(&scalars, segment.decay, p[i], held, g[i] * clip);
                            for slot in 0..N {
                                slots[slot][i] = held[slot];
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

    /// Returns the step's row of the schedule, with the rule's constants.
    fn scalars<A: Real>(&self, cx: &CpuNode<'_>) -> Scalars<A> {
        let (table, first) = (cx.input::<A>(1), cx.input_u32(2)[0] as usize * R::COLUMNS);
        let mut row = [A::ZERO; MAX_SCALARS];
        (0..R::COLUMNS).for_each(|column| row[column] = table.get(first + column));
        Scalars { row, constants: self.rule.constants().map(A::from_f64) }
    }
}

impl<R: Rule<N>, const N: usize> Op for ElementwiseUpdate<R, N> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn attributes(&self) -> String {
        format!("{} segments={}", self.rule.attributes(), self.segments)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [grads, schedule, step, clip, bad] = inputs else {
            return Err("takes grads, schedule, step, clip and bad".into());
        };
        let master = self.precision.master;
        if grads.dtype != master || schedule.width() != R::COLUMNS || clip.dtype != master {
            return Err(
                "grads and clip need the master format, and the schedule the optimizer's width".into()
            );
        }
        if step.dtype != DType::U32 || bad.dtype != DType::U32 {
            return Err("step and bad must be u32".into());
        }
        if grads.elements() != self.segments.flat_len {
            return Err("the segments do not cover the gradients".into());
        }
        let (masters, slot) = self.segments.masters_and_slot(master);
        let mut outputs = vec![masters];
        outputs.extend(vec![slot; N]);
        if self.precision.has_compute_copy() {
            outputs.push(grads.with_dtype(self.precision.act_dtype));
        }
        Ok(outputs)
    }

    /// Counts reads of gradient, master and slots, and writes of master, slots and compute copy.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let written: usize = outputs.iter().map(|output| output.dtype.size()).sum();
        let read = outputs[..=N].iter().chain(&inputs[..1]).map(|tensor| tensor.dtype.size()).sum::<usize>();
        Cost { product_flops: 0.0, bytes: (self.segments.updated() * (written + read)) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn output_range(&self, output: usize, rank: usize) -> Option<Range<usize>> {
        Some(self.segments.output_range(output, N, rank))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const { assert!(N <= MAX_RANKS && matches!(R::COLUMNS, 1 | 2 | 4)) };
        let has_compute_copy = self.precision.has_compute_copy();
        let kernel = Kernel::new(R::NAME, R::NAME)
            .with("UPDATE", R::NAME)
            .with("SLOTS", N)
            .with("COLUMNS", R::COLUMNS)
            .with("T", self.precision.act_dtype)
            .with("HAS_COMPUTE_COPY", u8::from(has_compute_copy));
        let mut slots = [0; MAX_RANKS];
        slots[..N].copy_from_slice(&cx.outputs[1..=N]);
        let compute_copy = if has_compute_copy { cx.output(1 + N) } else { 0 };
        let mut args: Vec<Arg> =
            cx.inputs.iter().chain(&cx.outputs[..1]).map(|&tensor| tensor.into()).collect();
        args.extend([Arg::from(slots), compute_copy.into()]);
        args.extend(self.rule.constants().map(|constant| Arg::F32(constant as f32)));
        self.segments.launch(cx.queue, kernel, args)
    }

    fn cases(precision: Precision) -> Cases {
        cases(precision, |rule: R, segments| Self { rule, segments, precision })
    }
}
