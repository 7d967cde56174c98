//! Root-mean-square norm (Zhang and Sennrich, 2019): `y = x / sqrt(mean(x²) + eps) ⊙ w`.
//!
//! Nothing is saved for the backward but the input: the reciprocal root is cheaper to recompute than to read.

use super::lanes::{
    dot, launch_sum_partials, reduce_partials, rows_per_partial, rows_per_task, vector_width,
};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Emission, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};
use std::sync::Arc;

/// `y[N, d] = rms_norm(x[N, d])·w[d]`. A shorter `w`, whose length divides the width of `x`, is applied to
/// every run of its length (the norm per head of queries and keys).
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f64,
}

/// `(x, w, dy) → (dx, dw, partials)`, and with `residual` `(x, w, dy, dr) → (dx + dr, dw, partials)`.
///
/// With `s = 1 / sqrt(mean(x²) + eps)` and `g = dy ⊙ w`: `dx = s·g - x·s³·mean(g ⊙ x)` and `dw = Σ_rows dy ⊙
/// x·s`. `dw` is summed over runs of rows, each into its row of the scratch `partials`, then over the runs.
/// If it emits, `y`, the output of [`RmsNorm`], follows as a last output.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormGrad {
    /// As [`RmsNorm::eps`].
    pub eps: f64,
    /// True if a gradient that bypasses the norm is added to `dx`.
    pub residual: bool,
    /// True if it also writes the output of [`RmsNorm`].
    pub emits: bool,
}

/// Computes the reciprocal root mean square of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root<A> {
    eps: A,
    count: A,
}

impl<A: Real> Root<A> {
    /// For rows that `w` is the weight of.
    pub(super) fn new(eps: f64, w: &Spec) -> Self {
        Self { eps: A::from_f64(eps), count: A::from_f64(w.logical_elements() as f64) }
    }

    #[inline(always)]
    fn inverse_rms(&self, x: &[A]) -> A {
        A::ONE / (dot(x, x) / self.count + self.eps).sqrt()
    }

    /// Writes the norm of `x`. Other ops that normalize a stored `x` with it get the same bits.
    #[inline(always)]
    pub(super) fn norm<E: Elem<Acc = A>>(&self, x: &[A], w: &[A], y: &mut [E]) {
        self.scale(x, self.inverse_rms(x), w, y);
    }

    /// Writes the norm of `x`, given its reciprocal root mean square `s`.
    #[inline(always)]
    fn scale<E: Elem<Acc = A>>(&self, x: &[A], s: A, w: &[A], y: &mut [E]) {
        for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
            *y = E::down(*x * s * *w);
        }
    }

    /// Replaces `x` by its gradient, given its reciprocal root mean square `s`, and adds this row's part to
    /// `dw`. `dy` becomes `dy ⊙ w`.
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

/// The assignment of rows to threads of a GPU: each row is held in the registers of a team
/// (kernels/norm.cuh).
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
}

impl Teams {
    /// Returns the assignment for rows of `width` elements. A thread holds at most 64 bytes of a row. (Rows
    /// longer than 512 threads hold spill to local memory: slow, but correct.)
    pub(super) fn new(dtype: DType, width: usize) -> Self {
        Self::with_elements_per_thread(dtype, width, 64 / dtype.size())
    }

    /// Returns the assignment in which a thread holds at most `elements` of a row.
    pub(super) fn with_elements_per_thread(dtype: DType, width: usize, elements: usize) -> Self {
        let vec = vector_width(width, dtype);
        let packs = (elements / vec).max(1);
        let team = (width / vec).div_ceil(packs).next_power_of_two().clamp(4, 512);
        Self { dtype, width, vec, team, threads: team.max(256) }
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
            .with("THREADS", self.threads);
        cx.queue.launch(kernel, Grid::new(rows.div_ceil(run), self.threads as u32), args)
    }

    /// Returns the number of rows that a block handles at a time.
    pub(super) fn rows_at_once(&self) -> usize {
        self.threads / self.team
    }
}

/// Returns the kernel arguments in place of [`Root`]: one over the number of elements of the mean, and eps.
pub(super) fn root_args(eps: f64, w: &Spec) -> [Arg; 2] {
    [Arg::F32((1.0 / w.logical_elements() as f64) as f32), Arg::F32(eps as f32)]
}

/// Returns true if `w` can be the weight of a norm of `x`.
pub(super) fn check_weight(x: &Spec, w: &Spec) -> Result<(), String> {
    let whole = x.shape.last() == w.shape.last() && x.width() == w.width();
    let runs = x.width().is_multiple_of(w.width().max(1)) && x.shape.last() == Some(&x.width());
    let fits = w.shape.len() == 1 && (whole || (runs && w.shape == w.alloc));
    if fits && x.dtype.is_float() && w.dtype == x.dtype.accumulator() {
        return Ok(());
    }
    Err("x is [N, d] and w [d], or a divisor of d long, in the accumulator's format".into())
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, w] = inputs else { return Err("takes x and w".into()) };
        check_weight(x, w)?;
        Ok(vec![x.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, w, dy) = (v.input(0), v.input(1), v.output_grad(0)?);
        let gradient = RmsNormGrad { eps: self.eps, residual: false, emits: false };
        v.backward(gradient, &[x, w, dy], &[0, 1]).map(drop)
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
            let root = Root::new(self.eps, cx.input_spec(1));
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            let w = cx.input::<<E as Elem>::Acc>(1).slice(0, d);
            cx.pool.chunks(rows, rows_per_task(d), #[inline(always)] |start, len| {
                let mut row = vec![<E as Elem>::Acc::ZERO; d];
                for r in start..start + len {
                    x.load(r * d, &mut row);
                    root.norm(&row, w, y.slice(r * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let w = cx.input_spec(1);
        let rows = cx.input_spec(0).elements() / w.width();
        let teams = Teams::new(cx.input_spec(0).dtype, w.width());
        let [inv_n, eps] = root_args(self.eps, w);
        let args = [cx.input(0).into(), cx.input(1).into(), cx.output(0).into(), Arg::from(rows), inv_n, eps];
        teams.launch(cx, ("rms_norm", "rms_norm"), (rows, teams.rows_at_once()), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let mut cases: Vec<Case> = [(1, 128), (17, 96), (255, 64), (256, 48), (1000, 40), (33, 5)]
            .into_iter()
            .map(|(n, d)| case(precision, format!("n{n} d{d}"), (n, d, d), (d, d)))
            .collect();
        for head_dim in [32, 64, 96, 128] {
            cases.push(case(
                precision,
                format!("3 heads of {head_dim}"),
                (17, 3 * head_dim, 3 * head_dim),
                (head_dim, head_dim),
            ));
        }
        cases.push(case(precision, "padded".into(), (9, 30, 64), (30, 64)));
        Cases::Own(cases)
    }
}

/// Returns a case of `n` rows of width `d` in memory of `pad`, with a weight of its own width and padding.
fn case(
    precision: Precision,
    name: String,
    (n, d, pad): (usize, usize, usize),
    (len, w_pad): (usize, usize),
) -> Case {
    const EPS: f64 = 1e-6;
    let inputs = vec![
        (Spec::padded([n, d], [n, pad], precision.act_dtype), Fill::Normal(0.3, 1.5)),
        (Spec::padded([len], [w_pad], precision.master), Fill::Normal(1.0, 0.3)),
    ];
    let reference = |inputs: &[Array]| {
        let (mut y, w) = (inputs[0].clone(), &inputs[1].data);
        for row in y.data.chunks_mut(w.len()) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / w.len() as f64;
            row.iter_mut().zip(w).for_each(|(x, w)| *x *= w / (mean + EPS).sqrt());
        }
        vec![y]
    };
    Case::new(name, RmsNorm { eps: EPS }, inputs, reference).weights(&[1]).depth(n.max(d))
}

impl Op for RmsNormGrad {
    fn name(&self) -> &'static str {
        "rms_norm_grad"
    }

    fn attributes(&self) -> String {
        let residual = if self.residual { " residual" } else { "" };
        format!("eps={:e}{residual}{}", self.eps, if self.emits { " emits=y" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if inputs.len() != 3 + usize::from(self.residual) {
            return Err("takes x, w, dy and, past a residual, dr".into());
        }
        let (x, w) = (&inputs[0], &inputs[1]);
        check_weight(x, w)?;
        if inputs[2..].iter().any(|dy| dy.alloc != x.alloc || dy.dtype != x.dtype) {
            return Err("gradients have the shape and format of x".into());
        }
        let rows = x.elements() / w.width();
        let tasks = rows.div_ceil(rows_per_partial(rows));
        let mut outputs = vec![x.clone(), w.clone(), Spec::new([tasks, w.width()], w.dtype)];
        outputs.extend(self.emits.then(|| x.clone()));
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let mut inputs = vec![2, 0];
        if self.residual {
            inputs.insert(0, 3);
        }
        let pairs = [0, 3].into_iter().flat_map(|output| inputs.iter().map(move |&input| (output, input)));
        pairs.map(|(output, input)| MayAlias { output, input }).collect()
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true, ..*self });
        Some(Emission { of: Arc::new(RmsNorm { eps: self.eps }), inputs: vec![0, 1], by })
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 1
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let d = cx.input_spec(1).width();
        let rows = cx.input_spec(0).elements() / d;
        let run = rows_per_partial(rows);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let root = Root::<A>::new(self.eps, cx.input_spec(1));
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(2), cx.output::<E>(0));
            let bypass: Option<View<'_, E>> = self.residual.then(|| cx.input::<E>(3));
            let w = cx.input::<A>(1).slice(0, d);
            let partials = cx.output::<A>(2);
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(3));
            cx.pool.chunks(rows.div_ceil(run), rows_per_task(d).div_ceil(run), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 3 * d];
                let (x_row, rest) = scratch.split_at_mut(d);
                let (dy_row, dr_row) = rest.split_at_mut(d);
                for partial in start..start + len {
                    let dw = partials.slice(partial * d, d);
                    dw.fill(A::ZERO);
                    for r in partial * run..rows.min((partial + 1) * run) {
                        x.load(r * d, x_row);
                        dy.load(r * d, dy_row);
                        if let Some(dr) = bypass {
                            dr.load(r * d, dr_row);
                        }
                        let s = root.inverse_rms(x_row);
                        if let Some(y) = y {
                            root.scale(x_row, s, w, y.slice(r * d, d));
                        }
                        root.gradient(x_row, s, w, dy_row, dw);
                        if bypass.is_some() {
                            x_row.iter_mut().zip(&*dr_row).for_each(|(d, dr)| *d += *dr);
                        }
                        dx.store(r * d, x_row);
                    }
                }
            });
            reduce_partials(cx.pool, partials, cx.output::<A>(1), cx.adds(1));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let w = cx.input_spec(1);
        let rows = cx.input_spec(0).elements() / w.width();
        let run = rows_per_partial(rows);
        let entry = match (self.residual, self.emits) {
            (false, false) => "rms_norm_grad",
            (true, false) => "rms_norm_residual_grad",
            (false, true) => "rms_norm_grad_emitting",
            (true, true) => "rms_norm_residual_grad_emitting",
        };
        let outputs = cx.outputs.iter().enumerate().filter(|(output, _)| *output != 1).map(|(_, p)| p);
        let mut args: Vec<Arg> = cx.inputs.iter().chain(outputs).map(|&p| p.into()).collect();
        args.extend([Arg::from(rows), Arg::from(run)]);
        args.extend(root_args(self.eps, w));
        Teams::new(cx.input_spec(0).dtype, w.width()).launch(cx, ("rms_norm", entry), (rows, run), &args)?;
        launch_sum_partials(cx, 2, &[1])
    }

    /// With `residual`, the gradient checks of `residual_norm` prove it as well.
    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("rms_norm")
    }
}
