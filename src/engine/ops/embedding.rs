//! Token embedding, and its gradient without atomics.

use super::lanes::{rows_per_task, vector_width};
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS, Queue};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec, Vjp};
use std::ops::Range;

/// `x[N, d] = W[tokens[N], :]` with `W[V, d]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding;

/// `(tokens[N], dy[N, d], W[V, d]) → (dW[V, d], ends[V], order[N], scratch[2, N], edges[2·pieces, d])`. Only
/// the shape of `W` is used.
///
/// A stable counting sort lists the positions of every token in `order`, up to `ends[token]`. Each row of
/// `dW` is then the sum of its own positions in batch order, so the bits are the same for any number of
/// threads. If the rows come from several ranks, the order follows the global batch, so the bits are the same
/// for any number of ranks.
///
/// A GPU must spread the work of a frequent token over many blocks. It sums pieces of [`PIECE`] sorted
/// positions; if a token crosses pieces, its sums (`edges`) are added in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingGrad(pub RankInterleaved);

/// The layout of a batch whose sequences were distributed to ranks round-robin: the rows of rank 0, then of
/// rank 1, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankInterleaved {
    /// Number of ranks.
    pub ranks: usize,
    /// Rows per sequence.
    pub sequence: usize,
}

impl RankInterleaved {
    /// The layout of one rank: rows are in order.
    pub const ONE_RANK: Self = Self { ranks: 1, sequence: 1 };

    /// Fails unless every rank has the same number of whole sequences in a batch of `rows` rows.
    pub(super) fn check(self, rows: usize) -> Result<(), String> {
        if !rows.is_multiple_of(self.ranks * self.sequence) {
            return Err("every rank must have the same number of whole sequences".into());
        }
        Ok(())
    }

    /// Returns the index in memory of row `row` of a global batch of `rows` rows.
    fn memory_index(self, row: usize, rows: usize) -> usize {
        let (sequence, inside) = (row / self.sequence, row % self.sequence);
        sequence % self.ranks * (rows / self.ranks) + sequence / self.ranks * self.sequence + inside
    }
}

impl EmbeddingGrad {
    /// The op's name.
    pub const NAME: &'static str = "embedding_grad";
}

/// Number of tasks into which the vocabulary is split.
pub(super) const TASKS: usize = 64;

/// Sorted positions that a GPU sums together.
pub(super) const PIECE: usize = 32;
/// Warps in the block that sorts.
const SORT_WARPS: usize = 32;
/// Bits of a digit of the sort.
const DIGIT_BITS: u32 = 8;
/// 16-byte stores per thread in a block that clears the gradient.
const CLEAR_STORES: usize = 8;
/// The most threads per block in the other kernels.
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
        v.backward(EmbeddingGrad(RankInterleaved::ONE_RANK), &[tokens, dy, w], &[1]).map(drop)
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
        .with("SORT_WARPS", SORT_WARPS)
        .with("DIGIT_BITS", DIGIT_BITS)
        .with("CLEAR_STORES", CLEAR_STORES)
}

/// The settings with which the kernels of an embedding gradient are launched.
pub(super) struct GradKernels<'a> {
    pub queue: &'a dyn Queue,
    /// Spec of the rows of all ranks.
    pub dy: &'a Spec,
    /// Spec of the gradient.
    pub dw: &'a Spec,
    pub layout: RankInterleaved,
    /// The elements that the rank owns, in at most two ranges; `None` means all.
    pub owned: Option<[Range<usize>; 2]>,
    /// True if sums are added to the existing gradient.
    pub adds: bool,
}

/// Addresses of positions sorted by token, of their tokens and of their count.
#[derive(Clone, Copy)]
pub(super) struct SortedTokens {
    pub order: DevicePtr,
    pub tokens: DevicePtr,
    pub count: DevicePtr,
}

impl GradKernels<'_> {
    fn kernel(&self, entry: &'static str) -> Kernel {
        kernel(entry, self.dy, self.owned.is_some())
    }

    /// Returns the elements that the rank owns.
    fn ranges(&self) -> [Range<usize>; 2] {
        self.owned.clone().unwrap_or([0..self.dw.elements(), 0..0])
    }

    fn borders(&self) -> Vec<Arg> {
        self.ranges()
            .iter()
            .flat_map(|range| [range.start, range.end])
            .map(|at| Arg::U64(at as u64))
            .collect()
    }

    /// Sorts positions, using `spare` as scratch for as many positions. Clears the part of the gradient that
    /// the rank owns, unless sums are added to it.
    pub fn sort(&self, tokens: DevicePtr, to: SortedTokens, spare: DevicePtr, dw: DevicePtr) -> Result<()> {
        const SORT_THREADS: usize = SORT_WARPS * 32;
        /// Elements that a block clears while another block sorts.
        const CLEARED: usize = SORT_THREADS * CLEAR_STORES * 4;
        let (n, d) = (self.dy.rows(), self.dy.width());
        let bits = usize::BITS - (self.dw.rows() - 1).leading_zeros();
        let passes = bits.div_ceil(DIGIT_BITS).max(1) as usize;
        let cleared = if self.adds { 0 } else { self.ranges().iter().map(Range::len).sum() };
        let addresses = [tokens, to.order, to.tokens, spare, to.count, dw].map(Arg::Ptr);
        let sizes = [n, d, passes, self.layout.ranks, self.layout.sequence].map(Arg::Size);
        let args = [&addresses[..], &sizes, &self.borders()].concat();
        let blocks = 1 + cleared.div_ceil(CLEARED);
        self.queue.launch(self.kernel("embedding_sort"), Grid::new(blocks, SORT_THREADS as u32), &args)
    }

    /// Sums the rows at the sorted positions. Reads each rank's rows at that rank's address; if all rows are
    /// in one place, all addresses are the same.
    pub fn sum(
        &self,
        from: SortedTokens,
        rows: [DevicePtr; MAX_RANKS],
        dw: DevicePtr,
        edges: DevicePtr,
    ) -> Result<()> {
        let (n, d) = (self.dy.rows(), self.dy.width());
        let vectors = d / vector_width(d, self.dy.dtype);
        let pieces = Grid::new(n.div_ceil(PIECE), vectors.next_multiple_of(32).min(THREADS) as u32);
        let [order, tokens, count, dw, edges] =
            [from.order, from.tokens, from.count, dw, edges].map(Arg::Ptr);
        let sizes = [n, d, usize::from(self.adds)].map(Arg::Size);
        let per_rank = [Arg::Size(n / self.layout.ranks)];
        let args = [&[order, tokens, count, rows.into(), dw, edges], &sizes[..], &per_rank, &self.borders()];
        self.queue.launch(self.kernel("embedding_sum"), pieces, &args.concat())?;
        let args = [&[tokens, count, edges, dw], &sizes[..], &self.borders()];
        self.queue.launch(self.kernel("embedding_join"), pieces, &args.concat())
    }
}

/// Sorts positions by token. `order[ends[t - 1]..ends[t]]` lists the positions of token `t` in the order of
/// the global batch.
pub(super) fn sort(tokens: &[u32], layout: RankInterleaved, ends: &mut [u32], order: &mut [u32]) {
    ends.fill(0);
    for &token in tokens {
        ends[token as usize] += 1;
    }
    let mut start = 0;
    for end in &mut *ends {
        start += std::mem::replace(end, start);
    }
    for position in (0..tokens.len()).map(|row| layout.memory_index(row, tokens.len())) {
        let next = &mut ends[tokens[position] as usize];
        order[*next as usize] = position as u32;
        *next += 1;
    }
}

impl Op for EmbeddingGrad {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn attributes(&self) -> String {
        match self.0 {
            RankInterleaved { ranks: 1, .. } => String::new(),
            RankInterleaved { ranks, sequence } => format!("ranks={ranks} sequence={sequence}"),
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [tokens, dy, w] = inputs else { return Err("takes tokens, dy and W".into()) };
        let x = Embedding.infer(&[tokens.clone(), w.clone()])?;
        if x[0].alloc != dy.alloc || x[0].dtype != dy.dtype {
            return Err("dy must be [N, d] in the format of W".into());
        }
        self.0.check(tokens.alloc[0])?;
        let index = |len: usize| Spec::new([len], DType::U32);
        let (n, master) = (tokens.alloc[0], w.dtype.accumulator());
        let scratch = Spec::new([2, n], DType::U32);
        let edges = Spec::new([2 * n.div_ceil(PIECE), w.alloc[1]], master);
        Ok(vec![w.with_dtype(master), index(w.alloc[0]), index(n), scratch, edges])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(&inputs[..2], &outputs[..3])
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let tokens = cx.input_u32(0);
        let (v, d) = (cx.output_spec(0).rows(), cx.output_spec(0).width());
        let (ends, order) = (cx.output_u32(1).slice(0, v), cx.output_u32(2).slice(0, tokens.len()));
        sort(tokens, self.0, ends, order);
        let (ends, order, add) = (&*ends, &*order, cx.adds(0));
        dispatch_float!(cx.input_spec(1).dtype, E => {
            type A = <E as Elem>::Acc;
            let (dy, dw) = (cx.input::<E>(1), cx.output::<A>(0));
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
            dy: cx.input_spec(1),
            dw: cx.output_spec(0),
            layout: self.0,
            owned: None,
            adds: cx.adds(0),
        };
        let spare = cx.output(3) + (cx.input_spec(0).bytes()) as u64;
        // All positions are sorted, so no kernel reads their count.
        let sorted = SortedTokens { order: cx.output(2), tokens: cx.output(3), count: cx.output(1) };
        kernels.sort(cx.input(0), sorted, spare, cx.output(0))?;
        let rows = [cx.input(1); MAX_RANKS];
        kernels.sum(sorted, rows, cx.output(0), cx.output(4))
    }

    /// The gradient cases of the embedding cover one rank. These cover several, with values whose sum depends
    /// on the order: 1 is lost when it is added to 2¹⁰⁰, and kept when 2¹⁰⁰ was canceled before.
    fn cases(precision: Precision) -> Cases {
        let case = |ranks: usize, sequence: usize, [n, v, d]: [usize; 3], rows: Fill| {
            let layout = RankInterleaved { ranks, sequence };
            let inputs = vec![
                (Spec::new([n], DType::U32), Fill::Below(v as u32)),
                (Spec::new([n, d], precision.act_dtype), rows),
                (Spec::new([v, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
            ];
            let name = format!("ranks{ranks} sequence{sequence} n{n} v{v} d{d}");
            Case::new(name, EmbeddingGrad(layout), inputs, move |i| reference(layout, i))
                .without_gradient()
                .depth(n)
        };
        let (big, normal) = (2f64.powi(100), Fill::Normal(0.0, 1.0));
        // Memory holds sequences 0 and 2, then 1 and 3.
        let order = Fill::Values(vec![big, 1.0, -big, 1.0]);
        Cases::Own(vec![
            case(2, 1, [4, 1, 1], order),
            case(2, 16, [256, 50, 16], normal.clone()),
            case(3, 5, [300, 300, 24], normal.clone()),
            case(4, 8, [1024, 7, 8], normal),
        ])
    }
}

/// Adds the rows one by one in the order of the global batch. Only the gradient is compared, not the scratch
/// outputs.
pub(super) fn reference(layout: RankInterleaved, i: &[Array]) -> Vec<Array> {
    let (tokens, rows, d) = (&i[0].data, &i[1].data, i[2].width());
    let mut dw = Array::zeros(&i[2].shape);
    let per_rank = tokens.len() / layout.ranks;
    for index in 0..tokens.len() / layout.sequence {
        let (rank, j) = (index % layout.ranks, index / layout.ranks);
        for row in rank * per_rank + j * layout.sequence..rank * per_rank + (j + 1) * layout.sequence {
            let to = &mut dw.data[tokens[row] as usize * d..][..d];
            to.iter_mut().zip(&rows[row * d..]).for_each(|(sum, dy)| *sum += dy);
        }
    }
    vec![dw, Array::zeros(&[0]), Array::zeros(&[0]), Array::zeros(&[0]), Array::zeros(&[0])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorting_lists_each_token_in_text_order(tokens in prop::collection::vec(0u32..9, 0..60)) {
            let (mut ends, mut order) = (vec![7; 9], vec![7; tokens.len()]);
            sort(&tokens, RankInterleaved::ONE_RANK, &mut ends, &mut order);
            let mut start = 0;
            for token in 0..9u32 {
                let end = ends[token as usize] as usize;
                let plain: Vec<u32> =
                    (0..tokens.len() as u32).filter(|&i| tokens[i as usize] == token).collect();
                prop_assert_eq!(&order[start..end], &plain[..]);
                start = end;
            }
            prop_assert_eq!(start, tokens.len());
        }
    }
}
