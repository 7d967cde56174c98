//! Ranges of the flat parameter buffer with and without weight decay, for the ops of optimizers.

use super::rank_tables::RankTables;
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel, Queue};
use crate::error::Result;
use crate::ir::{Precision, Shards, Spec};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Elements that one task of the CPU updates.
pub(crate) const ELEMENTS_PER_TASK: usize = 16_384;

/// Threads of a block of a kernel, and neighbours that each of them updates.
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
    /// First element among the masters: `start`, or where it lies in the shard of its rank.
    pub master: usize,
}

/// The segments that an op updates: those of all parameters or of a group, on every rank or by owners.
#[derive(Clone, Debug, PartialEq)]
pub struct Segments {
    /// Those of each rank; one list where every rank updates the same.
    by_rank: Vec<Vec<Segment>>,
    /// Those of the whole update where these are a part of it: kernels have tables of them, and are the same
    /// for all parts.
    whole: Arc<Vec<Vec<Segment>>>,
    flat_len: usize,
    masters_len: usize,
    slot_len: usize,
}

impl Segments {
    /// Creates the segments of an update of all parameters, each given by its elements in the flat buffers
    /// and whether they decay. They follow each other from element 0.
    pub fn whole(ranges: &[(Range<usize>, bool)]) -> Self {
        let flat_len = ranges.last().map_or(0, |(range, _)| range.end);
        Self::new(ranges, &Shards::new(&[flat_len], 1, flat_len.max(1)), None, flat_len)
    }

    /// Creates the segments of an update of ranges of the flat buffers of `flat_len` elements, ascending,
    /// each with whether it decays: from where their elements lie in the optimizer's slots, on each rank that
    /// updates them, and where among the masters, if those are sharded.
    pub fn new(
        ranges: &[(Range<usize>, bool)],
        places: &Shards,
        masters: Option<&Shards>,
        flat_len: usize,
    ) -> Self {
        let mut by_rank = vec![Vec::new(); places.ranks()];
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
        let masters_len = masters.map_or(flat_len, Shards::shard_len);
        let whole = Arc::new(by_rank.clone());
        Self { by_rank, whole, flat_len, masters_len, slot_len: places.shard_len() }
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

    /// Returns the segments that a rank updates.
    pub fn of_rank(&self, rank: usize) -> &[Segment] {
        match self.by_rank.as_slice() {
            [all] => all,
            by_rank => &by_rank[rank],
        }
    }

    /// Returns true if no rank updates anything.
    pub fn is_empty(&self) -> bool {
        self.updated() == 0
    }

    /// Returns the elements that a rank updates at most.
    pub(crate) fn updated(&self) -> usize {
        let of_rank = |segments: &Vec<Segment>| segments.iter().map(|segment| segment.len).sum();
        self.by_rank.iter().map(of_rank).max().unwrap_or(0)
    }

    /// Returns the elements of the optimizer's slots that a rank updates, which follow each other.
    pub(crate) fn slots_of(&self, rank: usize) -> Range<usize> {
        self.span(rank, |segment| segment.offset)
    }

    /// Returns the elements of an output of an optimizer's op between which a rank updates some. Outputs are
    /// the masters, `slots` slots, and the compute copy.
    pub(crate) fn output_range(&self, output: usize, slots: usize, rank: usize) -> Range<usize> {
        self.span(rank, |segment| match output {
            0 => segment.master,
            output if output <= slots => segment.offset,
            _ => segment.start,
        })
    }

    /// Returns the elements from the first to the last segment of a rank in a buffer, where a segment begins
    /// at `first`.
    fn span(&self, rank: usize, first: impl Fn(&Segment) -> usize) -> Range<usize> {
        match self.of_rank(rank) {
            [] => 0..0,
            [only] => first(only)..first(only) + only.len,
            [begin, .., end] => first(begin)..first(end) + end.len,
        }
    }

    /// Queues a kernel of `kernels/optimizer.cuh` that updates what a rank updates. Its last parameters, after
    /// `args`, are the first of the optimizer's slots, the end of them, and the row of the rank in tables.
    ///
    /// # Errors
    /// When the queue takes no more.
    pub(crate) fn launch(&self, queue: &dyn Queue, kernel: Kernel, mut args: Vec<Arg>) -> Result<()> {
        let slots = self.slots_of(queue.rank());
        if slots.is_empty() {
            return Ok(());
        }
        let (kernel, row) = self.define_in(kernel, queue.rank());
        args.extend([Arg::U64(slots.start as u64), Arg::U64(slots.end as u64), row]);
        queue.launch(kernel, Grid::new(slots.len().div_ceil(BLOCK), THREADS as u32), &args)
    }

    /// Adds the elements at which weight decay switches on or off to a kernel, and where elements of each
    /// rank's slots lie in the flat buffers and among the masters, for every part of an update, as
    /// preprocessor definitions. Returns the row of a rank too.
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

    /// Returns the specs of the masters, and of one of the optimizer's slots, for gradients of all
    /// parameters; `None` unless there are as many.
    pub(crate) fn masters_and_slot(&self, grads: &Spec) -> Option<(Spec, Spec)> {
        let spec = |len: usize| Spec::new([len], grads.dtype);
        (self.flat_len == grads.elements()).then(|| (spec(self.masters_len), spec(self.slot_len)))
    }
}

/// Prints the number of segments, of each rank where they are sharded.
impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.by_rank.iter().map(|s| s.len().to_string()).collect();
        write!(f, "{}", counts.join(","))
    }
}

/// Checks the inputs of an optimizer's op, (grads, schedule, step, clip, bad), of which a row of the schedule
/// has `schedule_width` numbers. Returns the gradients.
pub(crate) fn update_inputs(
    inputs: &[Spec],
    precision: Precision,
    schedule_width: usize,
) -> Result<&Spec, String> {
    let [grads, schedule, step, clip, bad] = inputs else {
        return Err("takes grads, schedule, step, clip, bad".into());
    };
    let master = precision.master;
    if grads.dtype != master || schedule.width() != schedule_width || clip.dtype != master {
        return Err("grads, schedule and clip are in the master format".into());
    }
    if step.dtype != DType::U32 || bad.dtype != DType::U32 {
        return Err("step and bad are u32".into());
    }
    Ok(grads)
}

/// Returns numbers as the initializer of an array of a kernel, with a sentinel beyond all elements.
fn table(numbers: &[usize]) -> String {
    let numbers: String = numbers.iter().map(|number| format!("{number}ull,")).collect();
    format!("{{{numbers}~0ull}}")
}

/// The elements that a test case updates, each by its place in the flat buffers, among the masters, and in
/// the optimizer's slots.
pub(crate) type Places = Vec<(usize, usize, usize)>;

/// Returns what rank 0 of two updates in a test case from element `from` of the flat buffers on, of ranges as
/// those of [`Segments::whole`]. It owns blocks 0, 3 and 4 of 4096 elements, of which the last is short.
pub(crate) fn case_of_owner(
    ranges: &[(Range<usize>, bool)],
    from: usize,
    precision: Precision,
) -> (Segments, Places) {
    let flat_len = ranges.last().map_or(0, |(range, _)| range.end);
    let shards = Shards::new(&[4096, flat_len], 2, 4096);
    let masters = precision.has_compute_copy().then_some(&shards);
    let owned = shards.of_rank(0).flat_map(|range| range.flat().zip(range.offset..));
    let owned = owned.filter(|(flat, _)| *flat >= from);
    let places =
        owned.map(|(flat, slot)| (flat, if masters.is_some() { slot } else { flat }, slot)).collect();
    (Segments::new(ranges, &shards, masters, flat_len).within(&(from..flat_len)), places)
}

/// Returns segments with those joined that follow each other everywhere, whether they decay or not.
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

/// Returns the elements of the flat buffer at which decay is switched on, off, on, …; before the first it is
/// off. What lies between the segments of all ranks is of no account.
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

    /// An update of three ranges, owned by three ranks in blocks, with its parts before and after an element.
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
            for segment in segments.of_rank(rank) {
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
