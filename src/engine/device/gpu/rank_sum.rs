//! The kernel that sums the data that other ranks have copied to one rank.

use super::{Arg, DevicePtr, Grid, Kernel};

/// Threads of a block, and adjacent elements that each thread sums.
const THREADS: usize = 256;
const VEC: usize = 4;

/// Staged sums begin at multiples of this many elements, because the kernel loads that many in one access.
pub const STAGING_STEP: usize = VEC;

/// Returns the kernel that replaces `out`, given as (address, elements), by its sum over ranks in rank order,
/// with its launch. `out` holds the values of rank `own`. `staged`, given as (address, elements from one rank
/// to the next), holds the values of the other ranks in their order.
pub fn rank_sum(
    out: (DevicePtr, usize),
    staged: (DevicePtr, usize),
    (ranks, own): (usize, usize),
) -> (Kernel, Grid, [Arg; 6]) {
    let kernel = Kernel::new("rank_sum", "rank_sum").with("THREADS", THREADS).with("VEC", VEC);
    let grid = Grid::new(out.1.div_ceil(THREADS * VEC), THREADS as u32);
    let args = [
        out.0.into(),
        staged.0.into(),
        Arg::U64(out.1 as u64),
        Arg::U64(staged.1 as u64),
        ranks.into(),
        own.into(),
    ];
    (kernel, grid, args)
}
