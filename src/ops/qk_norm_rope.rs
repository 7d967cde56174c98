//! Norm of every query and key head, then rotary position embedding, in one pass over the packed rows.

use super::attention::Heads;
use super::attention::rows::scale;
use super::lanes::{dot, launch_sum_partials, rows_per_partial};
use super::rope::{Lanes, ROWS, Rope, Rotation, check, reference as reference_rope, rotate, rotate_back};
use crate::device::gpu::{Arg, DevicePtr};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp,
};

/// `(qkv [N, (H+2·KV)·dim], wq [dim], wk [dim], positions [N] u32) → packed [N, (H+2·KV)·dim]`.
///
/// Each query head x becomes `x / √(mean(x²) + eps) · wq`, each key head the same with wk, then both are
/// rotated by the angles of their position; values are copied. The weights are in the accumulator format.
#[derive(Clone, Copy, Debug)]
pub struct QkNormRope {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Added to the mean square.
    pub eps: f64,
    /// The base of the frequencies.
    pub theta: f64,
}

/// `(qkv, wq, wk, positions, d_packed) → (d_qkv, dwq, dwk, partials [tasks, 2·dim])`; reciprocal norms are
/// recomputed.
#[derive(Clone, Copy, Debug)]
pub struct QkNormRopeGrad(pub QkNormRope);

/// `(qkv, wq, wk) → packed`: the norm of [`QkNormRope`] alone.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Added to the mean square.
    pub eps: f64,
}

/// `(qkv, wq, wk, d_packed) → (d_qkv, dwq, dwk, partials [tasks, 2·dim])`.
#[derive(Clone, Copy, Debug)]
pub struct QkNormGrad(pub QkNorm);

/// Checks packed rows and the two weights.
fn check_norm(heads: Heads, qkv: &Spec, wq: &Spec, wk: &Spec) -> Result<(), String> {
    heads.check(qkv)?;
    if !heads.dim.is_multiple_of(2) {
        return Err("heads have an even width".into());
    }
    if *wq != Spec::new([heads.dim], qkv.dtype.accumulator()) || wk != wq {
        return Err(format!("wq and wk are {}[{}]", qkv.dtype.accumulator(), heads.dim));
    }
    Ok(())
}

/// Returns the outputs of a backward.
fn gradients(heads: Heads, qkv: &Spec, wq: &Spec, wk: &Spec) -> Vec<Spec> {
    let rows = qkv.shape[0];
    let partials = Spec::new([rows.div_ceil(rows_per_partial(rows)), 2 * heads.dim], wq.dtype);
    vec![qkv.clone(), wq.clone(), wk.clone(), partials]
}

/// The constants that both passes of an op need, in a number type.
struct Pass<'a, E: Elem> {
    heads: Heads,
    eps: E::Acc,
    /// wq and wk.
    weights: [&'a [E::Acc]; 2],
    rotation: Option<(&'a Rotation<E::Acc>, &'a [u32])>,
}

impl<'a, E: Elem> Pass<'a, E> {
    fn new(
        cx: &CpuNode<'a>,
        heads: Heads,
        eps: f64,
        rotation: Option<(&'a Rotation<E::Acc>, &'a [u32])>,
    ) -> Self {
        let weight = |i: usize| cx.input::<E::Acc>(i).slice(0, heads.dim);
        Self { heads, eps: E::Acc::from_f64(eps), weights: [weight(1), weight(2)], rotation }
    }

    /// Returns the weight, 0 (queries) or 1 (keys), of the `i`-th head of a row.
    #[inline(always)]
    fn weight_of(&self, i: usize) -> usize {
        usize::from(i >= self.heads.query)
    }

    /// 1 / √(mean(x²) + eps).
    #[inline(always)]
    fn reciprocal_norm(&self, x: &[E::Acc]) -> E::Acc {
        let mean = dot(x, x) / E::Acc::from_f64(x.len() as f64);
        E::Acc::ONE / (mean + self.eps).sqrt()
    }

    fn forward(&self, cx: &CpuNode<'_>) {
        let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
        let (dim, width) = (self.heads.dim, self.heads.width());
        cx.pool.chunks(
            x.len() / width,
            ROWS,
            #[inline(always)]
            |start, count| {
                let mut row = vec![E::Acc::ZERO; width];
                for r in start..start + count {
                    x.prefetch((r + 1) * width, width);
                    x.load(r * width, &mut row);
                    let turned = &mut row[..self.heads.value_at(0)];
                    for (i, head) in turned.chunks_exact_mut(dim).enumerate() {
                        let norm = self.reciprocal_norm(head);
                        let weight = self.weights[self.weight_of(i)];
                        head.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * norm * *w);
                        if let Some((rotation, positions)) = self.rotation {
                            rotate(head, rotation.at(positions[r]));
                        }
                    }
                    y.store(r * width, &row);
                }
            },
        );
    }

    /// With x̂ = x/‖x‖ and g the gradient rotated back: dw = Σ g·x̂, dx = (g·w − x̂·mean(g·w·x̂)) / ‖x‖,
    /// where ‖x‖ is the root mean square.
    fn backward(&self, cx: &CpuNode<'_>, upstream: usize) {
        let (x, dy) = (cx.input::<E>(0), cx.input::<E>(upstream));
        let (dx, partials) = (cx.output::<E>(0), cx.output::<E::Acc>(3));
        let (dim, width, turned) = (self.heads.dim, self.heads.width(), self.heads.value_at(0));
        let rows = x.len() / width;
        let run = rows_per_partial(rows);
        cx.pool.chunks(
            rows,
            run,
            #[inline(always)]
            |start, count| {
                let (mut normal, mut row) = (vec![E::Acc::ZERO; turned], vec![E::Acc::ZERO; width]);
                let mut dw = vec![E::Acc::ZERO; 2 * dim];
                let inv_n = E::Acc::ONE / E::Acc::from_f64(dim as f64);
                for r in start..start + count {
                    x.prefetch((r + 1) * width, turned);
                    dy.prefetch((r + 1) * width, width);
                    x.load(r * width, &mut normal);
                    dy.load(r * width, &mut row);
                    let heads = normal.chunks_exact_mut(dim).zip(row.chunks_exact_mut(dim));
                    for (i, (x, g)) in heads.enumerate() {
                        if let Some((rotation, positions)) = self.rotation {
                            rotate_back(g, rotation.at(positions[r]));
                        }
                        let norm = self.reciprocal_norm(x);
                        scale(x, norm);
                        let which = self.weight_of(i);
                        let dw = &mut dw[which * dim..(which + 1) * dim];
                        dw.iter_mut().zip(&*g).zip(&*x).for_each(|((dw, g), x)| *dw += *g * *x);
                        g.iter_mut().zip(self.weights[which]).for_each(|(g, w)| *g *= *w);
                        let mean = dot(g, x) * inv_n;
                        g.iter_mut().zip(&*x).for_each(|(g, x)| *g = norm * (*g - *x * mean));
                    }
                    dx.store(r * width, &row);
                }
                partials.put(start / run * 2 * dim, &dw, false);
            },
        );
        self.reduce(cx);
    }

    /// Adds up the partial weight gradients of all tasks, in order.
    fn reduce(&self, cx: &CpuNode<'_>) {
        let (dim, partials) = (self.heads.dim, cx.output::<E::Acc>(3));
        let mut dw = vec![E::Acc::ZERO; 2 * dim];
        for part in partials.slice(0, partials.len()).chunks_exact(2 * dim) {
            dw.iter_mut().zip(part).for_each(|(sum, part)| *sum += *part);
        }
        for (i, dw) in dw.chunks_exact(dim).enumerate() {
            cx.output::<E::Acc>(1 + i).put(0, dw, cx.adds(1 + i));
        }
    }
}

/// Queues the forward or the backward over heads; with a rotation, `theta` and `positions` are set.
fn launch(
    cx: &GpuNode<'_>,
    (heads, eps, theta): (Heads, f64, Option<f64>),
    upstream: Option<usize>,
) -> Result<()> {
    let (lanes, rows) = (Lanes::new(heads, cx.output_spec(0).dtype), cx.output_spec(0).rows());
    let positions: DevicePtr = if theta.is_some() { cx.input(3) } else { 0 };
    let mut pointers = vec![cx.input(0), cx.input(1), cx.input(2), positions];
    let (entry, run) = match upstream {
        None => ("qk_norm_rope", lanes.rows_of_block()),
        Some(_) => ("qk_norm_rope_grad", rows_per_partial(rows)),
    };
    // If the output took over the memory of the input, values need not be copied.
    let values = cx.input(upstream.unwrap_or(0));
    if upstream.is_some() {
        pointers.extend([values, cx.output(0), cx.output(3)]);
    } else {
        pointers.push(cx.output(0));
    }
    let mut args: Vec<Arg> = pointers.into_iter().map(Arg::Ptr).collect();
    let copies = u32::from(cx.output(0) != values);
    args.extend([rows.into(), run.into(), Arg::F32(eps as f32), Arg::U32(copies)]);
    Lanes::launch(cx, lanes.kernel("qk_norm_rope", entry, theta), (rows, run), &args)?;
    if upstream.is_some() {
        launch_sum_partials(cx, 3, &[1, 2])?;
    }
    Ok(())
}

impl Op for QkNormRope {
    fn name(&self) -> &'static str {
        "qk_norm_rope"
    }

    fn attributes(&self) -> String {
        format!("{} eps={:e} theta={}", self.heads, self.eps, self.theta)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [qkv, wq, wk, positions] = inputs else { return Err("takes qkv, wq, wk and positions".into()) };
        check_norm(self.heads, qkv, wq, wk)?;
        check(self.heads, qkv, positions)?;
        Ok(vec![qkv.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.input(0), v.input(1), v.input(2), v.input(3), v.output_grad(0)?];
        v.backward(QkNormRopeGrad(*self), &inputs, &[0, 1, 2])?;
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let norm = QkNorm { heads: self.heads, eps: self.eps };
        let normal = b.emit1("qk_norm", norm, &inputs[..3])?;
        let rope = Rope { heads: self.heads, theta: self.theta, inverse: false };
        Ok(Some(vec![b.emit1("packed", rope, &[normal, inputs[3]])?]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let positions = cx.input_u32(3);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let rotation = Rotation::covering(positions, self.heads.dim, self.theta);
            Pass::<E>::new(cx, self.heads, self.eps, Some((&rotation, positions))).forward(cx);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, (self.heads, self.eps, Some(self.theta)), None)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |(n, heads): (usize, Heads)| {
            let op = QkNormRope { heads, eps: 1e-6, theta: 10_000.0 };
            let mut inputs = norm_inputs(n, heads, precision);
            inputs.push((Spec::new([n], DType::U32), Fill::Below(1000)));
            Case::new(format!("n{n} hd{} gqa{}", heads.dim, heads.group()), op, inputs, move |inputs| {
                let normal = reference_norm(heads, 1e-6, inputs);
                vec![reference_rope(heads, 10_000.0, &normal, &inputs[3])]
            })
            .weights(&[1, 2])
            .depth(n.max(heads.dim) * heads.query)
        };
        Cases::Own(shapes().map(case).collect())
    }
}

/// Returns the rows and heads of cases.
fn shapes() -> impl Iterator<Item = (usize, Heads)> {
    [
        (1, (1, 1, 32)),
        (17, (4, 2, 64)),
        (33, (8, 1, 96)),
        (255, (2, 1, 128)),
        (1000, (1, 1, 32)),
        (5, (2, 1, 6)),
    ]
    .into_iter()
    .map(|(n, (query, kv, dim))| (n, Heads { query, kv, dim }))
}

/// qkv, wq, wk of cases.
fn norm_inputs(n: usize, heads: Heads, precision: Precision) -> Vec<(Spec, Fill)> {
    vec![
        (Spec::new([n, heads.width()], precision.act_dtype), Fill::Normal(0.0, 2.0)),
        (Spec::new([heads.dim], precision.master), Fill::Normal(1.0, 0.2)),
        (Spec::new([heads.dim], precision.master), Fill::Normal(1.0, 0.2)),
    ]
}

/// Computes the norm by its definition.
fn reference_norm(heads: Heads, eps: f64, inputs: &[Array]) -> Array {
    let (x, width) = (&inputs[0], inputs[0].width());
    let mut y = x.clone();
    for row in 0..x.shape[0] {
        for head in 0..heads.query + heads.kv {
            let start = row * width + head * heads.dim;
            let weight = if head < heads.query { &inputs[1] } else { &inputs[2] };
            let squares: f64 = (0..heads.dim).map(|d| x.data[start + d].powi(2)).sum();
            for d in 0..heads.dim {
                y.data[start + d] =
                    x.data[start + d] / (squares / heads.dim as f64 + eps).sqrt() * weight.data[d];
            }
        }
    }
    y
}

impl Op for QkNormRopeGrad {
    fn name(&self) -> &'static str {
        "qk_norm_rope_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [qkv, wq, wk, positions, dy] = inputs else {
            return Err("takes qkv, wq, wk, positions and d_packed".into());
        };
        check_norm(self.0.heads, qkv, wq, wk)?;
        check(self.0.heads, dy, positions)?;
        Ok(gradients(self.0.heads, dy, wq, wk))
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 4 }, MayAlias { output: 0, input: 0 }]
    }

    fn accumulates(&self, output: usize) -> bool {
        matches!(output, 1 | 2)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let positions = cx.input_u32(3);
        let QkNormRope { heads, eps, theta } = self.0;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let rotation = Rotation::covering(positions, heads.dim, theta);
            Pass::<E>::new(cx, heads, eps, Some((&rotation, positions))).backward(cx, 4);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, (self.0.heads, self.0.eps, Some(self.0.theta)), Some(4))
    }

    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("qk_norm_rope")
    }
}

impl Op for QkNorm {
    fn name(&self) -> &'static str {
        "qk_norm"
    }

    fn attributes(&self) -> String {
        format!("{} eps={:e}", self.heads, self.eps)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [qkv, wq, wk] = inputs else { return Err("takes qkv, wq and wk".into()) };
        check_norm(self.heads, qkv, wq, wk)?;
        Ok(vec![qkv.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.input(0), v.input(1), v.input(2), v.output_grad(0)?];
        v.backward(QkNormGrad(*self), &inputs, &[0, 1, 2])?;
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => {
            Pass::<E>::new(cx, self.heads, self.eps, None).forward(cx);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, (self.heads, self.eps, None), None)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |(n, heads): (usize, Heads)| {
            let inputs = norm_inputs(n, heads, precision);
            let name = format!("n{n} hd{} gqa{}", heads.dim, heads.group());
            Case::new(name, QkNorm { heads, eps: 1e-6 }, inputs, move |inputs| {
                vec![reference_norm(heads, 1e-6, inputs)]
            })
            .weights(&[1, 2])
            .depth(n.max(heads.dim) * heads.query)
        };
        Cases::Own(shapes().take(3).map(case).collect())
    }
}

impl Op for QkNormGrad {
    fn name(&self) -> &'static str {
        "qk_norm_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [qkv, wq, wk, dy] = inputs else { return Err("takes qkv, wq, wk and d_packed".into()) };
        check_norm(self.0.heads, qkv, wq, wk)?;
        check_norm(self.0.heads, dy, wq, wk)?;
        Ok(gradients(self.0.heads, dy, wq, wk))
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 3 }, MayAlias { output: 0, input: 0 }]
    }

    fn accumulates(&self, output: usize) -> bool {
        matches!(output, 1 | 2)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => {
            Pass::<E>::new(cx, self.0.heads, self.0.eps, None).backward(cx, 3);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, (self.0.heads, self.0.eps, None), Some(3))
    }

    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("qk_norm")
    }
}
