//! Code that the norms share: the assignment of a row to GPU threads, the forward pass, and the op that adds
//! a residual and normalizes the sum.

use super::add::Add;
use super::affine::Affine;
use super::lanes::{rows_per_task, vector_width};
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Builder, Case, Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp};
use std::sync::Arc;

/// A norm of rows. Its inputs are the rows, then its parameter vectors.
pub(super) trait RowNorm: Op + Copy + PartialEq {
    /// The kernels of the norm alone and after a residual addition: file and entry. The entries have the
    /// names of the ops.
    const FORWARD: (&'static str, &'static str);
    const RESIDUAL: (&'static str, &'static str);

    /// The gradient op.
    type Gradient: Op;

    /// Constants and vectors on the CPU.
    type Constants<A: Real>: Sync;

    /// Returns which vectors the norm has.
    fn affine(self) -> Affine;

    /// Checks the rows `x` and the vectors.
    fn check(self, x: &Spec, vectors: &[Spec]) -> Result<(), String>;

    /// Returns the gradient op; with `residual` it adds a gradient that bypasses the norm.
    fn gradient(self, residual: bool) -> Self::Gradient;

    /// Reads what the CPU needs to normalize rows like `row`. The vectors are the inputs from `first` on.
    fn constants<A: Real>(self, cx: &CpuNode<'_>, row: &Spec, first: usize) -> Self::Constants<A>;

    /// Writes the norm of `x` to `y` and may change `x`. Every op that normalizes a row gets the same bits.
    fn normalize<E: Elem>(constants: &Self::Constants<E::Acc>, x: &mut [E::Acc], y: &mut [E]);

    /// Returns the addresses of the vectors as kernel arguments; they are the inputs from `first` on.
    fn vector_args(self, inputs: &[DevicePtr], first: usize) -> Vec<Arg>;

    /// Returns the kernel arguments that follow the number of rows.
    fn number_args(self, row: &Spec) -> Vec<Arg>;

    /// Returns the test cases of [`ResidualNorm`] with this norm.
    fn residual_cases(precision: Precision) -> Vec<Case>;
}

/// The assignment of rows to GPU threads: a team of threads holds each row in registers (kernels/norm.cuh).
#[derive(Clone, Copy, Debug)]
pub(super) struct Teams {
    dtype: DType,
    width: usize,
    /// Elements that a thread moves at once.
    vec: usize,
    /// Threads per row.
    team: usize,
    /// Threads per block.
    threads: usize,
    /// True if rows are multiplied by a weight.
    weight: bool,
    /// True if a bias is added to rows.
    bias: bool,
}

impl Teams {
    /// Returns the assignment for rows of `width` elements. A thread holds at most 64 bytes of a row. (Rows
    /// too long for 512 threads spill to local memory: slow, but correct.)
    pub(super) fn new(dtype: DType, width: usize) -> Self {
        Self::with_elements_per_thread(dtype, width, 64 / dtype.size())
    }

    /// Returns the assignment in which a thread holds at most `elements` of a row.
    pub(super) fn with_elements_per_thread(dtype: DType, width: usize, elements: usize) -> Self {
        let vec = vector_width(width, dtype);
        let packs = (elements / vec).max(1);
        let team = (width / vec).div_ceil(packs).next_power_of_two().clamp(4, 512);
        Self { dtype, width, vec, team, threads: team.max(256), weight: true, bias: false }
    }

    /// Sets whether kernels read a weight and a bias.
    pub(super) fn with_affine(self, weight: bool, bias: bool) -> Self {
        Self { weight, bias, ..self }
    }

    /// Launches a kernel whose blocks handle `run` rows each.
    pub(super) fn launch(
        &self,
        cx: &GpuNode<'_>,
        (file, entry): (&'static str, &'static str),
        (rows, run): (usize, usize),
        args: &[Arg],
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let kernel = Kernel::new(file, entry)
            .with_type("T", self.dtype)
            .with("WIDTH", self.width)
            .with("VEC", self.vec)
            .with("TEAM", self.team)
            .with("THREADS", self.threads)
            .with("WEIGHT", u8::from(self.weight))
            .with("BIAS", u8::from(self.bias));
        cx.queue.launch(kernel, Grid::new(rows.div_ceil(run), self.threads as u32), args)
    }

    /// Returns the number of rows that a block handles at a time.
    pub(super) fn rows_at_once(&self) -> usize {
        self.threads / self.team
    }
}

/// Returns the kernel's counterpart of [`Root`]: the reciprocal of the number of elements in the mean, and
/// eps.
pub(super) fn root_args(eps: f64, row: &Spec) -> [Arg; 2] {
    [Arg::F32((1.0 / row.logical_elements() as f64) as f32), Arg::F32(eps as f32)]
}

/// Returns the spec of one row as the norm sees it: like the weight, or the whole row if there is none.
pub(super) fn row_spec(x: &Spec, w: Option<&Spec>) -> Spec {
    let whole = || Spec::padded([x.shape[x.shape.len() - 1]], [x.width()], x.dtype.accumulator());
    w.cloned().unwrap_or_else(whole)
}

/// Returns the weight in input `i`, or ones for a norm without a weight: a product with one keeps its bits.
pub(super) fn weight_or_ones<A: Real>(cx: &CpuNode<'_>, i: Option<usize>, width: usize) -> Vec<A> {
    i.map_or_else(|| vec![A::ONE; width], |i| cx.input::<A>(i).slice(0, width).to_vec())
}

/// Returns the `i`-th address, or 0 if `i` is `None`.
pub(super) fn pointer_or_null(tensors: &[DevicePtr], i: Option<usize>) -> Arg {
    Arg::Ptr(i.map_or(0, |i| tensors[i]))
}

/// Returns the spec of one row of `x` as the norm sees it, and the number of rows.
fn row_and_count(x: &Spec, w: Option<&Spec>) -> (Spec, usize) {
    let row = row_spec(x, w);
    let count = x.elements() / row.width();
    (row, count)
}

/// Normalizes rows on the CPU.
pub(super) fn forward<N: RowNorm>(norm: N, cx: &CpuNode<'_>) {
    let (row, rows) = row_and_count(cx.input_spec(0), norm.affine().weight().then(|| cx.input_spec(1)));
    let d = row.width();
    dispatch_float!(cx.input_spec(0).dtype, E => {
        let constants = norm.constants::<<E as Elem>::Acc>(cx, &row, 1);
        let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
        cx.pool.chunks(rows, rows_per_task(d), #[inline(always)] |start, len| {
            let mut row = vec![<E as Elem>::Acc::ZERO; d];
            for r in start..start + len {
                x.load(r * d, &mut row);
                N::normalize(&constants, &mut row, y.slice(r * d, d));
            }
        });
    });
}

/// Launches a forward kernel with enough blocks for all rows. The vectors follow the first `first` inputs,
/// which are rows.
pub(super) fn launch<N: RowNorm>(norm: N, cx: &GpuNode<'_>, first: usize) -> Result<()> {
    let x = cx.input_spec(0);
    let (row, rows) = row_and_count(x, norm.affine().weight().then(|| cx.input_spec(first)));
    let (weight, bias) = (norm.affine().weight(), norm.affine().bias());
    let teams = Teams::new(x.dtype, row.width()).with_affine(weight, bias);
    let mut args: Vec<Arg> = cx.inputs[..first].iter().map(|&p| p.into()).collect();
    args.extend(norm.vector_args(cx.inputs, first));
    args.extend(cx.outputs.iter().map(|&p| Arg::from(p)));
    args.push(rows.into());
    args.extend(norm.number_args(&row));
    let kernel = if first == 1 { N::FORWARD } else { N::RESIDUAL };
    teams.launch(cx, kernel, (rows, teams.rows_at_once()), &args)
}

/// Records the gradient of a norm.
pub(super) fn backward<N: RowNorm>(norm: N, v: &mut Vjp<'_>) -> Result<()> {
    let mut inputs = vec![v.input(0)];
    inputs.extend(norm.affine().weight().then(|| v.input(1)));
    inputs.push(v.output_grad(0)?);
    v.backward(norm.gradient(false), &inputs, &[0, 1, 2][..=norm.affine().count()]).map(drop)
}

/// `(x[N, d], y[N, d], vectors) → (r, n)` with `r = x + y`, as stored, and `n = norm(r)`.
///
/// `n` is computed from the rounded `r`, so that normalizing a kept `r` again gives the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResidualNorm<N>(
    /// The norm of the sum.
    pub N,
);

impl<N: RowNorm> Op for ResidualNorm<N> {
    fn name(&self) -> &'static str {
        N::RESIDUAL.1
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, y, vectors @ ..] = inputs else { return Err("takes x and y".into()) };
        if x != y {
            return Err("x and y must have the same shape and format".into());
        }
        self.0.check(x, vectors)?;
        Ok(vec![x.clone(), x.clone()])
    }

    /// Both addends have the same gradient.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs = vec![v.output(0)];
        inputs.extend(self.0.affine().weight().then(|| v.input(2)));
        inputs.push(v.output_grad(1)?);
        let residual = v.upstream(0).is_some();
        if residual {
            inputs.push(v.output_grad(0)?);
        }
        let outputs =
            v.backward(self.0.gradient(residual), &inputs, &[0, 2, 3][..=self.0.affine().count()])?;
        v.set_input_grad(1, outputs[0]);
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let pairs = [(0, 0), (1, 1), (0, 1), (1, 0)];
        pairs.into_iter().map(|(output, input)| MayAlias { output, input }).collect()
    }

    fn cheap_to_recompute(&self, output: usize) -> bool {
        output == 1
    }

    fn rederive(
        &self,
        inputs: &[TensorId],
        outputs: &[TensorId],
        output: usize,
    ) -> Option<(Arc<dyn Op>, Vec<TensorId>)> {
        let norm_inputs = || [&outputs[..1], &inputs[2..]].concat();
        (output == 1).then(|| (Arc::new(self.0) as Arc<dyn Op>, norm_inputs()))
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let r = b.emit1("residual", Add, &inputs[..2])?;
        let n = b.emit1("norm", self.0, &[&[r], &inputs[2..]].concat())?;
        Ok(Some(vec![r, n]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (row, rows) = row_and_count(cx.input_spec(0), self.0.affine().weight().then(|| cx.input_spec(2)));
        let d = row.width();
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let constants = self.0.constants::<A>(cx, &row, 2);
            let (x, y) = (cx.input::<E>(0), cx.input::<E>(1));
            let (r_out, n_out) = (cx.output::<E>(0), cx.output::<E>(1));
            cx.pool.chunks(rows, rows_per_task(d), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 2 * d];
                let (sum, addend) = scratch.split_at_mut(d);
                for row in start..start + len {
                    x.load(row * d, sum);
                    y.load(row * d, addend);
                    for ((r, sum), addend) in r_out.slice(row * d, d).iter_mut().zip(&mut *sum).zip(&*addend) {
                        *r = E::down(*sum + *addend);
                        *sum = r.up();
                    }
                    N::normalize(&constants, sum, n_out.slice(row * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(self.0, cx, 2)
    }

    fn cases(precision: Precision) -> Cases {
        Cases::Own(N::residual_cases(precision))
    }
}
