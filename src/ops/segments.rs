//! Ranges of the flat parameter buffer with and without weight decay, for the ops of optimizers.

use crate::device::gpu::{Grid, Kernel};
use crate::error::{Error, Result};
use crate::ir::Spec;
use std::fmt;

/// Elements that one task of the CPU updates.
pub(super) const ELEMENTS_PER_TASK: usize = 16_384;

/// Elements that one block of a kernel updates (`BLOCK` of kernels/optimizer.cuh).
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
    Sharded { by_rank: Vec<Vec<Segment>>, shard_len: usize, sharded_masters: bool },
}

impl Segments {
    /// Creates the segments of an update of all parameters, which they cover.
    pub fn whole(segments: Vec<Segment>) -> Self {
        Self(Ownership::Whole(segments))
    }

    /// Creates the segments of an update by owners: those of each rank, the elements of the optimizer's
    /// slots, and whether the masters lie as these do or in the flat buffer.
    pub fn sharded(by_rank: Vec<Vec<Segment>>, shard_len: usize, sharded_masters: bool) -> Self {
        Self(Ownership::Sharded { by_rank, shard_len, sharded_masters })
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
            Ownership::Sharded { shard_len, .. } => *shard_len,
        }
    }

    /// Returns the segments of an update on a GPU.
    ///
    /// # Errors
    /// When they are sharded.
    pub(super) fn on_gpu(&self) -> Result<&[Segment]> {
        match &self.0 {
            Ownership::Whole(segments) => Ok(segments),
            Ownership::Sharded { .. } => Err(Error::failed("a sharded optimizer is not implemented on GPUs")),
        }
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
            Ownership::Sharded { by_rank, shard_len, sharded_masters } => {
                let covered = by_rank.iter().map(|segments| covered(segments)).sum();
                (covered, *shard_len, if *sharded_masters { *shard_len } else { grads.elements() })
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

/// Adds the elements at which weight decay switches on or off to a kernel, as preprocessor definitions: they
/// are the same for every step of a run.
pub(super) fn with_switches(kernel: Kernel, segments: &[Segment]) -> Kernel {
    let switches = switches(segments);
    let positions: String = switches.iter().map(|at| format!("{at}ull,")).collect();
    kernel.with("SWITCH_COUNT", switches.len()).with("SWITCH_POSITIONS", format!("{{{positions}~0ull}}"))
}

/// Returns the elements at which decay is switched on, off, on, …; before the first it is off.
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
