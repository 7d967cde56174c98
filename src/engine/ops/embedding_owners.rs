//! The embedding gradient with its table divided among ranks: each rank sums the rows that it owns, in two
//! ops.

use super::embedding::{GradKernels, PIECE, TASKS};
use super::sort_tokens::{RankInterleaved, SortedTokens, Sorting, scratch_words, sort};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, OwnedRange, Precision, Spec};
use std::ops::Range;

/// Describes the part of a table's gradient that each rank sums.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedRows {
    /// The layout of the rows of all ranks.
    pub layout: RankInterleaved,
    /// The ranges of table elements and the ranks that own them: at most [`MAX_RANGES`] per rank, with
    /// borders at multiples of [`STEP`].
    pub owners: Vec<OwnedRange>,
}

/// The most ranges of a rank: its part of the table, and its part of a block that begins before the table.
const MAX_RANGES: usize = 2;

/// The most elements that kernels move at once.
const STEP: usize = 8;

impl OwnedRows {
    /// Returns the ranges that `rank` owns, filled up with empty ranges.
    fn owned_ranges(&self, rank: usize) -> [Range<usize>; MAX_RANGES] {
        let mut ranges = self.owners.iter().filter(|range| range.rank == rank).map(OwnedRange::flat);
        std::array::from_fn(|_| ranges.next().unwrap_or_default())
    }

    /// Fails unless the kernels can handle the owners of `w` and the layout divides `n` rows.
    fn check(&self, n: usize, w: &Spec) -> Result<(), String> {
        let border = |at: usize| at.is_multiple_of(STEP) && at <= w.elements();
        let few = |rank: usize| self.owners.iter().filter(|range| range.rank == rank).count() <= MAX_RANGES;
        let mut owners = self.owners.iter();
        if !owners.all(|range| border(range.start) && border(range.start + range.len) && few(range.rank)) {
            return Err(format!(
                "a rank owns at most {MAX_RANGES} ranges, in W and between multiples of {STEP}"
            ));
        }
        self.layout.check(n)
    }

    fn attributes(&self) -> String {
        format!("ranks={} sequence={} ranges={}", self.layout.ranks, self.layout.sequence, self.owners.len())
    }
}

/// `(tokens[ranks·N], W[V, d]) → (dW[V, d], order[ranks·N], sorted[ranks·N], count[1], scratch)`: finds the
/// `count` positions whose token has a row in `W` that the rank owns at least in part. `order` lists them by
/// token, and within a token in the order of the global batch; `sorted` lists their tokens. Clears the part
/// of `dW` that the rank owns and leaves the rest as it is. The op needs only the tokens, so it can run long
/// before there are rows to sum.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOrder(pub OwnedRows);

/// `(order[ranks·N], sorted[ranks·N], count[1], rows[ranks·N, d], W[V, d]) → (dW[V, d], edges[2·pieces, d])`:
/// writes the rank's part of each row of `dW` whose token is in the order of [`TokenOrder`]. Each row is the
/// sum of its rows in that order. The rest is left as it is, so `dW` has `Mode::Add`, which here means that
/// the old value is an input. Rows are read where the ranks have shared them.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingGradAtOwners(pub OwnedRows);

impl Op for TokenOrder {
    fn name(&self) -> &'static str {
        "token_order"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [tokens, w] = inputs else { return Err("takes tokens and W".into()) };
        if tokens.dtype != DType::U32 || tokens.shape.len() != 1 || w.shape.len() != 2 || !w.dtype.is_float()
        {
            return Err("tokens must be u32 [ranks·N] and W [V, d]".into());
        }
        let n = tokens.alloc[0];
        self.0.check(n, w)?;
        let index = |len: usize| Spec::new([len], DType::U32);
        let dw = w.with_dtype(w.dtype.accumulator());
        Ok(vec![dw, index(n), index(n), index(1), index(scratch_words(n))])
    }

    /// Counts the tokens, not the table, and the part of the gradient that a rank clears.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let sorted = Cost::streaming(&inputs[..1], &outputs[1..]);
        let cleared = outputs[0].bytes() as f64 / self.0.layout.ranks as f64;
        Cost { bytes: sorted.bytes + cleared, ..sorted }
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let tokens = cx.input_u32(0);
        let (n, v, d) = (tokens.len(), cx.output_spec(0).rows(), cx.output_spec(0).width());
        let owned = self.0.owned_ranges(cx.comm.rank());
        let size = cx.output_spec(0).dtype.size();
        owned.iter().for_each(|range| cx.output_bytes(0)[range.start * size..range.end * size].fill(0));
        let (mut ends, mut all) = (vec![0; v], vec![0; n]);
        sort(tokens, self.0.layout, &mut ends, &mut all);
        let owns_part_of = |token: u32| {
            let row = token as usize * d..(token as usize + 1) * d;
            owned.iter().any(|range| range.start.max(row.start) < range.end.min(row.end))
        };
        let mut order = cx.output_u32(1).slice(0, n).iter_mut().zip(cx.output_u32(2).slice(0, n));
        let mut count = 0;
        for position in all {
            let token = tokens[position as usize];
            if owns_part_of(token)
                && let Some((order, sorted)) = order.next()
            {
                (*order, *sorted) = (position, token);
                count += 1;
            }
        }
        cx.output_u32(3).slice(0, 1)[0] = count;
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (dw, owned) = (cx.output_spec(0), self.0.owned_ranges(cx.queue.rank()));
        for range in owned.iter().filter(|range| !range.is_empty()) {
            let size = dw.dtype.size();
            cx.queue.fill(cx.output(0) + (range.start * size) as u64, 0, range.len() * size)?;
        }
        let to = SortedTokens { order: cx.output(1), tokens: cx.output(2), count: cx.output(3) };
        let (n, vocabulary) = (cx.input_spec(0).alloc[0], dw.rows());
        let sorting = Sorting { n, layout: self.0.layout, vocabulary, owned: Some((dw.width(), owned)) };
        sorting.launch(cx.queue, cx.input(0), to, cx.output(4))
    }

    /// One rank sorts everything because it owns the whole table. For ranks that own a part or nothing,
    /// `order` and `sorted` are not compared, but the count is.
    fn cases(precision: Precision) -> Cases {
        let case = |[n, v, d]: [usize; 3], owners: &[(usize, usize, usize)]| {
            let op = TokenOrder(owned_rows(owners));
            let (tokens, rows) = (some_tokens(n, v), op.0.clone());
            let inputs =
                vec![index_input(&tokens), (Spec::new([v, d], precision.act_dtype), Fill::Normal(0.0, 1.0))];
            let name = format!("n{n} v{v} d{d}, {} ranges", owners.len());
            let reference = move |i: &[Array]| {
                let mut dw = i[2].clone();
                let owned = rows.owned_ranges(0);
                owned.iter().for_each(|range| dw.data[range.clone()].fill(0.0));
                let (order, sorted) = expected_order(&tokens, &rows, d);
                let whole = order.len() == n;
                let array = |data: &[u32]| Array { shape: vec![data.len()], data: numbers(data) };
                let compared = |data: &[u32]| if whole { array(data) } else { Array::zeros(&[0]) };
                let count = array(&[order.len() as u32]);
                vec![dw, compared(&order), compared(&sorted), count, Array::zeros(&[0])]
            };
            let cleared = vec![(Mode::Add, Fill::Normal(0.0, 1.0))];
            Case::new(name, op, inputs, reference).without_gradient().outputs(cleared)
        };
        Cases::Own(vec![
            case([300, 50, 24], &[(0, 0, 1200)]),
            case([1000, 300, 8], &[(0, 0, 8), (1, 8, 1000), (0, 1008, 1392)]),
            case([77, 7, 40], &[(1, 0, 280)]),
        ])
    }
}

impl Op for EmbeddingGradAtOwners {
    fn name(&self) -> &'static str {
        "embedding_grad_at_owners"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [order, sorted, count, rows, w] = inputs else {
            return Err("takes order, sorted tokens, their count, rows and W".into());
        };
        if rows.shape.len() != 2 || w.shape.len() != 2 || rows.dtype != w.dtype || rows.alloc[1] != w.alloc[1]
        {
            return Err("rows must be [ranks·N, d] in the format of W".into());
        }
        let (n, is_index) = (rows.alloc[0], |x: &Spec, n: usize| x.dtype == DType::U32 && x.alloc[..] == [n]);
        if !is_index(order, n) || !is_index(sorted, n) || !is_index(count, 1) {
            return Err("order and sorted tokens must be u32 [ranks·N] and their count u32 [1]".into());
        }
        self.0.check(n, w)?;
        let master = w.dtype.accumulator();
        Ok(vec![w.with_dtype(master), Spec::new([2 * n.div_ceil(PIECE), w.alloc[1]], master)])
    }

    /// A rank reads and writes about as many rows as it has itself.
    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        let rows = 3.0 * inputs[3].bytes() as f64 / self.0.layout.ranks as f64;
        Cost { product_flops: 0.0, bytes: rows }
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (v, d) = (cx.output_spec(0).rows(), cx.output_spec(0).width());
        let count = cx.input_u32(2)[0] as usize;
        let (order, sorted) = (&cx.input_u32(0)[..count], &cx.input_u32(1)[..count]);
        for owned in self.0.owned_ranges(cx.comm.rank()) {
            let rows = owned.start / d..owned.end.div_ceil(d);
            dispatch_float!(cx.input_spec(3).dtype, E => {
                type A = <E as Elem>::Acc;
                let (dy, dw) = (cx.input::<E>(3), cx.output::<A>(0));
                cx.pool.chunks(rows.len(), v.div_ceil(TASKS), #[inline(always)] |start, len| {
                    let mut sum = vec![A::ZERO; d];
                    let mut first = sorted.partition_point(|&token| (token as usize) < rows.start + start);
                    for row in (rows.start + start..).take(len) {
                        let end = first + sorted[first..].iter().take_while(|&&t| t as usize == row).count();
                        if first == end {
                            continue;
                        }
                        // Other ranks may own parts of the first and the last row.
                        let (from, to) = (owned.start.max(row * d), owned.end.min((row + 1) * d));
                        let sum = &mut sum[..to - from];
                        sum.fill(A::ZERO);
                        for &position in &order[first..end] {
                            let dy = dy.slice(position as usize * d + (from - row * d), to - from);
                            sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy.up());
                        }
                        dw.put(from, sum, false);
                        first = end;
                    }
                });
            });
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let rows = cx.input_spec(3);
        let shared = cx.queue.shared(cx.input(3), rows.bytes() / self.0.layout.ranks)?;
        let sorted = SortedTokens { order: cx.input(0), tokens: cx.input(1), count: cx.input(2) };
        let kernels = GradKernels {
            queue: cx.queue,
            dy: rows,
            dw: cx.output_spec(0),
            ranks: self.0.layout.ranks,
            owned: Some(self.0.owned_ranges(cx.queue.rank())),
            adds: false,
        };
        kernels.sum(sorted, 0, shared, cx.output(0), cx.output(1))
    }

    /// The rows come from one rank, which owns all or some of the table; the rank tests cover several ranks.
    fn cases(precision: Precision) -> Cases {
        let case = |[n, v, d]: [usize; 3], owners: &[(usize, usize, usize)]| {
            let op = EmbeddingGradAtOwners(owned_rows(owners));
            let (tokens, rows) = (some_tokens(n, v), op.0.clone());
            let (mut order, mut sorted) = expected_order(&tokens, &rows, d);
            let count = order.len() as u32;
            order.resize(n, 0);
            sorted.resize(n, 0);
            let float = |rows: usize| (Spec::new([rows, d], precision.act_dtype), Fill::Normal(0.0, 1.0));
            let [order, sorted, count] = [&order[..], &sorted, &[count]].map(index_input);
            let inputs = vec![order, sorted, count, float(n), float(v)];
            let name = format!("n{n} v{v} d{d}, {} ranges", owners.len());
            let reference = move |i: &[Array]| {
                let mut dw = i[5].clone();
                for range in rows.owned_ranges(0) {
                    for at in range.filter(|at| tokens.contains(&((at / d) as u32))) {
                        let row_positions =
                            tokens.iter().enumerate().filter(|(_, token)| **token as usize == at / d);
                        dw.data[at] =
                            row_positions.map(|(position, _)| i[3].data[position * d + at % d]).sum();
                    }
                }
                vec![dw, Array::zeros(&[0])]
            };
            let written = vec![(Mode::Add, Fill::Normal(0.0, 1.0))];
            Case::new(name, op, inputs, reference).without_gradient().depth(n).outputs(written)
        };
        Cases::Own(vec![
            case([300, 50, 24], &[(0, 0, 1200)]),
            case([300, 50, 24], &[(0, 0, 64), (1, 64, 536), (0, 600, 584)]),
            case([1000, 7, 40], &[(1, 0, 56), (0, 56, 168), (1, 224, 56)]),
            case([100, 40, 16], &[(1, 0, 640)]),
        ])
    }
}

/// Returns owners given as (rank, start, length), for rows of one rank.
fn owned_rows(owners: &[(usize, usize, usize)]) -> OwnedRows {
    let owners = owners.iter().map(|&(rank, start, len)| OwnedRange { rank, start, len, offset: 0 });
    OwnedRows { layout: RankInterleaved::ONE_RANK, owners: owners.collect() }
}

fn numbers(index: &[u32]) -> Vec<f64> {
    index.iter().map(|&x| f64::from(x)).collect()
}

/// Returns an input of a case with these numbers.
fn index_input(index: &[u32]) -> (Spec, Fill) {
    (Spec::new([index.len()], DType::U32), Fill::Values(numbers(index)))
}

/// Returns tokens for the cases; some are frequent.
fn some_tokens(n: usize, v: usize) -> Vec<u32> {
    (0..n).map(|i| if i % 3 == 0 { 1 % v } else { i * i * 31 % v } as u32).collect()
}

/// Returns what rank 0 sorts: the positions of the tokens whose rows it owns at least in part, and their
/// tokens.
fn expected_order(tokens: &[u32], rows: &OwnedRows, d: usize) -> (Vec<u32>, Vec<u32>) {
    let has = |token: u32| {
        (0..d).any(|c| rows.owned_ranges(0).iter().any(|r| r.contains(&(token as usize * d + c))))
    };
    let mut order: Vec<u32> = (0..tokens.len() as u32).filter(|&i| has(tokens[i as usize])).collect();
    order.sort_by_key(|&position| tokens[position as usize]);
    let sorted = order.iter().map(|&position| tokens[position as usize]).collect();
    (order, sorted)
}
