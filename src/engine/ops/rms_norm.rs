//! Root-mean-square norm (Zhang and Sennrich, 2019): `y = x / sqrt(mean(x²) + eps) ⊙ w`.
//!
//! The backward pass needs only the input: the reciprocal root is cheaper to recompute than to read.

use super::affine::Affine;
use super::lanes::{dot, launch_sum_partials, reduce_partials, rows_per_partial, rows_per_task};
use super::row_norm::{
    ResidualNorm, RowNorm, Teams, backward, forward, launch, pointer_or_null, root_args, row_spec,
    weight_or_ones,
};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::{Arg, DevicePtr};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Emission, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};
use std::sync::Arc;

/// `y[N, d] = rms_norm(x[N, d])·w[d]`. If `w` is shorter, its length must divide the width of `x`, and each
/// run of that length is normalized by itself (the norm per head of queries and keys). Without a weight,
/// `y[N, d] = rms_norm(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f64,
    /// True if the norm has a weight.
    pub weight: bool,
}

/// `(x, w, dy) → (dx, dw, partials)`, and with `residual` `(x, w, dy, dr) → (dx + dr, dw, partials)`. A norm
/// without a weight has no `w`, `dw` and `partials`.
///
/// With `s = 1 / sqrt(mean(x²) + eps)` and `g = dy ⊙ w`: `dx = s·g - x·s³·mean(g ⊙ x)` and
/// `dw = Σ_rows dy ⊙ x·s`. Each run of rows sums `dw` into its row of the scratch `partials`; then the runs
/// are summed. If `emits` is set, the output `y` of [`RmsNorm`] follows as the last output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormGrad {
    /// See [`RmsNorm::eps`].
    pub eps: f64,
    /// See [`RmsNorm::weight`].
    pub weight: bool,
    /// True if a gradient that bypasses the norm is added to `dx`.
    pub residual: bool,
    /// True if the op also writes the output of [`RmsNorm`].
    pub emits: bool,
}

/// Computes the reciprocal root mean square of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root<A> {
    eps: A,
    count: A,
}

impl<A: Real> Root<A> {
    /// Creates the constants for rows like `row`.
    pub(super) fn new(eps: f64, row: &Spec) -> Self {
        Self { eps: A::from_f64(eps), count: A::from_f64(row.logical_elements() as f64) }
    }

    #[inline(always)]
    fn inverse_rms(&self, x: &[A]) -> A {
        A::ONE / (dot(x, x) / self.count + self.eps).sqrt()
    }

    /// Writes the norm of `x`; `s` is the reciprocal root mean square of `x`.
    #[inline(always)]
    fn scale<E: Elem<Acc = A>>(&self, x: &[A], s: A, w: &[A], y: &mut [E]) {
        for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
            *y = E::down(*x * s * *w);
        }
    }

    /// Replaces `x` by its gradient and adds this row's part to `dw`; `s` is the reciprocal root mean square
    /// of `x`. `dy` becomes `dy ⊙ w`.
    #[inline(always)]
    fn gradient(&self, x: &mut [A], s: A, w: &[A], dy: &mut [A], dw: &mut [A]) {
        for (((dy, x), w), dw) in dy.iter_mut().zip(&*x).zip(w).zip(dw) {
            *dw = dy.fma(*x * s, *dw);
            *dy *= *w;
        }
        let pull = dot(dy, x) / self.count * (s * s * s);
        for (x, g) in x.iter_mut().zip(dy) {
            *x = g.fma(s, -(*x * pull));
        }
    }
}

/// Checks that `w` can be the weight of a norm of `x`.
pub(super) fn check_weight(x: &Spec, w: &Spec) -> Result<(), String> {
    let whole = x.shape.last() == w.shape.last() && x.width() == w.width();
    let runs = x.width().is_multiple_of(w.width().max(1)) && x.shape.last() == Some(&x.width());
    let fits = w.shape.len() == 1 && (whole || (runs && w.shape == w.alloc));
    if fits && x.dtype.is_float() && w.dtype == x.dtype.accumulator() {
        return Ok(());
    }
    Err("x must be float [N, d], and w in the accumulator format, its length a divisor of d".into())
}

impl RowNorm for RmsNorm {
    const FORWARD: (&'static str, &'static str) = ("rms_norm", "rms_norm");
    const RESIDUAL: (&'static str, &'static str) = ("residual_norm", "residual_norm");

    type Gradient = RmsNormGrad;

    type Constants<A: Real> = (Root<A>, Vec<A>);

    fn affine(self) -> Affine {
        if self.weight { Affine::Weight } else { Affine::None }
    }

    fn check(self, x: &Spec, vectors: &[Spec]) -> Result<(), String> {
        match (vectors, self.weight) {
            ([w], true) => check_weight(x, w),
            ([], false) if !x.shape.is_empty() && x.dtype.is_float() => Ok(()),
            (_, true) => Err("takes x and w".into()),
            (_, false) => Err("takes float rows x and no w".into()),
        }
    }

    fn gradient(self, residual: bool) -> RmsNormGrad {
        RmsNormGrad { eps: self.eps, weight: self.weight, residual, emits: false }
    }

    fn constants<A: Real>(self, cx: &CpuNode<'_>, row: &Spec, first: usize) -> (Root<A>, Vec<A>) {
        (Root::new(self.eps, row), weight_or_ones(cx, self.weight.then_some(first), row.width()))
    }

    #[inline(always)]
    fn normalize<E: Elem>((root, w): &(Root<E::Acc>, Vec<E::Acc>), x: &mut [E::Acc], y: &mut [E]) {
        root.scale(x, root.inverse_rms(x), w, y);
    }

    fn vector_args(self, inputs: &[DevicePtr], first: usize) -> Vec<Arg> {
        vec![pointer_or_null(inputs, self.weight.then_some(first))]
    }

    fn number_args(self, row: &Spec) -> Vec<Arg> {
        root_args(self.eps, row).to_vec()
    }

    fn residual_cases(precision: Precision) -> Vec<Case> {
        const EPS: f64 = 1e-6;
        let case = |name: &str, (n, d): (usize, usize), pad: usize, weight: bool| {
            let spec = Spec::padded([n, d], [n, pad], precision.act_dtype);
            let mut inputs = vec![(spec.clone(), Fill::Normal(0.0, 1.0)), (spec, Fill::Normal(0.2, 0.7))];
            let w = (Spec::padded([d], [pad], precision.master), Fill::Normal(1.0, 0.3));
            inputs.extend(weight.then_some(w));
            let reference = move |inputs: &[Array]| {
                let ones = vec![1.0; d];
                let (mut r, w) = (inputs[0].clone(), inputs.get(2).map_or(&ones, |w| &w.data));
                r.data.iter_mut().zip(&inputs[1].data).for_each(|(x, y)| *x += y);
                let mut n = r.clone();
                for row in n.data.chunks_mut(w.len()) {
                    let mean = row.iter().map(|x| x * x).sum::<f64>() / w.len() as f64;
                    row.iter_mut().zip(w).for_each(|(x, w)| *x = *x / (mean + EPS).sqrt() * w);
                }
                vec![r, n]
            };
            let weights: &[usize] = if weight { &[2] } else { &[] };
            Case::new(format!("{name}n{n} d{d}"), ResidualNorm(Self { eps: EPS, weight }), inputs, reference)
                .weights(weights)
                .upstream(&[0, 1])
                .depth(n.max(d))
        };
        let mut cases: Vec<Case> = [(1, 128), (17, 96), (255, 64), (256, 32), (1000, 24)]
            .into_iter()
            .map(|s| case("", s, s.1, true))
            .collect();
        cases.push(case("padded ", (9, 30), 64, true));
        cases.push(case("residual unread ", (33, 40), 40, true).upstream(&[1]));
        cases.push(case("no weight ", (17, 96), 96, false));
        cases.push(case("no weight, padded ", (9, 30), 64, false));
        cases.push(case("no weight, residual unread ", (33, 40), 40, false).upstream(&[1]));
        cases
    }
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn attributes(&self) -> String {
        format!("eps={:e}{}", self.eps, if self.weight { "" } else { " no weight" })
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
        let mut cases: Vec<Case> = [(1, 128), (17, 96), (255, 64), (256, 48), (1000, 40), (33, 5)]
            .into_iter()
            .map(|(n, d)| case(precision, format!("n{n} d{d}"), (n, d, d), Some((d, d))))
            .collect();
        for head_dim in [32, 64, 96, 128] {
            cases.push(case(
                precision,
                format!("3 heads of {head_dim}"),
                (17, 3 * head_dim, 3 * head_dim),
                Some((head_dim, head_dim)),
            ));
        }
        cases.push(case(precision, "padded".into(), (9, 30, 64), Some((30, 64))));
        for (n, d, pad) in [(17, 96, 96), (1000, 40, 40), (33, 5, 5), (9, 1536, 1536), (9, 30, 64)] {
            cases.push(case(precision, format!("no weight n{n} d{d}"), (n, d, pad), None));
        }
        Cases::Own(cases)
    }
}

/// Returns a test case with `n` rows of width `d`, stored with width `pad`. `weight` gives the length and the
/// padded length of the weight, if there is one.
fn case(
    precision: Precision,
    name: String,
    (n, d, pad): (usize, usize, usize),
    weight: Option<(usize, usize)>,
) -> Case {
    const EPS: f64 = 1e-6;
    let mut inputs = vec![(Spec::padded([n, d], [n, pad], precision.act_dtype), Fill::Normal(0.3, 1.5))];
    inputs.extend(
        weight.map(|(len, pad)| (Spec::padded([len], [pad], precision.master), Fill::Normal(1.0, 0.3))),
    );
    let weights: &[usize] = if weight.is_some() { &[1] } else { &[] };
    let reference = move |inputs: &[Array]| {
        let ones = vec![1.0; d];
        let (mut y, w) = (inputs[0].clone(), inputs.get(1).map_or(&ones, |w| &w.data));
        for row in y.data.chunks_mut(w.len()) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / w.len() as f64;
            row.iter_mut().zip(w).for_each(|(x, w)| *x *= w / (mean + EPS).sqrt());
        }
        vec![y]
    };
    let op = RmsNorm { eps: EPS, weight: weight.is_some() };
    Case::new(name, op, inputs, reference).weights(weights).depth(n.max(d))
}

impl RmsNormGrad {
    /// Returns the norm whose gradient this is.
    fn norm(self) -> RmsNorm {
        RmsNorm { eps: self.eps, weight: self.weight }
    }

    /// Returns the index of the weight among the inputs.
    fn weight_input(self) -> Option<usize> {
        self.weight.then_some(1)
    }

    /// Returns the index of `dy` among the inputs; `dr` follows it.
    fn upstream_input(self) -> usize {
        1 + usize::from(self.weight)
    }

    /// Returns the index of `y` among the outputs: after dx, and after dw and partials if there are any.
    fn emitted_output(self) -> usize {
        1 + 2 * usize::from(self.weight)
    }
}

impl Op for RmsNormGrad {
    fn name(&self) -> &'static str {
        "rms_norm_grad"
    }

    fn attributes(&self) -> String {
        let residual = if self.residual { " residual" } else { "" };
        format!("{}{residual}{}", self.norm().attributes(), if self.emits { " emits=y" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let dy = self.upstream_input();
        if inputs.len() != dy + 1 + usize::from(self.residual) {
            return Err("takes x, w if the norm has one, dy, and dr with a residual".into());
        }
        let x = &inputs[0];
        self.norm().check(x, &inputs[1..dy])?;
        if inputs[dy..].iter().any(|dy| dy.alloc != x.alloc || dy.dtype != x.dtype) {
            return Err("gradients must have the shape and format of x".into());
        }
        let mut outputs = vec![x.clone()];
        for w in &inputs[1..dy] {
            let rows = x.elements() / w.width();
            let tasks = rows.div_ceil(rows_per_partial(rows));
            outputs.extend([w.clone(), Spec::new([tasks, w.width()], w.dtype)]);
        }
        outputs.extend(self.emits.then(|| x.clone()));
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let dy = self.upstream_input();
        let mut inputs = vec![dy, 0];
        if self.residual {
            inputs.insert(0, dy + 1);
        }
        let outputs = [0, self.emitted_output()];
        let pairs = outputs.into_iter().flat_map(|output| inputs.iter().map(move |&input| (output, input)));
        pairs.map(|(output, input)| MayAlias { output, input }).collect()
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true, ..*self });
        Some(Emission {
            of: Arc::new(self.norm()),
            inputs: (0..self.upstream_input()).collect(),
            gradient: by,
        })
    }

    fn accumulates(&self, output: usize) -> bool {
        self.weight && output == 1
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (weight, upstream) = (self.weight_input(), self.upstream_input());
        let row = row_spec(cx.input_spec(0), weight.map(|i| cx.input_spec(i)));
        let d = row.width();
        let rows = cx.input_spec(0).elements() / d;
        let run = rows_per_partial(rows);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let root = Root::<A>::new(self.eps, &row);
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(upstream), cx.output::<E>(0));
            let bypass: Option<View<'_, E>> = self.residual.then(|| cx.input::<E>(upstream + 1));
            let w = weight_or_ones::<A>(cx, weight, d);
            let partials: Option<ViewMut<'_, A>> = self.weight.then(|| cx.output::<A>(2));
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(self.emitted_output()));
            cx.pool.chunks(rows.div_ceil(run), rows_per_task(d).div_ceil(run), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 4 * d];
                let (x_row, rest) = scratch.split_at_mut(d);
                let (dy_row, rest) = rest.split_at_mut(d);
                let (dr_row, dw) = rest.split_at_mut(d);
                for partial in start..start + len {
                    dw.fill(A::ZERO);
                    for r in partial * run..rows.min((partial + 1) * run) {
                        x.load(r * d, x_row);
                        dy.load(r * d, dy_row);
                        if let Some(dr) = bypass {
                            dr.load(r * d, dr_row);
                        }
                        let s = root.inverse_rms(x_row);
                        if let Some(y) = y {
                            root.scale(x_row, s, &w, y.slice(r * d, d));
                        }
                        root.gradient(x_row, s, &w, dy_row, dw);
                        if bypass.is_some() {
                            x_row.iter_mut().zip(&*dr_row).for_each(|(d, dr)| *d += *dr);
                        }
                        dx.store(r * d, x_row);
                    }
                    if let Some(partials) = partials {
                        partials.put(partial * d, dw, false);
                    }
                }
            });
            if let Some(partials) = partials {
                reduce_partials(cx.pool, partials, cx.output::<A>(1), cx.adds(1));
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (weight, upstream) = (self.weight_input(), self.upstream_input());
        let row = row_spec(cx.input_spec(0), weight.map(|i| cx.input_spec(i)));
        let rows = cx.input_spec(0).elements() / row.width();
        let run = rows_per_partial(rows);
        let entry = match (self.residual, self.emits) {
            (false, false) => "rms_norm_grad",
            (true, false) => "rms_norm_residual_grad",
            (false, true) => "rms_norm_grad_emitting",
            (true, true) => "rms_norm_residual_grad_emitting",
        };
        let mut args = vec![cx.input(0).into(), pointer_or_null(cx.inputs, weight)];
        args.extend(cx.inputs[upstream..].iter().map(|&p| Arg::from(p)));
        args.extend([cx.output(0).into(), pointer_or_null(cx.outputs, self.weight.then_some(2))]);
        args.extend(cx.outputs[self.emitted_output()..].iter().map(|&p| Arg::from(p)));
        args.extend([Arg::from(rows), Arg::from(run)]);
        args.extend(root_args(self.eps, &row));
        let teams = Teams::new(cx.input_spec(0).dtype, row.width()).with_affine(self.weight, false);
        teams.launch(cx, ("rms_norm", entry), (rows, run), &args)?;
        if self.weight { launch_sum_partials(cx, 2, &[1]) } else { Ok(()) }
    }

    /// The gradient checks of [`ResidualNorm`] cover `residual` as well.
    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<RmsNorm>()
    }
}
