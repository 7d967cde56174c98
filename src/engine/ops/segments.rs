//! Ranges of the flat parameter buffer with and without weight decay, for the ops of optimizers.

use super::rank_tables::{RankTables, own};
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel, Queue};
use crate::error::Result;
use crate::ir::{Precision, Shards, Spec};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Elements that one CPU task updates.
pub(crate) const ELEMENTS_PER_TASK: usize = 16_384;

/// Threads per block of a kernel, and neighboring elements that each thread updates.
const THREADS: usize = 256;
const VEC: usize = 4;

/// Elements that one block of a kernel updates.
const BLOCK: usize = THREADS * VEC;

/// A range of the flat parameter buffer with one decay setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// True if weight decay applies.
    pub decay: bool,
    /// First element in the optimizer's slots.
    pub offset: usize,
    /// First element among the masters: `start`, or its place in the shard of its rank.
    pub master: usize,
}

/// The segments that an op updates, of all parameters or of a group. Every rank updates all of them, or each
/// rank updates what it owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Segments {
    /// The segments of each rank; a single list if every rank updates the same ones.
    by_rank: Vec<Vec<Segment>>,
    /// The segments of the whole update, which `by_rank` may be a part of. Kernels contain tables of these,
    /// so that one kernel serves all parts.
    whole: Arc<Vec<Vec<Segment>>>,
    /// Elements of the flat buffers.
    pub(crate) flat_len: usize,
    masters_len: usize,
    slot_len: usize,
}

impl Segments {
    /// Creates the segments of an update of all parameters. Each range of the flat buffers comes with a flag
    /// for weight decay; the ranges follow each other from element 0.
    pub fn whole(ranges: &[(Range<usize>, bool)]) -> Self {
        let flat_len = ranges.last().map_or(0, |(range, _)| range.end);
        Self::new(ranges, &Shards::new(&[flat_len], 1, flat_len.max(1)), None, flat_len)
    }

    /// Creates the segments of an update of some ranges of the flat buffers, which have `flat_len` elements.
    /// The ranges ascend, and each comes with a flag for weight decay. `places` says which rank updates an
    /// element and where it lies in the optimizer's slots; `masters` says where it lies among the masters if
    /// they are sharded.
    pub fn new(
        ranges: &[(Range<usize>, bool)],
        places: &Shards,
        masters: Option<&Shards>,
        flat_len: usize,
    ) -> Self {
        let mut by_rank = vec![Vec::new(); places.ranks];
        for (range, decay) in ranges {
            for own in places.within(range.clone()) {
                let master = masters.and_then(|masters| masters.within(own.flat()).next());
                by_rank[own.rank].push(Segment {
                    start: own.start,
                    len: own.len,
                    decay: *decay,
                    offset: own.offset,
                    master: master.map_or(own.start, |master| master.offset),
                });
            }
        }
        let masters_len = masters.map_or(flat_len, |shards| shards.shard_len);
        let whole = Arc::new(by_rank.clone());
        Self { by_rank, whole, flat_len, masters_len, slot_len: places.shard_len }
    }

    /// Returns the part of an update within a range of the flat buffers.
    #[must_use]
    pub fn within(&self, range: &Range<usize>) -> Self {
        let clipped = |segment: &Segment| {
            let start = segment.start.max(range.start);
            let end = (segment.start + segment.len).min(range.end);
            let skipped = start - segment.start;
            (start < end).then(|| Segment {
                start,
                len: end - start,
                offset: segment.offset + skipped,
                master: segment.master + skipped,
                ..*segment
            })
        };
        let by_rank =
            self.by_rank.iter().map(|segments| segments.iter().filter_map(clipped).collect()).collect();
        Self { by_rank, ..self.clone() }
    }

    /// Returns the segments that `rank` updates.
    pub fn for_rank(&self, rank: usize) -> &[Segment] {
        own::<Vec<_>>(&self.by_rank, rank)
    }

    /// Returns true if no rank updates anything.
    pub fn is_empty(&self) -> bool {
        self.updated() == 0
    }

    /// Returns the largest number of elements that a rank updates.
    pub(crate) fn updated(&self) -> usize {
        let rank_len = |segments: &Vec<Segment>| segments.iter().map(|segment| segment.len).sum();
        self.by_rank.iter().map(rank_len).max().unwrap_or(0)
    }

    /// Returns the range of the optimizer's slots that `rank` updates. It has no gaps.
    pub(crate) fn slot_range(&self, rank: usize) -> Range<usize> {
        self.span(rank, |segment| segment.offset)
    }

    /// Returns the range of an op's output within which `rank` updates elements. The outputs are the masters,
    /// `slots` slots, and the compute copy.
    pub(crate) fn output_range(&self, output: usize, slots: usize, rank: usize) -> Range<usize> {
        self.span(rank, |segment| match output {
            0 => segment.master,
            output if output <= slots => segment.offset,
            _ => segment.start,
        })
    }

    /// Returns the range of a buffer from the first to the last segment of `rank`; `first` gives the first
    /// element of a segment in that buffer.
    fn span(&self, rank: usize, first: impl Fn(&Segment) -> usize) -> Range<usize> {
        match self.for_rank(rank) {
            [] => 0..0,
            [only] => first(only)..first(only) + only.len,
            [begin, .., end] => first(begin)..first(end) + end.len,
        }
    }

    /// Queues a kernel of `kernels/optimizer.cuh` that updates this rank's elements. After `args`, its
    /// parameters are the first element in the optimizer's slots, the end of the elements there, and the
    /// rank's row in the tables.
    ///
    /// # Errors
    /// If the queue cannot take the kernel.
    pub(crate) fn launch(&self, queue: &dyn Queue, kernel: Kernel, mut args: Vec<Arg>) -> Result<()> {
        let slots = self.slot_range(queue.rank());
        if slots.is_empty() {
            return Ok(());
        }
        let (kernel, row) = self.define_in(kernel, queue.rank());
        args.extend([Arg::U64(slots.start as u64), Arg::U64(slots.end as u64), row]);
        queue.launch(kernel, Grid::new(slots.len().div_ceil(BLOCK), THREADS as u32), &args)
    }

    /// Adds preprocessor definitions to a kernel: the elements at which weight decay switches on or off, and
    /// the places of each rank's slot elements in the flat buffers and among the masters. They are the same
    /// for every part of an update. Also returns the table row of `rank`.
    fn define_in(&self, kernel: Kernel, rank: usize) -> (Kernel, Arg) {
        let switches = switches(&self.whole);
        let mut pieces: Vec<_> = self.whole.iter().map(|segments| pieces(segments)).collect();
        if pieces.iter().flatten().all(|piece| (piece.offset, piece.master) == (piece.start, piece.start)) {
            pieces.clear();
        }
        let begins_block = |segment: &Segment| segment.offset.is_multiple_of(BLOCK);
        let begin_grids = self.by_rank.iter().filter_map(|segments| segments.first());
        let whole_blocks = pieces.is_empty() || pieces.iter().flatten().chain(begin_grids).all(begins_block);
        let tables = RankTables::new(&pieces, rank, 3);
        let kernel = kernel
            .with("THREADS", THREADS)
            .with("VEC", VEC)
            .with("SWITCH_COUNT", switches.len())
            .with("SWITCH_POSITIONS", table(&switches))
            .with("RANGE_MASTERS", tables.initializer(|piece| piece.master))
            .with("WHOLE_BLOCKS", u8::from(whole_blocks));
        (tables.define_ranges_in(kernel, |piece| (piece.offset, piece.start)), tables.row())
    }

    /// Returns the specs of the masters and of one optimizer slot in the format of the masters.
    pub(crate) fn masters_and_slot(&self, master: DType) -> (Spec, Spec) {
        (Spec::new([self.masters_len], master), Spec::new([self.slot_len], master))
    }
}

/// Prints the number of segments, per rank if they are sharded.
impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.by_rank.iter().map(|s| s.len().to_string()).collect();
        write!(f, "{}", counts.join(","))
    }
}

/// Returns numbers as the initializer of a kernel's array, followed by a sentinel beyond all elements.
fn table(numbers: &[usize]) -> String {
    let numbers: String = numbers.iter().map(|number| format!("{number}ull,")).collect();
    format!("{{{numbers}~0ull}}")
}

/// The elements that a test case updates, each by its index in the flat buffers, among the masters, and in
/// the optimizer's slots.
pub(crate) type Places = Vec<(usize, usize, usize)>;

/// Returns an update of all elements in a test case.
pub(crate) fn whole_case(ranges: &[(Range<usize>, bool)]) -> (Segments, Places) {
    let segments = Segments::whole(ranges);
    let places = (0..segments.flat_len).map(|i| (i, i, i)).collect();
    (segments, places)
}

/// Returns what rank 0 of two updates in a test case, from element `from` of the flat buffers on, for ranges
/// as [`Segments::whole`] takes them. Rank 0 owns blocks 0, 3 and 4 of 4096 elements; the last one is short.
pub(crate) fn owner_case(
    ranges: &[(Range<usize>, bool)],
    from: usize,
    precision: Precision,
) -> (Segments, Places) {
    let flat_len = ranges.last().map_or(0, |(range, _)| range.end);
    let shards = Shards::new(&[4096, flat_len], 2, 4096);
    let masters = precision.has_compute_copy().then_some(&shards);
    let owned = shards.for_rank(0).flat_map(|range| range.flat().zip(range.offset..));
    let owned = owned.filter(|(flat, _)| *flat >= from);
    let places =
        owned.map(|(flat, slot)| (flat, if masters.is_some() { slot } else { flat }, slot)).collect();
    (Segments::new(ranges, &shards, masters, flat_len).within(&(from..flat_len)), places)
}

/// Joins segments that follow each other in every buffer, whether they decay or not.
fn pieces(segments: &[Segment]) -> Vec<Segment> {
    let mut pieces: Vec<Segment> = Vec::new();
    for segment in segments.iter().filter(|s| s.len > 0) {
        match pieces.last_mut() {
            Some(last)
                if [last.start, last.offset, last.master].map(|first| first + last.len)
                    == [segment.start, segment.offset, segment.master] =>
            {
                last.len += segment.len;
            }
            _ => pieces.push(*segment),
        }
    }
    pieces
}

/// Returns the elements of the flat buffer at which decay switches on, off, on, and so on. It is off before
/// the first. Elements outside the segments of all ranks do not matter.
fn switches(by_rank: &[Vec<Segment>]) -> Vec<usize> {
    let mut segments: Vec<_> = by_rank.iter().flatten().filter(|s| s.len > 0).collect();
    segments.sort_unstable_by_key(|segment| segment.start);
    let mut decays = false;
    let mut switches = Vec::new();
    for segment in segments {
        if segment.decay != decays {
            switches.push(segment.start);
        }
        decays = segment.decay;
    }
    switches
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 40_000;

    /// Returns an update of three ranges, owned in blocks by three ranks, and its parts before and after an
    /// element.
    fn update(masters_are_sharded: bool) -> [Segments; 3] {
        let shards = Shards::new(&[9 * BLOCK, LEN], 3, 2 * BLOCK);
        let ranges = [(0..5000, true), (5000..31_000, false), (31_000..LEN, true)];
        let all = Segments::new(&ranges, &shards, masters_are_sharded.then_some(&shards), LEN);
        let parts = [0..9 * BLOCK, 9 * BLOCK..LEN].map(|range| all.within(&range));
        let [before, after] = parts;
        [all, before, after]
    }

    #[test]
    fn a_kernel_serves_all_ranks_and_all_parts_of_an_update() {
        let kernel = |segments: &Segments, rank| segments.define_in(Kernel::new("sgd", "sgd"), rank);
        for masters_are_sharded in [false, true] {
            let parts = update(masters_are_sharded);
            let (first, _) = kernel(&parts[0], 0);
            for (part, rank) in parts.iter().flat_map(|part| (0..3).map(move |rank| (part, rank))) {
                assert_eq!(kernel(part, rank), (first.clone(), Arg::Size(rank)));
            }
        }
    }

    #[test]
    fn a_grid_that_begins_within_a_block_looks_every_element_up() {
        let [all, ..] = update(true);
        let whole_blocks = |segments: &Segments| {
            let (kernel, _) = segments.define_in(Kernel::new("sgd", "sgd"), 0);
            kernel.defines.iter().any(|define| *define == ("WHOLE_BLOCKS", "1".to_owned()))
        };
        assert!(whole_blocks(&all));
        assert!(!whole_blocks(&all.within(&(BLOCK / 2..LEN))));
    }

    /// Looks elements up as kernels/optimizer.cuh does.
    #[test]
    fn tables_lead_every_element_to_its_place_and_decay() {
        for (segments, rank) in update(true).iter().flat_map(|part| (0..3).map(move |rank| (part, rank))) {
            let switches = switches(&segments.whole);
            let row = pieces(&segments.whole[rank]);
            for segment in segments.for_rank(rank) {
                for i in 0..segment.len {
                    let (at, flat) = (segment.offset + i, segment.start + i);
                    let piece = row[row.partition_point(|piece| piece.offset <= at) - 1];
                    let place = [piece.start, piece.master].map(|first| first + at - piece.offset);
                    assert_eq!(place, [flat, segment.master + i]);
                    let passed = switches.partition_point(|&switch| switch <= flat);
                    assert_eq!(passed % 2 == 1, segment.decay, "element {flat}");
                }
            }
        }
    }
}
