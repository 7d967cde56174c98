//! Positions sorted by token: the order in which the gradient of an embedding adds up rows.

use crate::device::DType;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, Queue};
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec};
use std::ops::Range;

/// `tokens[N] → (order[N], sorted[N], ends[vocabulary], scratch)`: `order` lists all positions by token, and
/// within a token in the order of the global batch. `sorted` lists their tokens.
/// `order[ends[t - 1]..ends[t]]` are the positions of token `t`.
///
/// It is an op of its own because all embeddings of the same tokens read one order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SortTokens {
    /// The layout of the tokens of all ranks.
    pub layout: RankInterleaved,
    /// Number of different tokens.
    pub vocabulary: usize,
}

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

/// Bits of a digit of a GPU's sort.
const DIGIT_BITS: u32 = 8;
/// Values of a digit, and threads of a block.
const DIGITS: usize = 1 << DIGIT_BITS;
/// The fewest positions that a block sorts.
const CHUNK: usize = 1024;
/// The most blocks that sort: each reads the counts of all.
const MAX_BLOCKS: usize = 64;

/// Returns the positions that a block takes when a GPU sorts `n`, and the number of blocks.
fn chunks(n: usize) -> (usize, usize) {
    let chunk = n.div_ceil(MAX_BLOCKS).next_multiple_of(CHUNK);
    (chunk, n.div_ceil(chunk))
}

/// Returns the number of words that a GPU needs as scratch to sort `n` positions: positions between passes,
/// and the counts of every block.
pub fn scratch_words(n: usize) -> usize {
    n + chunks(n).1 * DIGITS
}

/// Addresses of positions sorted by token, of their tokens and of their count.
#[derive(Clone, Copy)]
pub(super) struct SortedTokens {
    pub order: DevicePtr,
    pub tokens: DevicePtr,
    /// Only written and read if ranks own parts of a table.
    pub count: DevicePtr,
}

/// The positions that a GPU sorts.
pub(super) struct Sorting {
    /// Number of positions.
    pub n: usize,
    pub layout: RankInterleaved,
    pub vocabulary: usize,
    /// The width of a table and the elements that the rank owns, if only the tokens of rows count that it
    /// owns at least in part.
    pub owned: Option<(usize, [Range<usize>; 2])>,
}

impl Sorting {
    /// Sorts positions, with [`scratch_words`] of scratch.
    pub fn launch(
        &self,
        queue: &dyn Queue,
        tokens: DevicePtr,
        to: SortedTokens,
        scratch: DevicePtr,
    ) -> Result<()> {
        let kernel = |entry| kernel(entry, self.owned.is_some());
        let (chunk, blocks) = chunks(self.n);
        let grid = Grid::new(blocks, DIGITS as u32);
        let counts = scratch + (self.n * DType::U32.size()) as u64;
        let (width, owned) = self.owned.clone().unwrap_or_default();
        let borders = owned.iter().flat_map(|range| [range.start, range.end]).map(|at| Arg::U64(at as u64));
        let borders: Vec<Arg> = borders.collect();
        let passes = (usize::BITS - (self.vocabulary - 1).leading_zeros()).div_ceil(DIGIT_BITS).max(1);
        let mut from = 0;
        for pass in 0..passes {
            let is_last = pass + 1 == passes;
            // Back and forth, so that the last pass ends in `order`.
            let into = if (passes - 1 - pass).is_multiple_of(2) { to.order } else { scratch };
            let sorted = if is_last { to.tokens } else { 0 };
            let shift = (pass * DIGIT_BITS) as usize;
            let sizes = [self.n, chunk, width, shift, self.layout.ranks, self.layout.sequence];
            let sizes = [&sizes.map(Arg::Size)[..], &borders].concat();
            let count = [tokens, from, to.count, counts].map(Arg::Ptr);
            let moved = [tokens, from, to.count, counts, into, sorted].map(Arg::Ptr);
            queue.launch(kernel("count_digits"), grid, &[&count[..], &sizes].concat())?;
            queue.launch(kernel("move_by_digit"), grid, &[&moved[..], &sizes].concat())?;
            from = into;
        }
        Ok(())
    }
}

fn kernel(entry: &'static str, owned: bool) -> Kernel {
    Kernel::new("sort_tokens", entry).with("OWNED", usize::from(owned)).with("DIGIT_BITS", DIGIT_BITS)
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

impl Op for SortTokens {
    fn name(&self) -> &'static str {
        "sort_tokens"
    }

    fn attributes(&self) -> String {
        match self.layout {
            RankInterleaved { ranks: 1, .. } => format!("vocabulary={}", self.vocabulary),
            RankInterleaved { ranks, sequence } => {
                format!("vocabulary={} ranks={ranks} sequence={sequence}", self.vocabulary)
            }
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [tokens] = inputs else { return Err("takes tokens".into()) };
        if tokens.dtype != DType::U32 || tokens.shape.len() != 1 || self.vocabulary == 0 {
            return Err("tokens must be u32 [N], of a vocabulary".into());
        }
        let n = tokens.alloc[0];
        self.layout.check(n)?;
        let words = |len: usize| Spec::new([len], DType::U32);
        Ok(vec![words(n), words(n), words(self.vocabulary), words(scratch_words(n))])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, &outputs[..3])
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let tokens = cx.input_u32(0);
        let order = cx.output_u32(0).slice(0, tokens.len());
        sort(tokens, self.layout, cx.output_u32(2).slice(0, self.vocabulary), order);
        let sorted = cx.output_u32(1).slice(0, tokens.len());
        sorted.iter_mut().zip(&*order).for_each(|(sorted, &at)| *sorted = tokens[at as usize]);
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, vocabulary) = (cx.input_spec(0).alloc[0], self.vocabulary);
        let to = SortedTokens { order: cx.output(0), tokens: cx.output(1), count: 0 };
        let sorting = Sorting { n, layout: self.layout, vocabulary, owned: None };
        sorting.launch(cx.queue, cx.input(0), to, cx.output(3))?;
        let args = [to.tokens.into(), cx.output(2).into(), n.into(), vocabulary.into()];
        cx.queue.launch(kernel("find_ends", false), Grid::covering(vocabulary, DIGITS as u32), &args)
    }

    /// Covers one pass, two and three over digits, and several blocks.
    fn cases(_precision: Precision) -> Cases {
        let case = |[ranks, sequence]: [usize; 2], n: usize, vocabulary: usize, tokens: Fill| {
            let layout = RankInterleaved { ranks, sequence };
            let reference = move |i: &[Array]| {
                let tokens = &i[0].data;
                let mut order: Vec<usize> = (0..n).map(|row| layout.memory_index(row, n)).collect();
                order.sort_by(|&a, &b| tokens[a].total_cmp(&tokens[b]));
                let array = |data: Vec<f64>| Array { shape: vec![data.len()], data };
                let ends = (0..vocabulary).map(|end| tokens.iter().filter(|&&t| t <= end as f64).count());
                vec![
                    array(order.iter().map(|&position| position as f64).collect()),
                    array(order.iter().map(|&position| tokens[position]).collect()),
                    array(ends.map(|end| end as f64).collect()),
                    Array::zeros(&[0]),
                ]
            };
            let name = format!("ranks{ranks} sequence{sequence} n{n} v{vocabulary}");
            let inputs = vec![(Spec::new([n], DType::U32), tokens)];
            Case::new(name, SortTokens { layout, vocabulary }, inputs, reference).without_gradient()
        };
        let frequent = (0..3000).map(|i| f64::from(if i % 3 == 0 { 7 } else { i * i * 31 % 600 }));
        Cases::Own(vec![
            case([1, 1], 1, 1, Fill::Below(1)),
            case([1, 1], 77, 3, Fill::Below(3)),
            case([1, 1], 3000, 600, Fill::Values(frequent.collect())),
            case([1, 1], 2048, 70_000, Fill::Below(70_000)),
            case([2, 16], 256, 50, Fill::Below(50)),
            case([3, 5], 1500, 300, Fill::Below(300)),
            case([4, 8], 1024, 7, Fill::Below(7)),
        ])
    }
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

    /// Kernels give each warp of a block whole groups of 32 positions.
    #[test]
    fn chunks_cover_all_positions() {
        for n in [1, 1023, 1024, 1025, 65_536, 65_537, 262_144, 1 << 20] {
            let (chunk, blocks) = chunks(n);
            assert!(blocks <= MAX_BLOCKS && blocks * chunk >= n && (blocks - 1) * chunk < n, "{n}");
            assert!(chunk.is_multiple_of(DIGITS), "{n}");
        }
    }
}
