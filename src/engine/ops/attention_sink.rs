//! The sinks of attention heads, as in gpt-oss (OpenAI, 2025, arXiv 2508.10925): a sink is a trained score
//! without a value. It takes a share of the probabilities of every query, so a head may attend to nothing.
//!
//! Attention with sinks gives its results as if the sink were a key whose value is zero. So the gradients of
//! queries, keys and values are those of attention without sinks from these results
//! ([`FlashAttentionGrad`](super::attention::FlashAttentionGrad)), and only the gradient of the sinks is an
//! op of its own.

use super::attention::Heads;
use super::lanes::{
    dot, launch_sum_partials, reduce_partials, rows_per_partial, rows_per_task, vector_width,
};
use crate::device::gpu::{DevicePtr, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// Threads per block.
const THREADS: u32 = 128;

/// Threads per warp.
const WARP: usize = 32;

/// `(o [N, H·dim], lse [N, H], do [N, H·dim], sinks [H]) → (d_sinks [H], partials [runs, H])`:
/// `d_sink = −Σ_rows e^(sink − lse)·Σ o·do` per head, where `o` and `lse` are those with sinks. Each run of
/// rows is summed into its row of the scratch `partials`; then the runs are summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSinkGrad {
    /// Layout of the heads.
    pub heads: Heads,
}

/// Returns a kernel of this file, with the number of heads that a block handles at a time.
fn kernel(entry: &'static str, heads: Heads, dtype: DType) -> (Kernel, usize) {
    let vec = vector_width(heads.dim, dtype);
    let lanes = (heads.dim / vec).next_power_of_two().min(WARP);
    let kernel = Kernel::new("attention_sink", entry)
        .with("T", dtype)
        .with("HEADS", heads.query)
        .with("HEAD_DIM", heads.dim)
        .with("VEC", vec)
        .with("LANES", lanes)
        .with("THREADS", THREADS);
    (kernel, THREADS as usize / lanes)
}

/// Queues the change of `o` and `lse`, the outputs of attention without sinks, to those with them.
pub(super) fn add_sinks(cx: &GpuNode<'_>, heads: Heads, sinks: DevicePtr) -> Result<()> {
    let spec = cx.output_spec(0);
    if spec.rows() == 0 {
        return Ok(());
    }
    let (kernel, teams) = kernel("attention_sink", heads, spec.dtype);
    let blocks = (spec.rows() * heads.query).div_ceil(teams);
    let args = [sinks.into(), cx.output(0).into(), cx.output(1).into(), spec.rows().into()];
    cx.queue.launch(kernel, Grid::new(blocks, THREADS), &args)
}

impl Op for AttentionSinkGrad {
    fn name(&self) -> &'static str {
        "attention_sink_grad"
    }

    fn attributes(&self) -> String {
        self.heads.to_string()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [o, lse, d_o, sinks] = inputs else { return Err("takes o, lse, do and sinks".into()) };
        let Heads { query, dim, .. } = self.heads;
        let acc = o.dtype.accumulator();
        let fits = o.shape.len() == 2 && o.width() == query * dim && d_o == o;
        if !fits || *lse != Spec::new([o.shape[0], query], acc) || *sinks != Spec::new([query], acc) {
            return Err(
                "o and do must be rows of heads, lse a number per row and head, sinks a number per head"
                    .into(),
            );
        }
        let runs = o.rows().div_ceil(rows_per_partial(o.rows()));
        Ok(vec![sinks.clone(), Spec::new([runs, query], acc)])
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, Heads { query, dim, .. }) = (cx.input_spec(0).rows(), self.heads);
        let run = rows_per_partial(rows);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let (o, lse, d_o) = (cx.input::<E>(0), cx.input::<A>(1), cx.input::<E>(2));
            let (sinks, partials) = (cx.input::<A>(3).slice(0, query), cx.output::<A>(1));
            let tasks = rows.div_ceil(run);
            cx.pool.chunks(tasks, rows_per_task(query * dim).div_ceil(run), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 2 * query * dim];
                let (x, d) = scratch.split_at_mut(query * dim);
                for task in start..start + len {
                    let mut sums = vec![A::ZERO; query];
                    for row in task * run..rows.min((task + 1) * run) {
                        o.load(row * query * dim, x);
                        d_o.load(row * query * dim, d);
                        let heads = x.chunks_exact(dim).zip(d.chunks_exact(dim)).zip(sinks).zip(&mut sums);
                        for (h, (((x, d), sink), sum)) in heads.enumerate() {
                            *sum -= (*sink - lse.get(row * query + h)).exp() * dot(x, d);
                        }
                    }
                    partials.put(task * query, &sums, false);
                }
            });
            reduce_partials(cx.pool, (partials, query), 0, cx.output::<A>(0), cx.adds(0));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let rows = cx.input_spec(0).rows();
        if rows == 0 {
            return Ok(());
        }
        let run = rows_per_partial(rows);
        let (kernel, _) = kernel("attention_sink_grad", self.heads, cx.input_spec(0).dtype);
        let [o, lse, d_o, sinks] = [0, 1, 2, 3].map(|i| cx.input(i).into());
        let args = [o, lse, d_o, sinks, cx.output(1).into(), rows.into(), run.into()];
        cx.queue.launch(kernel, Grid::new(rows.div_ceil(run), THREADS), &args)?;
        launch_sum_partials(cx, 1, &[0])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(rows, (query, kv, dim), mode): (usize, (usize, usize, usize), Mode)| {
            let op = Self { heads: Heads { query, kv, dim } };
            let heads = (Spec::new([rows, query * dim], precision.act_dtype), Fill::Normal(0.1, 0.5));
            let inputs = vec![
                heads.clone(),
                (Spec::new([rows, query], precision.master), Fill::Normal(1.0, 0.5)),
                heads,
                (Spec::new([query], precision.master), Fill::Normal(0.5, 1.0)),
            ];
            let name = format!("n{rows} {query} heads of {dim} {mode:?}");
            Case::new(name, op, inputs, reference)
                .outputs(vec![(mode, Fill::Normal(0.0, 0.1))])
                .without_gradient()
                .depth(rows.max(dim))
        };
        Cases::Own(
            [
                (1, (2, 1, 32), Mode::Write),
                (17, (2, 1, 64), Mode::Add),
                (255, (6, 6, 128), Mode::Write),
                (33, (12, 4, 96), Mode::Write),
                (1000, (3, 1, 6), Mode::Add),
                (40, (2, 2, 192), Mode::Write),
            ]
            .map(case)
            .into(),
        )
    }
}

/// Computes the gradient by plain loops. The fifth input is what it is added to, if there is one.
fn reference(inputs: &[Array]) -> Vec<Array> {
    let [o, lse, d_o, sinks] = [0, 1, 2, 3].map(|i| &inputs[i]);
    let (heads, dim) = (sinks.data.len(), o.width() / sinks.data.len());
    let mut sums = inputs.get(4).cloned().unwrap_or_else(|| Array::zeros(&[heads]));
    for (at, lse) in lse.data.iter().enumerate() {
        let product: f64 = (at * dim..(at + 1) * dim).map(|i| o.data[i] * d_o.data[i]).sum();
        sums.data[at % heads] -= (sinks.data[at % heads] - lse).exp() * product;
    }
    vec![sums, Array::zeros(&[0])]
}
