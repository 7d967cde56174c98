//! The end of a Muon step: master weights decay and move along the directions of their matrices.
//!
//! Follows the order of operations of PyTorch's `torch.optim.Muon` (torch/optim/_muon.py): the decay uses the
//! learning rate itself, the step uses the rate adjusted to the shape of the matrix.

use super::matrices::{Matrices, MatrixPlace};
use super::muon_momentum::{CASE_FLAT_LEN, case_matrices};
use crate::device::gpu::{Arg, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use std::ops::Range;

/// Columns of the schedule, which has one row per step.
pub const SCHEDULE_WIDTH: usize = 2;

/// Elements that one CPU task updates, and elements that its inner loop updates before it stores their
/// compute copy.
const ELEMENTS_PER_TASK: usize = 16_384;
const CHUNK: usize = 64;

/// `params ← params·decay − ratio·lr·x`, in place; the compute copy gets the same values.
///
/// Inputs: x `[matrices, rows, columns]`, schedule `[steps + 1, 2]` (row 0 is not read), step `[1]` (u32),
/// bad `[1]` (u32; nonzero if the loss or the gradient norm is not finite: then nothing is updated). Outputs,
/// updated in place: params `[masters]`, and the compute copy `[flat]` if activations have a narrower format
/// than the masters. If ranks own matrices, a rank leaves the matrices of other ranks as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct MuonUpdate {
    /// The adjusted learning rate divided by the learning rate.
    pub ratio: f64,
    /// The matrices.
    pub matrices: Matrices,
    /// Number of elements in the compute copy.
    pub flat_len: usize,
    /// Formats of the masters and the compute copy.
    pub precision: Precision,
}

/// Returns the schedule row of a step: `[1 − decay, lr]`. `decay` is the fraction of a matrix that decays in
/// this step.
pub fn schedule_row(lr: f64, decay: f64) -> [f64; SCHEDULE_WIDTH] {
    [1.0 - decay, lr]
}

impl MuonUpdate {
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        if cx.input_u32(3)[0] != 0 {
            return;
        }
        let (x, table) = (cx.input::<E>(0), cx.input::<Acc<E>>(1));
        let row = cx.input_u32(2)[0] as usize * SCHEDULE_WIDTH;
        let (decay, step) = (table.get(row), table.get(row + 1) * Acc::<E>::from_f64(self.ratio));
        let params = cx.output::<Acc<E>>(0);
        let compute_copy = self.precision.has_compute_copy().then(|| cx.output::<E>(1));
        let (places, size) = (self.matrices.for_rank(cx.comm.rank()), self.matrices.size());
        let tasks = size.div_ceil(ELEMENTS_PER_TASK);
        cx.pool.run(
            places.len() * tasks,
            #[inline(always)]
            |task| {
                let (matrix, start) = (task / tasks, task % tasks * ELEMENTS_PER_TASK);
                let MatrixPlace { flat, master, .. } = places[matrix];
                for at in (start..size.min(start + ELEMENTS_PER_TASK)).step_by(CHUNK) {
                    let count = CHUNK.min(size.min(start + ELEMENTS_PER_TASK) - at);
                    let p = params.slice(master + at, count);
                    let x = x.slice(matrix * size + at, count);
                    for (p, x) in p.iter_mut().zip(x) {
                        *p = (-step).fma(x.up(), *p * decay);
                    }
                    if let Some(compute_copy) = compute_copy {
                        compute_copy.store(flat + at, p);
                    }
                }
            },
        );
    }
}

impl Op for MuonUpdate {
    fn name(&self) -> &'static str {
        "muon_update"
    }

    fn attributes(&self) -> String {
        format!("ratio={} matrices={}", self.ratio, self.matrices)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, schedule, step, bad] = inputs else { return Err("takes x, schedule, step and bad".into()) };
        let Precision { act_dtype, master } = self.precision;
        if x.dtype != act_dtype || x.alloc != self.matrices.batch() {
            return Err("x must be a batch of the matrices in the activation format".into());
        }
        if schedule.dtype != master || schedule.width() != SCHEDULE_WIDTH {
            return Err("the schedule must be [steps + 1, 2] in the master format".into());
        }
        if step.dtype != DType::U32 || bad.dtype != DType::U32 {
            return Err("step and bad must be u32".into());
        }
        let mut outputs = vec![Spec::new([self.matrices.masters_len], master)];
        if self.precision.has_compute_copy() {
            outputs.push(Spec::new([self.flat_len], act_dtype));
        }
        Ok(outputs)
    }

    /// Reads direction and master; writes master and compute copy.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let written: usize = outputs.iter().map(|output| output.dtype.size()).sum();
        let read = inputs[0].dtype.size() + outputs[0].dtype.size();
        Cost { product_flops: 0.0, bytes: (inputs[0].elements() * (read + written)) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn output_range(&self, output: usize, rank: usize) -> Option<Range<usize>> {
        Some(self.matrices.span(rank, |place| if output == 0 { place.master } else { place.flat }))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let rank = cx.queue.rank();
        let count = self.matrices.for_rank(rank).len();
        if count == 0 {
            return Ok(());
        }
        let has_compute_copy = self.precision.has_compute_copy();
        let kernel = Kernel::new("muon_update", "muon_update")
            .with("T", self.precision.act_dtype)
            .with("HAS_COMPUTE_COPY", u8::from(has_compute_copy));
        let mut args: Vec<Arg> =
            cx.inputs.iter().chain(&cx.outputs[..1]).map(|&tensor| tensor.into()).collect();
        let compute_copy = if has_compute_copy { cx.output(1) } else { 0 };
        let (kernel, row) = self.matrices.define_in(kernel, rank);
        let (size, ratio) = (Arg::U64(self.matrices.size() as u64), Arg::F32(self.ratio as f32));
        args.extend([compute_copy.into(), size, ratio, row]);
        cx.queue.launch(kernel, self.matrices.grid(count), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, bad: f64| {
            let matrices = case_matrices();
            let op = MuonUpdate { ratio: 0.2 * 96f64.sqrt(), matrices, flat_len: CASE_FLAT_LEN, precision };
            let table: Vec<f64> = (1..=3).flat_map(|t| schedule_row(0.01 * f64::from(t), 1e-3)).collect();
            let inputs = vec![
                (Spec::new(op.matrices.batch(), precision.act_dtype), Fill::Normal(0.0, 0.1)),
                (Spec::new([3, SCHEDULE_WIDTH], precision.master), Fill::Values(table)),
                (Spec::new([1], DType::U32), Fill::Values(vec![1.0])),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            let mut outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0))];
            outputs.extend(precision.has_compute_copy().then_some((Mode::Add, Fill::Normal(0.0, 1.0))));
            Case::new(name, op.clone(), inputs, move |i| reference(i, &op))
                .without_gradient()
                .outputs(outputs)
        };
        Cases::Own(vec![case("second step", 0.0), case("after a bad step nothing moves", 1.0)])
    }
}

/// Computes the formula in f64, one element at a time.
fn reference(i: &[Array], op: &MuonUpdate) -> Vec<Array> {
    let mut out: Vec<Array> = i[4..].to_vec();
    if i[3].data[0] != 0.0 {
        return out;
    }
    let row = &i[1].data[i[2].data[0] as usize * SCHEDULE_WIDTH..];
    let size = op.matrices.size();
    for (place, x) in op.matrices.for_rank(0).iter().zip(i[0].data.chunks_exact(size)) {
        for (k, x) in x.iter().enumerate() {
            let p = out[0].data[place.master + k] * row[0] - row[1] * op.ratio * x;
            out[0].data[place.master + k] = p;
            if out.len() > 1 {
                out[1].data[place.flat + k] = p;
            }
        }
    }
    out
}
