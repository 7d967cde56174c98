//! Layer norm (Ba, Kiros and Hinton, 2016), alone and fused with the residual addition before it.
//!
//! `y = (x − mean(x)) / √(variance(x) + eps) ⊙ w + b`, where the variance divides by the number of elements.
//! This is the formula of
//! [`torch.nn.LayerNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html). As in
//! `rms_norm`, only the input is kept for the backward pass: mean and variance are cheaper to recompute than
//! to read.

mod cases;

use super::affine::Affine;
use super::lanes::{BLOCK, dot, launch_sum_partials, rows_per_partial, rows_per_task, sum};
use super::row_norm::{
    ResidualNorm, RowNorm, Teams, backward, forward, launch, pointer_or_null, root_args, row_spec,
    weight_or_ones,
};
use crate::device::cpu::{Pool, View, ViewMut};
use crate::device::gpu::{Arg, DevicePtr};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Case, Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// The epsilon of all test cases.
const EPS: f64 = 1e-5;

/// `(x[N, d], w[d], b[d]) → y[N, d]`. Weight and bias have the accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
    /// The vectors that the norm has.
    pub affine: Affine,
}

/// `(x, w, dy) → (dx, dw, db, partials)`, and with `residual` `(x, w, dy, dr) → (dx + dr, dw, db, partials)`.
/// Without `dw` and `db` there are no `partials`.
///
/// With `s = 1 / √(variance + eps)`, `x̂ = (x − mean)·s` and `g = dy ⊙ w`:
/// `dx = s·(g − mean(g) − x̂·mean(g ⊙ x̂))`, `dw = Σ_rows dy ⊙ x̂` and `db = Σ_rows dy`. Each run of rows
/// writes both sums side by side into its row of the scratch `partials [runs, 2·d]` (`[runs, d]` for one
/// sum); then the runs are summed.
///
/// This op does not emit `y`. Its GPU kernel has fewer elements per thread than the forward kernel and sums a
/// row in another order, so mean and variance have other bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormGrad {
    /// See [`LayerNorm::eps`].
    pub eps: f64,
    /// See [`LayerNorm::affine`].
    pub affine: Affine,
    /// True if a gradient that bypasses the norm is added to `dx`.
    pub residual: bool,
}

/// The constants of a norm over rows of one width.
pub(super) struct Norm<A> {
    eps: A,
    /// Elements of a row without padding.
    len: usize,
    count: A,
}

impl<A: Real> Norm<A> {
    /// Creates the constants for rows like `row`.
    fn new(eps: f64, row: &Spec) -> Self {
        let len = row.logical_elements();
        Self { eps: A::from_f64(eps), len, count: A::from_f64(len as f64) }
    }

    /// Replaces a row by `x̂` and returns `s`. Padding stays zero.
    #[inline(always)]
    fn normalize(&self, x: &mut [A]) -> A {
        let x = &mut x[..self.len];
        let mean = sum(x) / self.count;
        x.iter_mut().for_each(|x| *x -= mean);
        let s = A::ONE / (dot(x, x) / self.count + self.eps).sqrt();
        x.iter_mut().for_each(|x| *x *= s);
        s
    }

    /// Writes the norm of `x`; `x` becomes `x̂`.
    #[inline(always)]
    fn norm<E: Elem<Acc = A>>(&self, x: &mut [A], [w, b]: [&[A]; 2], y: &mut [E]) {
        self.normalize(x);
        for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) {
            *y = E::down(x.fma(*w, *b));
        }
    }

    /// Replaces `x` by its gradient, and adds this row's part to `dw` and `db`. `dy` becomes `dy ⊙ w`.
    #[inline(always)]
    fn gradient(&self, x: &mut [A], w: &[A], dy: &mut [A], [dw, db]: [&mut [A]; 2]) {
        let s = self.normalize(x);
        for ((((dy, x), w), dw), db) in dy.iter_mut().zip(&*x).zip(w).zip(dw).zip(db) {
            *dw = dy.fma(*x, *dw);
            *db += *dy;
            *dy *= *w;
        }
        let (dy, x) = (&dy[..self.len], &mut x[..self.len]);
        let (mean, pull) = (sum(dy) / self.count, dot(dy, x) / self.count);
        for (x, g) in x.iter_mut().zip(dy) {
            *x = s * (*g - mean - *x * pull);
        }
    }
}

/// Weight and bias as the CPU reads them. Ones and zeros replace the vectors that a norm lacks.
pub(super) struct Vectors<A> {
    w: Vec<A>,
    b: Vec<A>,
}

impl<A: Real> Vectors<A> {
    /// Reads the vectors that follow `rows` inputs, for rows of `width`.
    fn new(cx: &CpuNode<'_>, affine: Affine, rows: usize, width: usize) -> Self {
        let bias = affine.bias().then(|| cx.input::<A>(rows + 1).slice(0, width).to_vec());
        let w = weight_or_ones(cx, affine.weight().then_some(rows), width);
        Self { w, b: bias.unwrap_or_else(|| vec![A::ZERO; width]) }
    }

    fn slices(&self) -> [&[A]; 2] {
        [&self.w, &self.b]
    }
}

/// Returns the kernel arguments that follow the number of rows: elements of a row, their reciprocal, eps.
fn norm_args(eps: f64, row: &Spec) -> [Arg; 3] {
    let [inv_n, eps] = root_args(eps, row);
    [row.logical_elements().into(), inv_n, eps]
}

impl RowNorm for LayerNorm {
    const FORWARD: (&'static str, &'static str) = ("layer_norm", "layer_norm");
    const RESIDUAL: (&'static str, &'static str) = ("layer_norm", "residual_layer_norm");

    type Gradient = LayerNormGrad;

    type Constants<A: Real> = (Norm<A>, Vectors<A>);

    fn affine(self) -> Affine {
        self.affine
    }

    fn check(self, x: &Spec, vectors: &[Spec]) -> Result<(), String> {
        let is_vector = |w: &Spec| {
            let fits = w.shape.len() == 1 && x.shape.last() == w.shape.last() && x.width() == w.width();
            fits && w.dtype == x.dtype.accumulator()
        };
        let complete = vectors.len() == self.affine.count();
        if complete && !x.shape.is_empty() && x.dtype.is_float() && vectors.iter().all(is_vector) {
            return Ok(());
        }
        Err("x must be float [N, d], and w and b, if any, [d] in the accumulator format".into())
    }

    fn gradient(self, residual: bool) -> LayerNormGrad {
        LayerNormGrad { eps: self.eps, affine: self.affine, residual }
    }

    fn constants<A: Real>(self, cx: &CpuNode<'_>, row: &Spec, first: usize) -> (Norm<A>, Vectors<A>) {
        (Norm::new(self.eps, row), Vectors::new(cx, self.affine, first, row.width()))
    }

    #[inline(always)]
    fn normalize<E: Elem>((norm, vectors): &(Norm<E::Acc>, Vectors<E::Acc>), x: &mut [E::Acc], y: &mut [E]) {
        norm.norm(x, vectors.slices(), y);
    }

    fn vector_args(self, inputs: &[DevicePtr], first: usize) -> Vec<Arg> {
        let (weight, bias) = (self.affine.weight(), self.affine.bias());
        [weight.then_some(first), bias.then_some(first + 1)].map(|i| pointer_or_null(inputs, i)).to_vec()
    }

    fn number_args(self, row: &Spec) -> Vec<Arg> {
        norm_args(self.eps, row).to_vec()
    }

    fn residual_cases(precision: Precision) -> Vec<Case> {
        cases::cases(precision, |affine| ResidualNorm(Self { eps: EPS, affine }), EPS, true)
    }
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn attributes(&self) -> String {
        let lacks = match self.affine {
            Affine::WeightAndBias => "",
            Affine::Weight => " no bias",
            Affine::None => " no weight",
        };
        format!("eps={:e}{lacks}", self.eps)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, vectors @ ..] = inputs else { return Err("takes x".into()) };
        self.check(x, vectors)?;
        Ok(vec![x.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        backward(*self, v)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        forward(*self, cx);
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(*self, cx, 1)
    }

    fn cases(precision: Precision) -> Cases {
        let op = |affine| LayerNorm { eps: EPS, affine };
        Cases::Own(cases::cases(precision, op, EPS, false))
    }
}

impl LayerNormGrad {
    /// Returns the norm whose gradient this is.
    fn norm(self) -> LayerNorm {
        LayerNorm { eps: self.eps, affine: self.affine }
    }

    /// Returns the index of `dy` among the inputs; `dr` follows it.
    fn upstream_input(self) -> usize {
        1 + usize::from(self.affine.weight())
    }

    /// Returns the index of the partial sums among the outputs, if there are any.
    fn partials_output(self) -> Option<usize> {
        self.affine.weight().then_some(1 + self.affine.count())
    }
}

impl Op for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer_norm_grad"
    }

    fn attributes(&self) -> String {
        format!("{}{}", self.norm().attributes(), if self.residual { " residual" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let dy = self.upstream_input();
        if inputs.len() != dy + 1 + usize::from(self.residual) {
            return Err("takes x, w if the norm has one, dy, and dr with a residual".into());
        }
        let x = &inputs[0];
        let vectors: Vec<Spec> =
            inputs[1..dy].iter().flat_map(|w| vec![w.clone(); self.affine.count()]).collect();
        self.norm().check(x, &vectors)?;
        if inputs[dy..].iter().any(|dy| dy.alloc != x.alloc || dy.dtype != x.dtype) {
            return Err("gradients must have the shape and format of x".into());
        }
        let mut outputs = vec![x.clone()];
        outputs.extend(vectors);
        if self.partials_output().is_some() {
            let rows = x.elements() / x.width();
            let runs = rows.div_ceil(rows_per_partial(rows));
            outputs.push(Spec::new([runs, self.affine.count() * x.width()], x.dtype.accumulator()));
        }
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let dy = self.upstream_input();
        let mut inputs = vec![dy, 0];
        if self.residual {
            inputs.insert(0, dy + 1);
        }
        inputs.into_iter().map(|input| MayAlias { output: 0, input }).collect()
    }

    fn accumulates(&self, output: usize) -> bool {
        (1..=self.affine.count()).contains(&output)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (weight, upstream) = (self.affine.weight().then_some(1), self.upstream_input());
        let row = row_spec(cx.input_spec(0), weight.map(|i| cx.input_spec(i)));
        let d = row.width();
        let rows = cx.input_spec(0).elements() / d;
        let run = rows_per_partial(rows);
        let sums_width = self.affine.count() * d;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let norm = Norm::<A>::new(self.eps, &row);
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(upstream), cx.output::<E>(0));
            let bypass: Option<View<'_, E>> = self.residual.then(|| cx.input::<E>(upstream + 1));
            let w = weight_or_ones::<A>(cx, weight, d);
            let partials: Option<ViewMut<'_, A>> = self.partials_output().map(|i| cx.output::<A>(i));
            cx.pool.chunks(rows.div_ceil(run), rows_per_task(d).div_ceil(run), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 5 * d];
                let (x_row, rest) = scratch.split_at_mut(d);
                let (dy_row, rest) = rest.split_at_mut(d);
                let (dr_row, sums) = rest.split_at_mut(d);
                for partial in start..start + len {
                    sums.fill(A::ZERO);
                    let (dw, db) = sums.split_at_mut(d);
                    for r in partial * run..rows.min((partial + 1) * run) {
                        x.load(r * d, x_row);
                        dy.load(r * d, dy_row);
                        norm.gradient(x_row, &w, dy_row, [&mut *dw, &mut *db]);
                        if let Some(dr) = bypass {
                            dr.load(r * d, dr_row);
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
                for output in 1..=self.affine.count() {
                    reduce(cx.pool, (partials, sums_width), (output - 1) * d, cx.output::<A>(output), cx.adds(output));
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (weight, upstream) = (self.affine.weight().then_some(1), self.upstream_input());
        let row = row_spec(cx.input_spec(0), weight.map(|i| cx.input_spec(i)));
        let rows = cx.input_spec(0).elements() / row.width();
        let run = rows_per_partial(rows);
        let entry = if self.residual { "layer_norm_residual_grad" } else { "layer_norm_grad" };
        let mut args = vec![cx.input(0).into(), pointer_or_null(cx.inputs, weight)];
        args.extend(cx.inputs[upstream..].iter().map(|&p| Arg::from(p)));
        args.extend([cx.output(0).into(), pointer_or_null(cx.outputs, self.partials_output())]);
        args.extend([Arg::from(rows), Arg::from(run)]);
        args.extend(norm_args(self.eps, &row));
        // A thread also holds two sums per element of a row; with 32 elements per thread they spill.
        Teams::with_elements_per_thread(cx.input_spec(0).dtype, row.width(), 16)
            .with_affine(self.affine.weight(), self.affine.bias())
            .launch(cx, ("layer_norm", entry), (rows, run), &args)?;
        let Some(partials) = self.partials_output() else { return Ok(()) };
        launch_sum_partials(cx, partials, &[1, 2][..self.affine.count()])
    }

    /// The gradient checks of [`ResidualNorm`] cover `residual` as well.
    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<LayerNorm>()
    }
}

/// Computes `to[c] (+)= Σ partials[·, column + c]` over all rows of `[rows, width]`, in their order.
fn reduce<A: Real>(
    pool: &Pool,
    (partials, width): (ViewMut<'_, A>, usize),
    column: usize,
    to: ViewMut<'_, A>,
    add: bool,
) {
    let count = partials.len() / width.max(1);
    pool.chunks(
        to.len(),
        BLOCK,
        #[inline(always)]
        |start, len| {
            let mut sum = [A::ZERO; BLOCK];
            let sum = &mut sum[..len];
            for row in 0..count {
                let part = partials.slice(row * width + column + start, len);
                sum.iter_mut().zip(&*part).for_each(|(sum, part)| *sum += *part);
            }
            to.put(start, sum, add);
        },
    );
}

#[cfg(test)]
mod tests {
    use super::cases::torch_layer_norm;
    use super::*;
    use crate::device::DType;
    use crate::ir::Array;

    /// `torch.nn.functional.layer_norm(torch.tensor([1., 2., 3., 4.]), (4,), eps=1e-5)`: mean 2.5, variance
    /// 1.25.
    #[test]
    fn a_row_matches_torch_in_f64() {
        let w = Spec::new([4], DType::F64);
        let norm = Norm::<f64>::new(1e-5, &w);
        let (mut row, mut y) = ([1.0, 2.0, 3.0, 4.0], [0.0f64; 4]);
        norm.norm(&mut row, [&[1.0; 4], &[0.0; 4]], &mut y);
        let s = 1.0 / (1.25f64 + 1e-5).sqrt();
        for (y, x) in y.iter().zip([-1.5, -0.5, 0.5, 1.5]) {
            assert!((y - x * s).abs() < 1e-15, "{y}");
        }
        let (mut row, mut y) = ([1.0, 2.0, 3.0, 4.0], [0.0f64; 4]);
        norm.norm(&mut row, [&[2.0, 1.0, 0.5, -1.0], &[0.1, 0.2, 0.3, 0.4]], &mut y);
        let x = Array { shape: vec![4], data: vec![1.0, 2.0, 3.0, 4.0] };
        let weight = Array { shape: vec![4], data: vec![2.0, 1.0, 0.5, -1.0] };
        let bias = Array { shape: vec![4], data: vec![0.1, 0.2, 0.3, 0.4] };
        let torch = torch_layer_norm(&x, &weight, &bias, 1e-5);
        assert!(y.iter().zip(&torch.data).all(|(y, t)| (y - t).abs() < 1e-15), "{y:?} {torch:?}");
    }
}
