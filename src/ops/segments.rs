//! Ranges of the flat parameter buffer with and without weight decay, for the ops of optimizers.

use crate::device::gpu::{Grid, Kernel};

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
}

/// Returns the number of elements that the segments cover.
pub(super) fn covered(segments: &[Segment]) -> usize {
    segments.iter().map(|s| s.len).sum()
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
