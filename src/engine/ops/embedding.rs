//! Token embedding, and its gradient without atomics.

use super::lanes::{rows_per_task, vector_width};
use super::sort_tokens::{RankInterleaved, SortTokens, SortedTokens};
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS, Queue};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec, Vjp};
use std::ops::Range;

/// `x[N, d] = W[tokens[N], :]` with `W[V, d]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding;

/// `(order[N], sorted[N], ends[V], dy[N, d], W[V, d]) → (dW[V, d], edges[2·pieces, d])`, with the order of
/// [`SortTokens`]. Only the shape of `W` is used.
///
/// Each row of `dW` is the sum of its own positions in the order of the global batch. So the bits are the
/// same for any number of threads and, if the rows come from several ranks, for any number of ranks.
///
/// A GPU must spread the work of a frequent token over many blocks. It sums pieces of [`PIECE`] sorted
/// positions; if a token crosses pieces, its sums (`edges`) are added in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingGrad;

impl EmbeddingGrad {
    /// The op's name.
    pub const NAME: &'static str = "embedding_grad";
}

/// Number of tasks into which the vocabulary is split.
pub(super) const TASKS: usize = 64;

/// Sorted positions that a GPU sums together.
pub(super) const PIECE: usize = 32;
/// Rows that a block of a GPU clears.
const CLEARED: usize = 16;
/// The most threads per block.
const THREADS: usize = 256;

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [tokens, w] = inputs else { return Err("takes tokens and W".into()) };
        if tokens.dtype != DType::U32 || tokens.shape.len() != 1 || w.shape.len() != 2 || !w.dtype.is_float()
        {
            return Err("tokens must be u32 [N] and W [V, d]".into());
        }
        Ok(vec![Spec::padded([tokens.shape[0], w.shape[1]], [tokens.alloc[0], w.alloc[1]], w.dtype)])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (tokens, w, dy) = (v.input(0), v.input(1), v.output_grad(0)?);
        let sort = SortTokens { layout: RankInterleaved::ONE_RANK, vocabulary: v.spec(w).alloc[0] };
        let sorted = v.shared("sorted", sort, &[tokens])?;
        v.backward(EmbeddingGrad, &[&sorted[..3], &[dy, w]].concat(), &[1]).map(drop)
    }

    /// Counts the rows that are looked up, not the table.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let rows = &outputs[0];
        Cost::streaming(&[inputs[0].clone(), rows.clone()], outputs)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let tokens = cx.input_u32(0);
        let d = cx.input_spec(1).width();
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (w, x) = (cx.input::<E>(1), cx.output::<E>(0));
            cx.pool.chunks(tokens.len(), rows_per_task(d), |start, len| {
                for (r, &token) in (start..).zip(&tokens[start..start + len]) {
                    x.slice(r * d, d).copy_from_slice(w.slice(token as usize * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const ROWS_PER_BLOCK: usize = THREADS / 32;
        let x = cx.output_spec(0);
        let (n, d) = (x.rows(), x.width());
        let args = [cx.input(0).into(), cx.input(1).into(), cx.output(0).into(), n.into(), d.into()];
        let grid = Grid::new(n.div_ceil(ROWS_PER_BLOCK), THREADS as u32);
        cx.queue.launch(kernel("embedding", x, false), grid, &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |n: usize, (v, v_pad): (usize, usize), (d, d_pad): (usize, usize), tokens: Fill| {
            let inputs = vec![
                (Spec::new([n], DType::U32), tokens),
                (Spec::padded([v, d], [v_pad, d_pad], precision.act_dtype), Fill::Normal(0.0, 1.0)),
            ];
            let reference = move |inputs: &[Array]| {
                let mut x = Array::zeros(&[n, d]);
                for (r, token) in inputs[0].data.iter().enumerate() {
                    let from = *token as usize * d;
                    x.data[r * d..][..d].copy_from_slice(&inputs[1].data[from..][..d]);
                }
                vec![x]
            };
            Case::new(format!("n{n} v{v} d{d}"), Embedding, inputs, reference).weights(&[1]).depth(n)
        };
        Cases::Own(vec![
            case(1, (3, 3), (32, 32), Fill::Below(3)),
            case(17, (300, 300), (24, 24), Fill::Below(300)),
            case(255, (11, 64), (30, 64), Fill::Below(11)),
            case(256, (50, 64), (16, 16), Fill::Below(50)),
            case(1000, (7, 7), (8, 8), Fill::Below(7)),
            case(100, (2, 2), (40, 40), Fill::Values(vec![1.0])),
        ])
    }
}

/// Returns a kernel for rows of `x`. With `owned` it covers only the part of the table that a rank owns.
fn kernel(entry: &'static str, x: &Spec, owned: bool) -> Kernel {
    Kernel::new("embedding", entry)
        .with("T", x.dtype)
        .with("VEC", vector_width(x.width(), x.dtype))
        .with("THREADS", THREADS)
        .with("OWNED", usize::from(owned))
        .with("PIECE", PIECE)
        .with("CLEARED", CLEARED)
}

/// The settings with which the kernels of an embedding gradient are launched.
pub(super) struct GradKernels<'a> {
    pub queue: &'a dyn Queue,
    /// Spec of the rows of all ranks.
    pub dy: &'a Spec,
    /// Spec of the gradient.
    pub dw: &'a Spec,
    /// Ranks that have the rows, each as many.
    pub ranks: usize,
    /// The elements that the rank owns, in at most two ranges, which are clear where no token occurs; `None`
    /// means all, which are not clear.
    pub owned: Option<[Range<usize>; 2]>,
    /// True if sums are added to the existing gradient.
    pub adds: bool,
}

impl GradKernels<'_> {
    fn kernel(&self, entry: &'static str) -> Kernel {
        kernel(entry, self.dy, self.owned.is_some())
    }

    fn borders(&self) -> Vec<Arg> {
        let owned = self.owned.clone().unwrap_or_default();
        owned.iter().flat_map(|range| [range.start, range.end]).map(|at| Arg::U64(at as u64)).collect()
    }

    /// Sums the rows at the sorted positions. Reads each rank's rows at that rank's address; if all rows are
    /// in one place, all addresses are the same. `ends` is only read if no rank owns a part.
    pub fn sum(
        &self,
        from: SortedTokens,
        ends: DevicePtr,
        rows: [DevicePtr; MAX_RANKS],
        dw: DevicePtr,
        edges: DevicePtr,
    ) -> Result<()> {
        let (n, d) = (self.dy.rows(), self.dy.width());
        let (vocabulary, pieces) = (self.dw.rows(), n.div_ceil(PIECE));
        let cleared = if self.adds || self.owned.is_some() { 0 } else { vocabulary.div_ceil(CLEARED) };
        let vectors = d / vector_width(d, self.dy.dtype);
        let threads = vectors.next_multiple_of(32).min(THREADS) as u32;
        let [order, tokens, count, ends, dw, edges] =
            [from.order, from.tokens, from.count, ends, dw, edges].map(Arg::Ptr);
        let sizes = [n, vocabulary, d, usize::from(self.adds), n / self.ranks].map(Arg::Size);
        let args = [&[order, tokens, count, ends, rows.into(), dw, edges], &sizes[..], &self.borders()];
        let grid = Grid::new(pieces + cleared, threads);
        self.queue.launch(self.kernel("embedding_sum"), grid, &args.concat())?;
        let sizes = [n, d, usize::from(self.adds)].map(Arg::Size);
        let args = [&[tokens, count, edges, dw], &sizes[..], &self.borders()];
        self.queue.launch(self.kernel("embedding_join"), Grid::new(pieces, threads), &args.concat())
    }
}

impl Op for EmbeddingGrad {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [order, sorted, ends, dy, w] = inputs else {
            return Err("takes order, sorted tokens, their ends, dy and W".into());
        };
        if w.shape.len() != 2
            || !w.dtype.is_float()
            || dy.shape.len() != 2
            || dy.dtype != w.dtype
            || dy.alloc[1] != w.alloc[1]
        {
            return Err("dy must be [N, d] in the format of W".into());
        }
        let (n, is_index) =
            (dy.alloc[0], |x: &Spec, len: usize| x.dtype == DType::U32 && x.alloc[..] == [len]);
        if !is_index(order, n) || !is_index(sorted, n) || !is_index(ends, w.alloc[0]) {
            return Err("order and sorted tokens must be u32 [N], and ends u32 [V]".into());
        }
        let master = w.dtype.accumulator();
        Ok(vec![w.with_dtype(master), Spec::new([2 * n.div_ceil(PIECE), w.alloc[1]], master)])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(&inputs[..4], &outputs[..1])
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (v, d) = (cx.output_spec(0).rows(), cx.output_spec(0).width());
        let (order, ends, add) = (cx.input_u32(0), cx.input_u32(2), cx.adds(0));
        dispatch_float!(cx.input_spec(3).dtype, E => {
            type A = <E as Elem>::Acc;
            let (dy, dw) = (cx.input::<E>(3), cx.output::<A>(0));
            cx.pool.chunks(v, v.div_ceil(TASKS), #[inline(always)] |start, len| {
                let mut sum = vec![A::ZERO; d];
                for row in start..start + len {
                    let first = if row == 0 { 0 } else { ends[row - 1] };
                    let positions = &order[first as usize..ends[row] as usize];
                    if add && positions.is_empty() {
                        continue;
                    }
                    sum.fill(A::ZERO);
                    for &position in positions {
                        let from = dy.slice(position as usize * d, d);
                        sum.iter_mut().zip(from).for_each(|(sum, dy)| *sum += dy.up());
                    }
                    dw.put(row * d, &sum, add);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let kernels = GradKernels {
            queue: cx.queue,
            dy: cx.input_spec(3),
            dw: cx.output_spec(0),
            ranks: 1,
            owned: None,
            adds: cx.adds(0),
        };
        // All positions are sorted, so no kernel reads their count.
        let sorted = SortedTokens { order: cx.input(0), tokens: cx.input(1), count: 0 };
        kernels.sum(sorted, cx.input(2), [cx.input(3); MAX_RANKS], cx.output(0), cx.output(1))
    }

    /// The gradient cases of the embedding cover rows in the order of the batch. Here the values' sum depends
    /// on the order: 1 is lost when it is added to 2¹⁰⁰, and kept when 2¹⁰⁰ was canceled before. There are
    /// also gaps between tokens, at both ends of the table too, and gradients to add to.
    fn cases(precision: Precision) -> Cases {
        let case =
            |name: &str, order: &[usize], tokens: &[usize], [v, d]: [usize; 2], rows: Fill, mode: Mode| {
                let n = order.len();
                let index = |data: Vec<usize>| {
                    let values = data.iter().map(|&x| x as f64).collect();
                    (Spec::new([data.len()], DType::U32), Fill::Values(values))
                };
                let ends = (0..v).map(|end| tokens.iter().filter(|&&token| token <= end).count());
                let inputs = vec![
                    index(order.to_vec()),
                    index(tokens.to_vec()),
                    index(ends.collect()),
                    (Spec::new([n, d], precision.act_dtype), rows),
                    (Spec::new([v, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                ];
                let (order, tokens) = (order.to_vec(), tokens.to_vec());
                let reference = move |i: &[Array]| {
                    let mut dw = Array::zeros(&[v, d]);
                    for (&position, &token) in order.iter().zip(&tokens) {
                        let row = &i[3].data[position * d..][..d];
                        dw.data[token * d..][..d].iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
                    }
                    if let Some(before) = i.get(5) {
                        dw.data.iter_mut().zip(&before.data).for_each(|(sum, before)| *sum += before);
                    }
                    vec![dw, Array::zeros(&[0])]
                };
                let written = vec![(mode, Fill::Normal(0.0, 1.0))];
                Case::new(name, EmbeddingGrad, inputs, reference).without_gradient().depth(n).outputs(written)
            };
        let (big, normal) = (2f64.powi(100), Fill::Normal(0.0, 1.0));
        let backward: Vec<usize> = (0..200).rev().collect();
        let tokens: Vec<usize> = (0..200).map(|i| if i < 150 { 3 + i / 40 } else { 60 + i / 20 }).collect();
        let values = Fill::Values(vec![big, 1.0, -big, 1.0]);
        Cases::Own(vec![
            case("order of sums", &[0, 2, 1, 3], &[0; 4], [1, 1], values, Mode::Write),
            case("gaps", &backward, &tokens, [100, 24], normal.clone(), Mode::Write),
            case("gaps added to", &backward, &tokens, [100, 24], normal.clone(), Mode::Add),
            case("odd width", &backward, &tokens, [70, 7], normal, Mode::Write),
        ])
    }
}
