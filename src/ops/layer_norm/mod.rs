//! Layer norm (Ba, Kiros and Hinton, 2016), alone and fused with the residual addition before it.
//!
//! `y = (x − mean(x)) / √(variance(x) + eps) ⊙ w + b`, where the variance divides by the number of elements:
//! the formula of
//! [`torch.nn.LayerNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html). As with
//! `rms_norm`, only the input is kept for the backward: mean and variance are cheaper to recompute than to
//! read.

mod cases;

use super::add::Add;
use super::lanes::{BLOCK, dot, launch_sum_partials, rows_per_partial, rows_per_task, sum};
use super::rms_norm::{Teams, root_args};
use crate::device::cpu::{Pool, View, ViewMut};
use crate::device::gpu::Arg;
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Builder, Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp};
use std::sync::Arc;

/// The constant of all cases.
const EPS: f64 = 1e-5;

/// `(x[N, d], w[d], b[d]) → y[N, d]`. Weight and bias are in the accumulator format.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
}

/// `(x[N, d], y[N, d], w[d], b[d]) → (r, n)` with `r = x + y`, as stored, and `n = layer_norm(r)`.
///
/// `n` is computed from the rounded `r`, so that [`LayerNorm`] of a kept `r` gives the same bits.
#[derive(Clone, Copy, Debug)]
pub struct ResidualLayerNorm {
    /// Added to the variance.
    pub eps: f64,
}

/// `(x, w, dy) → (dx, dw, db, partials)`, and with `residual` `(x, w, dy, dr) → (dx + dr, dw, db, partials)`.
///
/// With `s = 1 / √(variance + eps)`, `x̂ = (x − mean)·s` and `g = dy ⊙ w`: `dx = s·(g − mean(g) − x̂·mean(g ⊙
/// x̂))`, `dw = Σ_rows dy ⊙ x̂` and `db = Σ_rows dy`. Both sums are taken over runs of rows, side by side in
/// a row of the scratch `partials [runs, 2·d]`, then over the runs.
///
/// It does not emit `y`: with fewer elements per thread than the forward, its GPU kernel adds up a row in
/// another order, so mean and variance have other bits.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormGrad {
    /// As [`LayerNorm::eps`].
    pub eps: f64,
    /// Adds a gradient that bypasses the norm to `dx`.
    pub residual: bool,
}

/// The constants of a norm over rows of one width.
struct Norm<A> {
    eps: A,
    /// Elements of a row without padding.
    len: usize,
    count: A,
}

impl<A: Real> Norm<A> {
    /// For rows that `w` is the weight of.
    fn new(eps: f64, w: &Spec) -> Self {
        let len = w.logical_elements();
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

    /// Writes the norm of `x`, which becomes `x̂`. Every op that normalizes a row with it gets the same bits.
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

/// Checks rows, weight and bias.
fn check_rows(x: &Spec, w: &Spec, b: &Spec) -> Result<(), String> {
    let fits = w.shape.len() == 1 && x.shape.last() == w.shape.last() && x.width() == w.width();
    if fits && w == b && x.dtype.is_float() && w.dtype == x.dtype.accumulator() {
        return Ok(());
    }
    Err("x is [N, d], w and b are [d] in the accumulator's format".into())
}

/// Arguments of kernels past the number of rows: elements of a row, one over it, eps.
fn norm_args(eps: f64, w: &Spec) -> [Arg; 3] {
    let [inv_n, eps] = root_args(eps, w);
    [w.logical_elements().into(), inv_n, eps]
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, w, b] = inputs else { return Err("takes x, w and b".into()) };
        check_rows(x, w, b)?;
        Ok(vec![x.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, w, dy) = (v.input(0), v.input(1), v.output_grad(0)?);
        v.backward(LayerNormGrad { eps: self.eps, residual: false }, &[x, w, dy], &[0, 1, 2]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let d = cx.input_spec(1).width();
        let rows = cx.input_spec(0).elements() / d;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let norm = Norm::<A>::new(self.eps, cx.input_spec(1));
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            let weights = [1, 2].map(|i| cx.input::<A>(i).slice(0, d));
            cx.pool.chunks(rows, rows_per_task(d), #[inline(always)] |start, len| {
                let mut row = vec![A::ZERO; d];
                for r in start..start + len {
                    x.load(r * d, &mut row);
                    norm.norm(&mut row, weights, y.slice(r * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, "layer_norm", self.eps, cx.input_spec(1))
    }

    fn cases(&self, precision: Precision) -> Cases {
        Cases::Own(cases::cases(precision, LayerNorm { eps: EPS }, EPS, false))
    }
}

/// Launches a forward kernel with enough blocks for all rows.
fn launch(cx: &GpuNode<'_>, entry: &'static str, eps: f64, w: &Spec) -> Result<()> {
    let rows = cx.input_spec(0).elements() / w.width();
    let teams = Teams::new(cx.input_spec(0).dtype, w.width());
    let mut args: Vec<Arg> = cx.inputs.iter().chain(cx.outputs).map(|&p| p.into()).collect();
    args.push(rows.into());
    args.extend(norm_args(eps, w));
    teams.launch(cx, ("layer_norm", entry), (rows, teams.rows_at_once()), &args)
}

impl Op for ResidualLayerNorm {
    fn name(&self) -> &'static str {
        "residual_layer_norm"
    }

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, y, w, b] = inputs else { return Err("takes x, y, w and b".into()) };
        if x != y {
            return Err("x and y have one shape and format".into());
        }
        check_rows(x, w, b)?;
        Ok(vec![x.clone(), x.clone()])
    }

    /// Both addends have the same gradient.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (r, w, dn) = (v.output(0), v.input(2), v.output_grad(1)?);
        let residual = v.upstream(0).is_some();
        let mut inputs = vec![r, w, dn];
        if residual {
            inputs.push(v.output_grad(0)?);
        }
        let outputs = v.backward(LayerNormGrad { eps: self.eps, residual }, &inputs, &[0, 2, 3])?;
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
        let norm = LayerNorm { eps: self.eps };
        (output == 1).then(|| (Arc::new(norm) as Arc<dyn Op>, vec![outputs[0], inputs[2], inputs[3]]))
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let r = b.emit1("residual", Add, &inputs[..2])?;
        let n = b.emit1("norm", LayerNorm { eps: self.eps }, &[r, inputs[2], inputs[3]])?;
        Ok(Some(vec![r, n]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let d = cx.input_spec(2).width();
        let rows = cx.input_spec(0).elements() / d;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let norm = Norm::<A>::new(self.eps, cx.input_spec(2));
            let (x, y) = (cx.input::<E>(0), cx.input::<E>(1));
            let (r_out, n_out) = (cx.output::<E>(0), cx.output::<E>(1));
            let weights = [2, 3].map(|i| cx.input::<A>(i).slice(0, d));
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
                    norm.norm(sum, weights, n_out.slice(row * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, "residual_layer_norm", self.eps, cx.input_spec(2))
    }

    fn cases(&self, precision: Precision) -> Cases {
        Cases::Own(cases::cases(precision, ResidualLayerNorm { eps: EPS }, EPS, true))
    }
}

impl Op for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer_norm_grad"
    }

    fn attributes(&self) -> String {
        format!("eps={:e}{}", self.eps, if self.residual { " residual" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if inputs.len() != 3 + usize::from(self.residual) {
            return Err("takes x, w, dy and, past a residual, dr".into());
        }
        let (x, w) = (&inputs[0], &inputs[1]);
        check_rows(x, w, w)?;
        if inputs[2..].iter().any(|dy| dy.alloc != x.alloc || dy.dtype != x.dtype) {
            return Err("gradients have the shape and format of x".into());
        }
        let rows = x.elements() / w.width();
        let partials = Spec::new([rows.div_ceil(rows_per_partial(rows)), 2 * w.width()], w.dtype);
        Ok(vec![x.clone(), w.clone(), w.clone(), partials])
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let mut inputs = vec![2, 0];
        if self.residual {
            inputs.insert(0, 3);
        }
        inputs.into_iter().map(|input| MayAlias { output: 0, input }).collect()
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 1 || output == 2
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let d = cx.input_spec(1).width();
        let rows = cx.input_spec(0).elements() / d;
        let run = rows_per_partial(rows);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let norm = Norm::<A>::new(self.eps, cx.input_spec(1));
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(2), cx.output::<E>(0));
            let bypass: Option<View<'_, E>> = self.residual.then(|| cx.input::<E>(3));
            let w = cx.input::<A>(1).slice(0, d);
            let partials = cx.output::<A>(3);
            cx.pool.chunks(rows.div_ceil(run), rows_per_task(d).div_ceil(run), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 3 * d];
                let (x_row, rest) = scratch.split_at_mut(d);
                let (dy_row, dr_row) = rest.split_at_mut(d);
                for partial in start..start + len {
                    let sums = partials.slice(partial * 2 * d, 2 * d);
                    sums.fill(A::ZERO);
                    let (dw, db) = sums.split_at_mut(d);
                    for r in partial * run..rows.min((partial + 1) * run) {
                        x.load(r * d, x_row);
                        dy.load(r * d, dy_row);
                        norm.gradient(x_row, w, dy_row, [&mut *dw, &mut *db]);
                        if let Some(dr) = bypass {
                            dr.load(r * d, dr_row);
                            x_row.iter_mut().zip(&*dr_row).for_each(|(d, dr)| *d += *dr);
                        }
                        dx.store(r * d, x_row);
                    }
                }
            });
            for output in [1, 2] {
                reduce(cx.pool, partials, (output - 1) * d, cx.output::<A>(output), cx.adds(output));
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let w = cx.input_spec(1);
        let rows = cx.input_spec(0).elements() / w.width();
        let run = rows_per_partial(rows);
        let entry = if self.residual { "layer_norm_residual_grad" } else { "layer_norm_grad" };
        let pointers = cx.inputs.iter().chain([&cx.outputs[0], &cx.outputs[3]]);
        let mut args: Vec<Arg> = pointers.map(|&p| p.into()).collect();
        args.extend([Arg::from(rows), Arg::from(run)]);
        args.extend(norm_args(self.eps, w));
        // Two sums per element of a row are held as well: with 32 elements per thread they spill.
        Teams::with_elements_per_thread(cx.input_spec(0).dtype, w.width(), 16).launch(
            cx,
            ("layer_norm", entry),
            (rows, run),
            &args,
        )?;
        launch_sum_partials(cx, 3, &[1, 2])
    }

    /// With `residual`, the gradient checks of `residual_layer_norm` prove it as well.
    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("layer_norm")
    }
}

/// `to[c] (+)= Σ partials[·, column + c]` over all rows of `[rows, 2·d]`, in their order.
fn reduce<A: Real>(pool: &Pool, partials: ViewMut<'_, A>, column: usize, to: ViewMut<'_, A>, add: bool) {
    let width = 2 * to.len();
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
    fn a_row_is_that_of_torch_in_f64() {
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
