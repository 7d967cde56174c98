//! Token embedding, and its gradient without atomics.

use super::lanes::{rows_per_task, vector_width};
use crate::device::gpu::{Arg, Grid, Kernel, MAX_RANKS};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, OwnedRange, Precision, Spec, Vjp,
};
use std::ops::Range;

/// `x[N, d] = W[tokens[N], :]` of `W[V, d]`.
#[derive(Clone, Copy, Debug)]
pub struct Embedding;

/// `(tokens[N], dy[N, d], W[V, d]) → (dW[V, d], ends[V], order[N], scratch[2, N], edges[2·pieces, d])`; only
/// the shape of `W` is used.
///
/// A stable counting sort lists the positions of every token in `order`, up to `ends[token]`. Each row of
/// `dW` is then the sum of its own positions in the order of the batch: the same bits for any number of
/// threads. If rows are of several ranks, the order is that of the global batch: the same for any number of
/// ranks.
///
/// On a GPU, where the work of a frequent token must be spread over many blocks, pieces of [`PIECE`] sorted
/// positions are summed, and the sums of a token that crosses pieces (`edges`) are added up in their order.
/// With owners, only the positions of rows that the rank owns some of are sorted; `ends[0]` says how many,
/// and rows are read where ranks have shared them.
#[derive(Clone, Debug)]
pub struct EmbeddingGrad {
    /// The layout of the rows.
    pub layout: RankInterleaved,
    /// The elements of `dW` that each rank sums, at most [`MOST_RANGES`] of a rank, between multiples of
    /// [`OWNED_STEP`]; others are left as they are. All ranks sum all where there are none.
    pub owners: Vec<OwnedRange>,
}

/// The layout of a batch whose sequences were distributed to ranks round-robin: the rows of rank 0, then of
/// rank 1, ….
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

    /// Returns the index of row `row` of a global batch of `rows` rows.
    fn index(self, row: usize, rows: usize) -> usize {
        let (sequence, inside) = (row / self.sequence, row % self.sequence);
        sequence % self.ranks * (rows / self.ranks) + sequence / self.ranks * self.sequence + inside
    }
}

impl EmbeddingGrad {
    /// Its name.
    pub const NAME: &'static str = "embedding_grad";

    /// Returns the gradient on one rank.
    pub fn of_one_rank() -> Self {
        Self { layout: RankInterleaved::ONE_RANK, owners: Vec::new() }
    }

    /// Returns the elements that a rank sums, of `elements`; ranges that it does not have are empty.
    fn owned(&self, rank: usize, elements: usize) -> [Range<usize>; MOST_RANGES] {
        if self.owners.is_empty() {
            return [0..elements, 0..0];
        }
        let mut of_rank = self.owners.iter().filter(|range| range.rank == rank).map(OwnedRange::flat);
        std::array::from_fn(|_| of_rank.next().unwrap_or_default())
    }

    /// Returns true if kernels can handle the owners of a table of `elements` elements.
    fn fits(&self, elements: usize) -> bool {
        let border = |at: usize| at.is_multiple_of(OWNED_STEP) && at <= elements;
        let few = |rank: usize| self.owners.iter().filter(|range| range.rank == rank).count() <= MOST_RANGES;
        let mut owners = self.owners.iter();
        owners.all(|range| border(range.start) && border(range.start + range.len) && few(range.rank))
    }
}

/// Most ranges of elements that a rank owns: its part of a table, and of a block that begins before the
/// table.
const MOST_RANGES: usize = 2;
/// Elements that kernels move at once, at most.
const OWNED_STEP: usize = 8;

/// Number of tasks that the vocabulary is split into.
const TASKS: usize = 64;

/// On a GPU: sorted positions that are summed together.
const PIECE: usize = 32;
/// Warps of the block that sorts.
const SORT_WARPS: usize = 32;
/// Bits of a digit of the sort.
const DIGIT_BITS: u32 = 8;
/// Stores of 16 bytes per thread of a block that clears the gradient.
const CLEAR_STORES: usize = 8;
/// Threads per block of the other kernels, at most.
const THREADS: usize = 256;

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [tokens, w] = inputs else { return Err("takes tokens and W".into()) };
        if tokens.dtype != DType::U32 || tokens.shape.len() != 1 || w.shape.len() != 2 || !w.dtype.is_float()
        {
            return Err("tokens are u32 [N] and W is [V, d]".into());
        }
        Ok(vec![Spec::padded([tokens.shape[0], w.shape[1]], [tokens.alloc[0], w.alloc[1]], w.dtype)])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (tokens, w, dy) = (v.input(0), v.input(1), v.output_grad(0)?);
        v.backward(EmbeddingGrad::of_one_rank(), &[tokens, dy, w], &[1]).map(drop)
    }

    /// Reads the rows that are looked up, not the table.
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

    fn cases(&self, precision: Precision) -> Cases {
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

/// Returns a kernel for rows of `x`, of all of a table or of what a rank owns of it.
fn kernel(entry: &'static str, x: &Spec, owned: bool) -> Kernel {
    Kernel::new("embedding", entry)
        .with_type("T", x.dtype)
        .with("VEC", vector_width(x.width(), x.dtype))
        .with("THREADS", THREADS)
        .with("OWNED", usize::from(owned))
        .with("PIECE", PIECE)
        .with("SORT_WARPS", SORT_WARPS)
        .with("DIGIT_BITS", DIGIT_BITS)
        .with("CLEAR_STORES", CLEAR_STORES)
}

/// Sorts positions by token: `order` up to `ends[t]`, from `ends[t - 1]`, lists those of token `t` in the
/// order of the global batch.
fn sort(tokens: &[u32], layout: RankInterleaved, ends: &mut [u32], order: &mut [u32]) {
    ends.fill(0);
    for &token in tokens {
        ends[token as usize] += 1;
    }
    let mut start = 0;
    for end in &mut *ends {
        start += std::mem::replace(end, start);
    }
    for position in (0..tokens.len()).map(|row| layout.index(row, tokens.len())) {
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
        let RankInterleaved { ranks, sequence } = self.layout;
        let owners = if self.owners.is_empty() { "" } else { " owned" };
        if ranks == 1 { String::new() } else { format!("ranks={ranks} sequence={sequence}{owners}") }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [tokens, dy, w] = inputs else { return Err("takes tokens, dy and W".into()) };
        let x = Embedding.infer(&[tokens.clone(), w.clone()])?;
        if x[0].alloc != dy.alloc || x[0].dtype != dy.dtype {
            return Err("dy is [N, d] in the format of W".into());
        }
        if !tokens.alloc[0].is_multiple_of(self.layout.ranks * self.layout.sequence) {
            return Err("every rank has as many whole sequences".into());
        }
        if !self.fits(w.elements()) {
            return Err(format!(
                "a rank owns at most {MOST_RANGES} ranges, within W at multiples of {OWNED_STEP}"
            ));
        }
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
        sort(tokens, self.layout, ends, order);
        let (ends, order, add) = (&*ends, &*order, cx.adds(0));
        for owned in self.owned(cx.comm.rank(), v * d) {
            let rows = owned.start / d..owned.end.div_ceil(d);
            dispatch_float!(cx.input_spec(1).dtype, E => {
                type A = <E as Elem>::Acc;
                let (dy, dw) = (cx.input::<E>(1), cx.output::<A>(0));
                cx.pool.chunks(rows.len(), v.div_ceil(TASKS), #[inline(always)] |start, len| {
                    let mut sum = vec![A::ZERO; d];
                    for row in (rows.start + start..).take(len) {
                        let first = if row == 0 { 0 } else { ends[row - 1] };
                        let positions = &order[first as usize..ends[row] as usize];
                        if add && positions.is_empty() {
                            continue;
                        }
                        // Other ranks may own some of the first row and of the last one.
                        let (begin, end) = (owned.start.max(row * d), owned.end.min((row + 1) * d));
                        let sum = &mut sum[..end - begin];
                        sum.fill(A::ZERO);
                        for &position in positions {
                            let from = dy.slice(position as usize * d + (begin - row * d), end - begin);
                            sum.iter_mut().zip(from).for_each(|(sum, dy)| *sum += dy.up());
                        }
                        dw.put(begin, sum, add);
                    }
                });
            });
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const SORT_THREADS: usize = SORT_WARPS * 32;
        /// Elements that a block clears while another sorts.
        const CLEARED: usize = SORT_THREADS * CLEAR_STORES * 4;
        let (dy, dw) = (cx.input_spec(1), cx.output_spec(0));
        let (n, d) = (dy.rows(), dy.width());
        let (tokens, kernel) = (Arg::Ptr(cx.input(0)), |entry| kernel(entry, dy, !self.owners.is_empty()));
        let rows = match self.owners.is_empty() {
            true => [cx.input(1); MAX_RANKS],
            false => cx.queue.shared(cx.input(1), dy.bytes() / self.layout.ranks)?,
        };
        let [sums, ends, order, edges] = [0, 1, 2, 4].map(|i| Arg::Ptr(cx.output(i)));
        let (sorted, spare) = (cx.output(3), cx.output(3) + (n * DType::U32.size()) as u64);
        let owned = self.owned(cx.queue.rank(), dw.elements());
        let cleared = if cx.adds(0) { 0 } else { owned.iter().map(Range::len).sum() };
        let borders = owned.each_ref().map(|range| [range.start, range.end].map(|at| Arg::U64(at as u64)));
        let borders = borders.as_flattened();

        let bits = usize::BITS - (dw.rows() - 1).leading_zeros();
        let passes = bits.div_ceil(DIGIT_BITS).max(1) as usize;
        let args =
            [tokens, order, sorted.into(), spare.into(), ends, sums, n.into(), d.into(), passes.into()];
        let layout = [self.layout.ranks.into(), self.layout.sequence.into()];
        let args = [&args[..], &layout, borders].concat();
        let blocks = 1 + cleared.div_ceil(CLEARED);
        cx.queue.launch(kernel("embedding_sort"), Grid::new(blocks, SORT_THREADS as u32), &args)?;

        let vectors = d / vector_width(d, dy.dtype);
        let pieces = Grid::new(n.div_ceil(PIECE), vectors.next_multiple_of(32).min(THREADS) as u32);
        let sizes: [Arg; 3] = [n.into(), d.into(), usize::from(cx.adds(0)).into()];
        let per_rank = [Arg::Size(n / self.layout.ranks)];
        let args = [&[order, sorted.into(), ends, rows.into(), sums, edges], &sizes[..], &per_rank, borders]
            .concat();
        cx.queue.launch(kernel("embedding_sum"), pieces, &args)?;
        let args = [&[sorted.into(), ends, edges, sums], &sizes[..], borders].concat();
        cx.queue.launch(kernel("embedding_join"), pieces, &args)
    }

    /// The gradient of the embedding covers one rank. These cases have several, with values whose sum depends
    /// on the order: 1 is lost when it is added to 2¹⁰⁰, and kept when 2¹⁰⁰ was cancelled before.
    fn cases(&self, precision: Precision) -> Cases {
        let case = |ranks: usize, sequence: usize, [n, v, d]: [usize; 3], rows: Fill| {
            let layout = RankInterleaved { ranks, sequence };
            let inputs = vec![
                (Spec::new([n], DType::U32), Fill::Below(v as u32)),
                (Spec::new([n, d], precision.act_dtype), rows),
                (Spec::new([v, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
            ];
            let name = format!("ranks{ranks} sequence{sequence} n{n} v{v} d{d}");
            let op = EmbeddingGrad { layout, owners: Vec::new() };
            Case::new(name, op, inputs, move |i| reference(layout, i))
                .differentiable(&[])
                .upstream(&[])
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
            owned_case(precision, [300, 50, 24], &[(0, 0, 64), (1, 64, 536), (0, 600, 584)]),
            owned_case(precision, [1000, 7, 40], &[(1, 0, 56), (0, 56, 168), (1, 224, 56)]),
            owned_case(precision, [100, 40, 16], &[(1, 0, 640)]),
        ])
    }
}

/// A rank of which the first one, whose rows are all there are, owns some ranges of elements: (rank, start,
/// length).
fn owned_case(precision: Precision, [n, v, d]: [usize; 3], owners: &[(usize, usize, usize)]) -> Case {
    let owners = owners.iter().map(|&(rank, start, len)| OwnedRange { rank, start, len, offset: 0 });
    let op = EmbeddingGrad { layout: RankInterleaved::ONE_RANK, owners: owners.collect() };
    let inputs = vec![
        (Spec::new([n], DType::U32), Fill::Below(v as u32)),
        (Spec::new([n, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
        (Spec::new([v, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
    ];
    let owned = op.owned(0, v * d);
    let expected = move |i: &[Array]| {
        let mut outputs = reference(RankInterleaved::ONE_RANK, i);
        let (sums, before) = (&mut outputs[0], &i[3]);
        for (at, (sum, before)) in sums.data.iter_mut().zip(&before.data).enumerate() {
            *sum = before + if owned.iter().any(|range| range.contains(&at)) { *sum } else { 0.0 };
        }
        outputs
    };
    let added = (Mode::Add, Fill::Normal(0.0, 1.0));
    let name = format!("{} ranges n{n} v{v} d{d}", op.owners.len());
    Case::new(name, op, inputs, expected).differentiable(&[]).upstream(&[]).depth(n).outputs(vec![added])
}

/// Adds row after row of the global batch. Of the outputs only the gradient is compared.
fn reference(layout: RankInterleaved, i: &[Array]) -> Vec<Array> {
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
