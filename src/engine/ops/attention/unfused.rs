//! Attention in separate steps: scores, cap, softmax, dropout, values. It keeps T × T tensors. It is the
//! reference for the flash form, and the baseline without it.

use super::reference::AttentionCase;
use super::rows::{Scratch, cut, scale};
use super::{Attention, Heads, Mask};
use crate::device::cpu::matmul::{Matrix, Packed, operand, packed_len};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec, TensorId, Vjp,
};
use crate::ops::dropout::Dropout;
use crate::ops::scale::Scale;
use crate::ops::soft_cap::SoftCap;
use crate::ops::softmax::Softmax;

/// The inputs of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// The packed rows `[N, (H+2·KV)·dim]`.
    pub packed: TensorId,
    /// The input of the mask, unless it is causal.
    pub spans: Option<TensorId>,
    /// `sequences [B]` and `step [1]`, with dropout.
    pub counters: Option<[TensorId; 2]>,
}

impl Inputs {
    /// Splits the inputs of [`FlashAttention`](super::FlashAttention); `infer` has checked their number.
    pub(super) fn from_op_inputs(attention: &Attention, inputs: &[TensorId]) -> Self {
        let spans = (attention.mask != Mask::Causal).then(|| inputs[1]);
        let next = 1 + usize::from(spans.is_some());
        let counters = attention.dropout.map(|_| [inputs[next], inputs[next + 1]]);
        Self { packed: inputs[0], spans, counters }
    }

    /// Returns the inputs in the order of [`FlashAttention`](super::FlashAttention).
    pub fn list(&self) -> Vec<TensorId> {
        [self.packed].into_iter().chain(self.spans).chain(self.counters.into_iter().flatten()).collect()
    }
}

/// Records attention with smaller ops, for `engine.attention = "unfused"`. Returns `o [N, H·dim]`.
///
/// # Errors
/// If the inputs do not fit the ops.
pub fn attention_unfused(b: &mut Builder, attention: Attention, inputs: Inputs) -> Result<TensorId> {
    Ok(record(b, attention, inputs)?.0)
}

/// Records attention with smaller ops and returns `(o, lse)`, the outputs of the flash form.
pub(super) fn record(b: &mut Builder, attention: Attention, inputs: Inputs) -> Result<(TensorId, TensorId)> {
    let mut s = b.emit1("scores", AttentionScores::for_attention(&attention), &[inputs.packed])?;
    let factor = attention.score_scale / attention.heads.score_scale();
    if factor != 1.0 {
        s = b.emit1("scaled", Scale { factor }, &[s])?;
    }
    if let Some(cap) = attention.score_cap {
        s = b.emit1("capped", SoftCap { cap }, &[s])?;
    }
    let read: Vec<TensorId> = [s].into_iter().chain(inputs.spans).collect();
    let softmax = b.emit("probabilities", Softmax { mask: attention.mask }, &read)?;
    let (mut p, lse) = (softmax[0], softmax[1]);
    if let (Some(site), Some([sequences, step])) = (attention.dropout, inputs.counters) {
        p = b.emit1("dropped", Dropout(site), &[p, sequences, step])?;
    }
    let o = b.emit1("o", AttentionValues(attention.heads), &[p, inputs.packed])?;
    Ok((o, lse))
}

/// `packed [N, (H+2·KV)·dim] → s [B, H, T, T]`: `s = q·kᵀ/√dim` for all pairs, masked or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionScores {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Rows in a sequence.
    pub seq_len: usize,
}

/// `(packed, ds [B, H, T, T]) → d_packed`; the columns of the values get zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionScoresGrad(pub Heads);

/// `(p [B, H, T, T], packed) → o [N, H·dim]`: `o = p·v`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionValues(pub Heads);

/// `(p, packed, do [N, H·dim]) → (dp [B, H, T, T], d_packed)`; the columns of queries and keys in `d_packed`
/// get zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionValuesGrad(pub Heads);

/// Returns the floating-point operations of `count` products of one T × T matrix per head with `dim` columns.
fn flops(heads: Heads, squares: &Spec, count: usize) -> f64 {
    2.0 * (count * heads.dim) as f64 * squares.elements() as f64
}

/// Checks `[B, H, T, T]` against packed rows and returns T.
fn check_squares(heads: Heads, squares: &Spec, packed: &Spec) -> Result<usize, String> {
    heads.check(packed)?;
    let &[b, h, t, keys] = squares.shape.as_slice() else {
        return Err("probabilities must be [B, H, T, T]".into());
    };
    if h != heads.query || t != keys || b * t != packed.shape[0] || squares.dtype != packed.dtype {
        return Err("probabilities must be [B, H, T, T] in the format of the packed rows [B·T, …]".into());
    }
    Ok(t)
}

/// Computes one product of a task, `c = a·b` or `c += a·b`, in the accumulator type. `memory` has [`working`]
/// elements.
#[inline(always)]
fn product<E: Elem>(
    arch: pulp::Arch,
    (m, n, k): (usize, usize, usize),
    a: Matrix<View<'_, E>>,
    b: Matrix<View<'_, E>>,
    sum: &mut [E::Acc],
    memory: &mut [E::Acc],
    add: bool,
) {
    let (wide, packed) = memory.split_at_mut(m * k);
    let packed = Packed::new(arch, b, (k, n), packed);
    let sum = Matrix::rows(ViewMut::from_slice(sum), n);
    packed.multiply(m, operand(a, (m, k), wide), 0..k, 0..n, sum, add);
}

/// Returns the number of elements of memory for a [`product`] of these sizes.
fn working((m, n, k): (usize, usize, usize)) -> usize {
    m * k + packed_len(k, n)
}

/// Rounds the rows of `sum`, each `columns` wide, into a matrix.
fn store<E: Elem>(to: Matrix<ViewMut<'_, E>>, columns: usize, sum: &[E::Acc]) {
    for (r, row) in sum.chunks_exact(columns).enumerate() {
        to.view.store(to.at(r, 0).start, row);
    }
}

/// Zeroes `columns` columns of `rows` rows.
fn clear<E: Elem>(to: Matrix<ViewMut<'_, E>>, rows: usize, columns: usize) {
    for r in 0..rows {
        to.view.slice(to.at(r, 0).start, columns).fill(E::default());
    }
}

/// Launches a kernel over sequences and `y` heads of `squares [B, H, T, T]`. Each block computes one tile of
/// an output `[T, columns]`. The arguments are all inputs and outputs, sizes, then `further`.
fn launch(
    cx: &GpuNode<'_>,
    entry: &'static str,
    (heads, squares): (Heads, &Spec),
    (columns, y): (usize, usize),
    further: &[Arg],
) -> Result<()> {
    /// Rows and columns of a tile, and threads along each side of a tile.
    const SIDE: usize = 64;
    const SPREAD: usize = 16;
    let (batch, t) = (squares.shape[0], squares.width());
    let mut args: Vec<Arg> = cx.inputs.iter().chain(cx.outputs).map(|&p| p.into()).collect();
    args.extend([heads.query, heads.kv, heads.dim, t].map(Arg::from));
    args.extend(further);
    let tiles = t.div_ceil(SIDE) * columns.div_ceil(SIDE);
    let grid =
        Grid { blocks: [tiles, y, batch].map(|n| n as u32), threads: (SPREAD * SPREAD) as u32, shared: 0 };
    if grid.blocks.contains(&0) {
        return Ok(());
    }
    let kernel = Kernel::new("attention_unfused", entry)
        .with("T", cx.input_spec(0).dtype)
        .with("SIDE", SIDE)
        .with("SPREAD", SPREAD);
    cx.queue.launch(kernel, grid, &args)
}

impl AttentionScores {
    fn for_attention(attention: &Attention) -> Self {
        Self { heads: attention.heads, seq_len: attention.seq_len }
    }
}

impl Op for AttentionScores {
    fn name(&self) -> &'static str {
        "attention_scores"
    }

    fn attributes(&self) -> String {
        format!("{} seq_len={}", self.heads, self.seq_len)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed] = inputs else { return Err("takes packed rows".into()) };
        self.heads.check(packed)?;
        let t = self.seq_len;
        if t == 0 || !packed.shape[0].is_multiple_of(t) {
            return Err(format!("rows must be whole sequences of {t}"));
        }
        Ok(vec![Spec::new([packed.shape[0] / t, self.heads.query, t, t], packed.dtype)])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.input(0), v.output_grad(0)?];
        v.backward(AttentionScoresGrad(self.heads), &inputs, &[0]).map(drop)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(flops(self.heads, &outputs[0], 1))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let arch = cx.pool.arch();
        let (heads, t, dim) = (self.heads, self.seq_len, self.heads.dim);
        let tasks = cx.output_spec(0).elements() / (t * t);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let rows = Matrix::rows(cx.input::<E>(0), heads.width());
            let s = Matrix::rows(cx.output::<E>(0), t);
            cx.pool.run(tasks, #[inline(always)] |task| {
                let (b, h) = (task / heads.query, task % heads.query);
                let q = rows.at(b * t, heads.query_at(h));
                let k = rows.at(b * t, heads.key_at(h / heads.group()));
                let mut scratch = Scratch::take(t * t + working((t, t, dim)));
                let mut rest = scratch.all();
                let sum = cut(&mut rest, t * t);
                product(arch, (t, t, dim), q, k.t(), sum, rest, false);
                scale(sum, <E as Elem>::Acc::from_f64(heads.score_scale()));
                store(s.at(task * t, 0), t, sum);
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (heads, scores) = (self.heads, cx.output_spec(0));
        let scale = [Arg::F32(heads.score_scale() as f32)];
        launch(cx, "attention_scores", (heads, scores), (scores.width(), heads.query), &scale)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |problem: AttentionCase| {
            let op = AttentionScores::for_attention(&problem.attention);
            Case::new(problem.name(), op, vec![problem.packed(precision)], move |inputs| {
                vec![reference_scores(&problem, &inputs[0])]
            })
            .depth(problem.attention.seq_len.max(problem.attention.heads.dim))
        };
        Cases::Own(problems().map(case).collect())
    }
}

/// Returns cases small enough for T × T tensors.
fn problems() -> impl Iterator<Item = AttentionCase> {
    let shapes = [(2, 1, (1, 1, 32)), (2, 17, (2, 1, 64)), (3, 33, (8, 1, 32)), (1, 65, (2, 2, 96))];
    shapes.into_iter().map(|(batch, t, heads)| AttentionCase::causal(batch, t, heads))
}

fn reference_scores(problem: &AttentionCase, packed: &Array) -> Array {
    let Attention { heads, seq_len: t_max, .. } = problem.attention;
    let mut s = Array::zeros(&[problem.batch, heads.query, t_max, t_max]);
    for (i, s) in s.data.iter_mut().enumerate() {
        let (key, t) = (i % t_max, i / t_max % t_max);
        let (h, b) = (i / t_max / t_max % heads.query, i / t_max / t_max / heads.query);
        let q = (b * t_max + t) * packed.width() + h * heads.dim;
        let k = (b * t_max + key) * packed.width() + (heads.query + h * heads.kv / heads.query) * heads.dim;
        let dot: f64 = (0..heads.dim).map(|d| packed.data[q + d] * packed.data[k + d]).sum();
        *s = dot / (heads.dim as f64).sqrt();
    }
    s
}

impl Op for AttentionScoresGrad {
    fn name(&self) -> &'static str {
        "attention_scores_grad"
    }

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed, ds] = inputs else { return Err("takes packed rows and ds".into()) };
        check_squares(self.0, ds, packed)?;
        Ok(vec![packed.clone()])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(flops(self.0, &inputs[1], 2))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let arch = cx.pool.arch();
        let (heads, dim) = (self.0, self.0.dim);
        let t = cx.input_spec(1).width();
        let batch = cx.input_spec(0).shape[0] / t;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let rows = Matrix::rows(cx.input::<E>(0), heads.width());
            let ds = Matrix::rows(cx.input::<E>(1), t);
            let d_rows = Matrix::rows(cx.output::<E>(0), heads.width());
            let score_scale = <E as Elem>::Acc::from_f64(heads.score_scale());
            cx.pool.run(batch * heads.kv, #[inline(always)] |task| {
                let (b, g) = (task / heads.kv, task % heads.kv);
                let k = rows.at(b * t, heads.key_at(g));
                let mut scratch = Scratch::take(2 * t * dim + working((t, dim, t)));
                let mut rest = scratch.all();
                let (dq, dk) = (cut(&mut rest, t * dim), cut(&mut rest, t * dim));
                for i in 0..heads.group() {
                    let h = g * heads.group() + i;
                    let q = rows.at(b * t, heads.query_at(h));
                    let ds = ds.at((b * heads.query + h) * t, 0);
                    product(arch, (t, dim, t), ds, k, dq, rest, false);
                    scale(dq, score_scale);
                    store(d_rows.at(b * t, heads.query_at(h)), dim, dq);
                    product(arch, (t, dim, t), ds.t(), q, dk, rest, i > 0);
                }
                scale(dk, score_scale);
                store(d_rows.at(b * t, heads.key_at(g)), dim, dk);
                clear(d_rows.at(b * t, heads.value_at(g)), t, dim);
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let heads = self.0;
        let scale = [Arg::F32(heads.score_scale() as f32)];
        let tiles = (heads.dim, heads.query + 2 * heads.kv);
        launch(cx, "attention_scores_grad", (heads, cx.input_spec(1)), tiles, &scale)
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<AttentionScores>()
    }
}

impl Op for AttentionValues {
    fn name(&self) -> &'static str {
        "attention_values"
    }

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [p, packed] = inputs else { return Err("takes p and packed rows".into()) };
        check_squares(self.0, p, packed)?;
        Ok(vec![Spec::new([packed.shape[0], self.0.query * self.0.dim], packed.dtype)])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.input(0), v.input(1), v.output_grad(0)?];
        v.backward(AttentionValuesGrad(self.0), &inputs, &[0, 1]).map(drop)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(flops(self.0, &inputs[0], 1))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let arch = cx.pool.arch();
        let (heads, dim) = (self.0, self.0.dim);
        let t = cx.input_spec(0).width();
        let batch = cx.input_spec(0).shape[0];
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let p = Matrix::rows(cx.input::<E>(0), t);
            let rows = Matrix::rows(cx.input::<E>(1), heads.width());
            let o = Matrix::rows(cx.output::<E>(0), heads.query * dim);
            cx.pool.run(batch * heads.query, #[inline(always)] |task| {
                let (b, h) = (task / heads.query, task % heads.query);
                let v = rows.at(b * t, heads.value_at(h / heads.group()));
                let mut scratch = Scratch::take(t * dim + working((t, dim, t)));
                let mut rest = scratch.all();
                let sum = cut(&mut rest, t * dim);
                product(arch, (t, dim, t), p.at(task * t, 0), v, sum, rest, false);
                store(o.at(b * t, h * dim), dim, sum);
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let heads = self.0;
        launch(cx, "attention_values", (heads, cx.input_spec(0)), (heads.dim, heads.query), &[])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |problem: AttentionCase| {
            let Attention { heads, seq_len, .. } = problem.attention;
            let p = Spec::new([problem.batch, heads.query, seq_len, seq_len], precision.act_dtype);
            let inputs = vec![(p, Fill::Uniform(0.0, 1.0)), problem.packed(precision)];
            Case::new(problem.name(), AttentionValues(heads), inputs, move |inputs| {
                vec![reference_values(&problem, &inputs[0], &inputs[1])]
            })
            .depth(seq_len.max(heads.dim))
        };
        Cases::Own(problems().map(case).collect())
    }
}

fn reference_values(problem: &AttentionCase, p: &Array, packed: &Array) -> Array {
    let Attention { heads, seq_len: t_max, .. } = problem.attention;
    let mut o = Array::zeros(&[problem.rows(), heads.query * heads.dim]);
    for (i, o) in o.data.iter_mut().enumerate() {
        let (d, h, row) = (i % heads.dim, i / heads.dim % heads.query, i / heads.dim / heads.query);
        let (b, t) = (row / t_max, row % t_max);
        let column = (heads.query + heads.kv + h * heads.kv / heads.query) * heads.dim + d;
        let p_at = ((b * heads.query + h) * t_max + t) * t_max;
        *o = (0..t_max)
            .map(|key| p.data[p_at + key] * packed.data[(b * t_max + key) * packed.width() + column])
            .sum();
    }
    o
}

impl Op for AttentionValuesGrad {
    fn name(&self) -> &'static str {
        "attention_values_grad"
    }

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [p, packed, d_o] = inputs else { return Err("takes p, packed rows and do".into()) };
        check_squares(self.0, p, packed)?;
        if d_o.shape != [packed.shape[0], self.0.query * self.0.dim] || d_o.dtype == DType::U32 {
            return Err("do must be [N, H·dim] in a float format".into());
        }
        Ok(vec![p.clone(), packed.clone()])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(flops(self.0, &inputs[0], 2))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let arch = cx.pool.arch();
        let (heads, dim) = (self.0, self.0.dim);
        let t = cx.input_spec(0).width();
        let batch = cx.input_spec(0).shape[0];
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let p = Matrix::rows(cx.input::<E>(0), t);
            let rows = Matrix::rows(cx.input::<E>(1), heads.width());
            let d_o = Matrix::rows(cx.input::<E>(2), heads.query * dim);
            let dp = Matrix::rows(cx.output::<E>(0), t);
            let d_rows = Matrix::rows(cx.output::<E>(1), heads.width());
            cx.pool.run(batch * heads.kv, #[inline(always)] |task| {
                let (b, g) = (task / heads.kv, task % heads.kv);
                let v = rows.at(b * t, heads.value_at(g));
                let largest = working((t, t, dim)).max(working((t, dim, t)));
                let mut scratch = Scratch::take(t * t + t * dim + largest);
                let mut rest = scratch.all();
                let (sum, dv) = (cut(&mut rest, t * t), cut(&mut rest, t * dim));
                for i in 0..heads.group() {
                    let h = g * heads.group() + i;
                    let square = (b * heads.query + h) * t;
                    let d_o = d_o.at(b * t, h * dim);
                    product(arch, (t, t, dim), d_o, v.t(), sum, rest, false);
                    store(dp.at(square, 0), t, sum);
                    product(arch, (t, dim, t), p.at(square, 0).t(), d_o, dv, rest, i > 0);
                    clear(d_rows.at(b * t, heads.query_at(h)), t, dim);
                }
                clear(d_rows.at(b * t, heads.key_at(g)), t, dim);
                store(d_rows.at(b * t, heads.value_at(g)), dim, dv);
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (heads, squares) = (self.0, cx.input_spec(0));
        let tiles = (squares.width().max(heads.dim), heads.query + 2 * heads.kv);
        launch(cx, "attention_values_grad", (heads, squares), tiles, &[])
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<AttentionValues>()
    }
}
