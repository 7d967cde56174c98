//! Ranges of the flat parameter buffer with and without weight decay, for the ops of optimizers.

use crate::device::gpu::{Grid, Kernel};
use crate::ir::{Shards, Spec};
use std::fmt;
use std::sync::Arc;

/// Elements that one task of the CPU updates.
pub(super) const ELEMENTS_PER_TASK: usize = 16_384;

/// Elements that one block of a kernel updates (`BLOCK` of kernels/optimizer.cuh). Ranges that ranks own
/// begin at multiples of it.
const BLOCK: usize = 1024;

/// Threads of that block.
const THREADS: u32 = 256;

/// A range of the flat parameter buffer with one decay setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// True if weight decay applies.
    pub decay: bool,
    /// First element in the optimizer's slots: `start`, or where it lies in the shard of its rank.
    pub offset: usize,
}

/// The segments that an op updates.
#[derive(Clone, Debug)]
pub struct Segments(Ownership);

#[derive(Clone, Debug)]
enum Ownership {
    /// All parameters, on every rank.
    Whole(Vec<Segment>),
    /// Those that a rank owns, for each rank.
    Sharded { by_rank: Vec<Vec<Segment>>, shards: Arc<Shards>, sharded_masters: bool },
}

impl Segments {
    /// Creates the segments of an update of all parameters, which they cover.
    pub fn whole(segments: Vec<Segment>) -> Self {
        Self(Ownership::Whole(segments))
    }

    /// Creates the segments of an update by owners from those of all parameters, the ranges that ranks own,
    /// and whether the masters lie as the optimizer's slots do or in the flat buffer.
    pub fn sharded(segments: &[Segment], shards: Arc<Shards>, sharded_masters: bool) -> Self {
        let mut by_rank = vec![Vec::new(); shards.ranks()];
        for segment in segments {
            for owned in shards.within(segment.start..segment.start + segment.len) {
                let own = Segment { start: owned.start, len: owned.len, offset: owned.offset, ..*segment };
                by_rank[owned.rank].push(own);
            }
        }
        Self(Ownership::Sharded { by_rank, shards, sharded_masters })
    }

    /// Returns the segments that a rank updates.
    pub(super) fn of_rank(&self, rank: usize) -> &[Segment] {
        match &self.0 {
            Ownership::Whole(segments) => segments,
            Ownership::Sharded { by_rank, .. } => &by_rank[rank],
        }
    }

    /// Returns the elements that a rank updates at most.
    pub(super) fn updated(&self) -> usize {
        match &self.0 {
            Ownership::Whole(segments) => segments.iter().map(|s| s.len).sum(),
            Ownership::Sharded { shards, .. } => shards.shard_len(),
        }
    }

    /// Returns the elements of the optimizer's slots that a rank updates.
    pub(super) fn updated_by(&self, rank: usize) -> usize {
        self.of_rank(rank).iter().map(|segment| segment.len).sum()
    }

    /// Adds what a rank updates to a kernel, as preprocessor definitions, which are the same for every step
    /// of a run: the elements at which weight decay switches on or off, and where shards lie.
    pub(super) fn define_in(&self, kernel: Kernel, rank: usize) -> Kernel {
        let switches = switches(self.of_rank(rank));
        let positions: String = switches.iter().map(|at| format!("{at}ull,")).collect();
        let kernel = kernel
            .with("SWITCH_COUNT", switches.len())
            .with("SWITCH_POSITIONS", format!("{{{positions}~0ull}}"));
        let (kernel, sharded_masters) = match &self.0 {
            Ownership::Whole(_) => (with_ranges(kernel, None), false),
            Ownership::Sharded { shards, sharded_masters, .. } => {
                (with_ranges(kernel, Some((shards, rank))), *sharded_masters)
            }
        };
        kernel.with("SHARDED_MASTERS", u8::from(sharded_masters))
    }

    /// Returns the first element of a segment among the masters.
    pub(super) fn master_at(&self, segment: &Segment) -> usize {
        match &self.0 {
            Ownership::Sharded { sharded_masters: true, .. } => segment.offset,
            _ => segment.start,
        }
    }

    /// Returns the specs of the masters, and of one of the optimizer's slots, for gradients of all
    /// parameters; `None` unless the segments of all ranks together are as many elements.
    pub(super) fn masters_and_slot(&self, grads: &Spec) -> Option<(Spec, Spec)> {
        let covered = |segments: &[Segment]| segments.iter().map(|s| s.len).sum::<usize>();
        let (covered, slot, masters) = match &self.0 {
            Ownership::Whole(segments) => (covered(segments), grads.elements(), grads.elements()),
            Ownership::Sharded { by_rank, shards, sharded_masters } => {
                let shard_len = shards.shard_len();
                let covered = by_rank.iter().map(|segments| covered(segments)).sum();
                (covered, shard_len, if *sharded_masters { shard_len } else { grads.elements() })
            }
        };
        let spec = |len: usize| Spec::new([len], grads.dtype);
        (covered == grads.elements()).then(|| (spec(masters), spec(slot)))
    }
}

/// Prints the number of segments, of each rank where they are sharded.
impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ownership::Whole(segments) => write!(f, "{}", segments.len()),
            Ownership::Sharded { by_rank, .. } => {
                let counts: Vec<String> = by_rank.iter().map(|s| s.len().to_string()).collect();
                write!(f, "{}", counts.join(","))
            }
        }
    }
}

/// Returns the grid of a kernel that updates `elements` elements.
pub(super) fn grid(elements: usize) -> Grid {
    Grid::new(elements.div_ceil(BLOCK), THREADS)
}

/// Adds the ranges that a rank owns to a kernel, as the preprocessor definitions of `kernels/ranges.cuh`; a
/// single range from element 0 on where ranks own nothing apart.
pub(super) fn with_ranges(kernel: Kernel, shards: Option<(&Shards, usize)>) -> Kernel {
    let (mut offsets, mut starts, mut count) = (String::new(), String::new(), 0);
    for range in shards.iter().flat_map(|(shards, rank)| shards.of_rank(*rank)) {
        offsets += &format!("{}ull,", range.offset);
        starts += &format!("{}ull,", range.start);
        count += 1;
    }
    kernel
        .with("RANGE_COUNT", count)
        .with("RANGE_OFFSETS", format!("{{{offsets}~0ull}}"))
        .with("RANGE_STARTS", format!("{{{starts}~0ull}}"))
}

/// Returns the elements of the flat buffer at which decay is switched on, off, on, …; before the first it is
/// off. What lies between the segments of a rank is of no account.
fn switches(segments: &[Segment]) -> Vec<usize> {
    let mut decays = false;
    let mut switches = Vec::new();
    for segment in segments.iter().filter(|s| s.len > 0) {
        if segment.decay != decays {
            switches.push(segment.start);
        }
        decays = segment.decay;
    }
    switches
}
