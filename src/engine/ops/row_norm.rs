//! The ops of every norm of rows: the norm itself, the op that adds a residual and normalizes the sum, and
//! the gradient of both. A `RowNorm` is the arithmetic of one norm.

mod arithmetic;
mod cases;

pub(super) use arithmetic::RowNorm;

use super::add::Add;
use super::affine::Affine;
use super::lanes::{launch_sum_partials, reduce_partials, rows_per_partial, rows_per_task, vector_width};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Builder, Cases, CpuNode, Emission, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp};
use arithmetic::{elements_per_thread, vector_attributes};
use std::sync::Arc;

/// The assignment of rows to GPU threads: a team of threads holds each row in registers (kernels/norm.cuh).
#[derive(Clone, Copy, Debug)]
struct Teams {
    dtype: DType,
    width: usize,
    /// Elements that a thread moves at once.
    vec: usize,
    /// Threads per row.
    team: usize,
    /// Threads per block.
    threads: usize,
    affine: Affine,
    weight_offset: f64,
}

impl Teams {
    /// Returns the assignment for rows of `width` elements in which a thread holds at most `elements` of a
    /// row.
    fn new<N: RowNorm>(norm: N, dtype: DType, width: usize, elements: usize) -> Self {
        let vec = vector_width(width, dtype);
        let packs = (elements / vec).max(1);
        let team = (width / vec).div_ceil(packs).next_power_of_two().clamp(4, 512);
        let (affine, weight_offset) = (norm.affine(), norm.weight_offset());
        Self { dtype, width, vec, team, threads: team.max(256), affine, weight_offset }
    }

    /// Launches a kernel whose blocks handle `run` rows each.
    fn launch(
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
            .with("T", self.dtype)
            .with("WIDTH", self.width)
            .with("VEC", self.vec)
            .with("TEAM", self.team)
            .with("THREADS", self.threads)
            .with("WEIGHT", u8::from(self.affine.weight()))
            .with("WEIGHT_OFFSET", format!("{:?}f", self.weight_offset))
            .with("BIAS", u8::from(self.affine.bias()));
        cx.queue.launch(kernel, Grid::new(rows.div_ceil(run), self.threads as u32), args)
    }
}

/// Returns the `i`-th address, or 0 if `i` is `None`.
fn pointer_or_null(tensors: &[DevicePtr], i: Option<usize>) -> Arg {
    Arg::Ptr(i.map_or(0, |i| tensors[i]))
}

/// Checks the rows `x` and the vectors of a norm.
fn check(affine: Affine, x: &Spec, vectors: &[Spec]) -> Result<(), String> {
    let is_vector = |w: &Spec| {
        let fits = w.shape.len() == 1 && x.shape.last() == w.shape.last() && x.width() == w.width();
        fits && w.dtype == x.dtype.accumulator()
    };
    let complete = vectors.len() == affine.count();
    if complete && !x.shape.is_empty() && x.dtype.is_float() && vectors.iter().all(is_vector) {
        return Ok(());
    }
    Err("x must be float [N, d], and w and b, if any, [d] in the accumulator format".into())
}

/// Returns the number of elements of a row without padding, its width in memory, and the number of rows.
fn row_sizes(x: &Spec) -> (usize, usize, usize) {
    (x.shape[x.shape.len() - 1], x.width(), x.rows())
}

/// Returns the weight of a norm with its offset, from input `i`; ones if there is no weight, since a product
/// with one keeps its bits.
fn weight_of<A: Real, N: RowNorm>(cx: &CpuNode<'_>, norm: N, i: usize, width: usize) -> Vec<A> {
    let mut weight = vector_or(cx, norm.affine().weight().then_some(i), width, A::ONE);
    if norm.weight_offset() != 0.0 {
        let offset = A::from_f64(norm.weight_offset());
        weight.iter_mut().for_each(|w| *w += offset);
    }
    weight
}

/// Returns the vector in input `i`, or `absent` in every element for a norm that lacks it.
fn vector_or<A: Real>(cx: &CpuNode<'_>, i: Option<usize>, width: usize, absent: A) -> Vec<A> {
    i.map_or_else(|| vec![absent; width], |i| cx.input::<A>(i).slice(0, width).to_vec())
}

/// Reads weight and bias, the inputs from `first` on, for rows of `width`.
fn vectors<A: Real, N: RowNorm>(cx: &CpuNode<'_>, norm: N, first: usize, width: usize) -> [Vec<A>; 2] {
    let bias = norm.affine().bias().then_some(first + 1);
    [weight_of(cx, norm, first, width), vector_or(cx, bias, width, A::ZERO)]
}

/// Launches a forward kernel with enough blocks for all rows. The vectors follow the first `first` inputs,
/// which are rows.
fn launch<N: RowNorm>(norm: N, cx: &GpuNode<'_>, first: usize) -> Result<()> {
    let (x, affine) = (cx.input_spec(0), norm.affine());
    let (len, width, rows) = row_sizes(x);
    let teams = Teams::new(norm, x.dtype, width, elements_per_thread(x.dtype));
    let vector = |i: usize| pointer_or_null(cx.inputs, (i < affine.count()).then_some(first + i));
    let mut args: Vec<Arg> = cx.inputs[..first].iter().map(|&p| p.into()).collect();
    args.extend((0..N::VECTORS).map(vector));
    args.extend(cx.outputs.iter().map(|&p| Arg::from(p)));
    args.push(rows.into());
    args.extend(norm.number_args(len));
    let kernel = if first == 1 { (N::NAME, N::NAME) } else { N::RESIDUAL };
    // A block handles as many rows at a time as it has teams.
    teams.launch(cx, kernel, (rows, teams.threads / teams.team), &args)
}

impl<N: RowNorm> Op for N {
    fn name(&self) -> &'static str {
        N::NAME
    }

    fn attributes(&self) -> String {
        format!("eps={:e}{}", self.eps(), vector_attributes(*self))
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, vectors @ ..] = inputs else { return Err("takes x".into()) };
        check(self.affine(), x, vectors)?;
        Ok(vec![x.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs = vec![v.input(0)];
        inputs.extend(self.affine().weight().then(|| v.input(1)));
        inputs.push(v.output_grad(0)?);
        let sum = v.sum_to_add_to(0);
        inputs.extend(sum);
        let gradient = NormGrad { norm: *self, residual: sum.is_some(), emits: false };
        v.backward(gradient, &inputs, &[0, 1, 2][..=self.affine().count()])?;
        v.includes_sum(0);
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (len, d, rows) = row_sizes(cx.input_spec(0));
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let (constants, [w, b]) = (self.constants::<A>(len), vectors::<A, _>(cx, *self, 1, d));
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(rows, rows_per_task(d), #[inline(always)] |start, len| {
                let mut row = vec![A::ZERO; d];
                for r in start..start + len {
                    x.load(r * d, &mut row);
                    N::normalize(&constants, &mut row, [&w, &b], y.slice(r * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(*self, cx, 1)
    }

    fn cases(precision: Precision) -> Cases {
        Cases::Own(cases::cases(precision, |norm: N| norm, false))
    }
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
        check(self.0.affine(), x, vectors)?;
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
        let gradient = NormGrad { norm: self.0, residual, emits: false };
        let outputs = v.backward(gradient, &inputs, &[0, 2, 3][..=self.0.affine().count()])?;
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
        let (len, d, rows) = row_sizes(cx.input_spec(0));
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let (constants, [w, b]) = (self.0.constants::<A>(len), vectors::<A, _>(cx, self.0, 2, d));
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
                    N::normalize(&constants, sum, [&w, &b], n_out.slice(row * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(self.0, cx, 2)
    }

    fn cases(precision: Precision) -> Cases {
        Cases::Own(cases::cases(precision, ResidualNorm::<N>, true))
    }
}

/// `(x, w, dy) → (dx, dw, db, partials)`, and with `residual` `(x, w, dy, dr) → (dx + dr, dw, db, partials)`.
/// A norm without a vector has neither the input nor the output for it, and one without a weight has no
/// `partials`.
///
/// Each run of rows writes the sums of `dw` and `db` side by side into its row of the scratch `partials
/// [runs, vectors·d]`; then the runs are summed. If `emits` is set, the norm of `x` follows as the last
/// output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormGrad<N> {
    /// The norm whose gradient this is.
    pub norm: N,
    /// True if a gradient that bypasses the norm is added to `dx`.
    pub residual: bool,
    /// True if the op also writes the output of the norm.
    pub emits: bool,
}

/// Returns the index of `dy` among the inputs of a gradient; `dr` follows it.
fn upstream_input(affine: Affine) -> usize {
    1 + usize::from(affine.weight())
}

/// Returns the index of the partial sums among the outputs of a gradient, if there are any.
fn partials_output(affine: Affine) -> Option<usize> {
    affine.weight().then_some(1 + affine.count())
}

/// Returns the index of the emitted norm among the outputs of a gradient: after all others.
fn emitted_output(affine: Affine) -> usize {
    partials_output(affine).map_or(1, |partials| partials + 1)
}

impl<N: RowNorm> Op for NormGrad<N> {
    fn name(&self) -> &'static str {
        N::gradient_kernel(false, false)
    }

    fn attributes(&self) -> String {
        let residual = if self.residual { " residual" } else { "" };
        format!("{}{residual}{}", self.norm.attributes(), if self.emits { " emits=y" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let affine = self.norm.affine();
        let dy = upstream_input(affine);
        if inputs.len() != dy + 1 + usize::from(self.residual) {
            return Err("takes x, w if the norm has one, dy, and dr with a residual".into());
        }
        let x = &inputs[0];
        let vectors: Vec<Spec> = inputs[1..dy].iter().flat_map(|w| vec![w.clone(); affine.count()]).collect();
        check(affine, x, &vectors)?;
        if inputs[dy..].iter().any(|dy| dy.alloc != x.alloc || dy.dtype != x.dtype) {
            return Err("gradients must have the shape and format of x".into());
        }
        let mut outputs = vec![x.clone()];
        outputs.extend(vectors);
        if partials_output(affine).is_some() {
            let runs = x.rows().div_ceil(rows_per_partial(x.rows()));
            outputs.push(Spec::new([runs, affine.count() * x.width()], x.dtype.accumulator()));
        }
        outputs.extend(self.emits.then(|| x.clone()));
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let affine = self.norm.affine();
        let dy = upstream_input(affine);
        let inputs = self.residual.then_some(dy + 1).into_iter().chain([dy, 0]);
        let outputs = [0].into_iter().chain(self.emits.then(|| emitted_output(affine)));
        outputs.flat_map(|output| inputs.clone().map(move |input| MayAlias { output, input })).collect()
    }

    fn emission(&self) -> Option<Emission> {
        N::EMITS.then(|| Emission {
            of: Arc::new(self.norm),
            inputs: (0..upstream_input(self.norm.affine())).collect(),
            gradient: Arc::new(Self { emits: true, ..*self }),
        })
    }

    fn accumulates(&self, output: usize) -> bool {
        (1..=self.norm.affine().count()).contains(&output)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let affine = self.norm.affine();
        let upstream = upstream_input(affine);
        let (len, d, rows) = row_sizes(cx.input_spec(0));
        let (run, sums_width) = (rows_per_partial(rows), affine.count() * d);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let constants = self.norm.constants::<A>(len);
            let w = weight_of::<A, _>(cx, self.norm, 1, d);
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(upstream), cx.output::<E>(0));
            let bypass: Option<View<'_, E>> = self.residual.then(|| cx.input::<E>(upstream + 1));
            let partials: Option<ViewMut<'_, A>> = partials_output(affine).map(|i| cx.output::<A>(i));
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(emitted_output(affine)));
            cx.pool.chunks(rows.div_ceil(run), rows_per_task(d).div_ceil(run), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; (3 + N::VECTORS) * d];
                let (x_row, rest) = scratch.split_at_mut(d);
                let (dy_row, rest) = rest.split_at_mut(d);
                let (dr_row, sums) = rest.split_at_mut(d);
                for partial in start..start + len {
                    sums.fill(A::ZERO);
                    let (dw, db) = sums.split_at_mut(d);
                    for r in partial * run..rows.min((partial + 1) * run) {
                        x.load(r * d, x_row);
                        dy.load(r * d, dy_row);
                        // The emitted norm may take over the memory of the gradient that bypasses the norm.
                        if let Some(dr) = bypass {
                            dr.load(r * d, dr_row);
                        }
                        let y_row = y.map(|y| y.slice(r * d, d));
                        N::gradient(&constants, x_row, &w, dy_row, [&mut *dw, &mut *db], y_row);
                        if bypass.is_some() {
                            x_row.iter_mut().zip(&*dr_row).for_each(|(d, dr)| *d += *dr);
                        }
                        dx.store(r * d, x_row);
                    }
                    if let Some(partials) = partials {
                        partials.put(partial * sums_width, &sums[..sums_width], false);
                    }
                }
            });
            if let Some(partials) = partials {
                for output in 1..=affine.count() {
                    let (to, column) = (cx.output::<A>(output), (output - 1) * d);
                    reduce_partials(cx.pool, (partials, sums_width), column, to, cx.adds(output));
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (x, affine) = (cx.input_spec(0), self.norm.affine());
        let (len, width, rows) = row_sizes(x);
        let run = rows_per_partial(rows);
        let mut args = vec![cx.input(0).into(), pointer_or_null(cx.inputs, affine.weight().then_some(1))];
        args.extend(cx.inputs[upstream_input(affine)..].iter().map(|&p| Arg::from(p)));
        args.extend([cx.output(0).into(), pointer_or_null(cx.outputs, partials_output(affine))]);
        args.extend(cx.outputs[emitted_output(affine)..].iter().map(|&p| Arg::from(p)));
        args.extend([Arg::from(rows), Arg::from(run)]);
        args.extend(self.norm.number_args(len));
        let entry = N::gradient_kernel(self.residual, self.emits);
        let elements = N::gradient_elements(x.dtype);
        let teams = Teams::new(self.norm, x.dtype, width, elements);
        teams.launch(cx, (N::NAME, entry), (rows, run), &args)?;
        let Some(partials) = partials_output(affine) else { return Ok(()) };
        launch_sum_partials(cx, partials, &[1, 2][..affine.count()])
    }

    /// The gradient checks of [`ResidualNorm`] cover `residual` as well.
    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<N>()
    }
}
