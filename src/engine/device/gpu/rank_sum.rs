//! The kernel that adds up what ranks have copied to one of them.

use super::{Arg, DevicePtr, Grid, Kernel};

/// Threads of a block, and neighbouring elements that one of them adds up.
const THREADS: usize = 256;
const VEC: usize = 4;

/// Elements at multiples of which sums are staged: the kernel loads as many at once.
pub const STAGING_STEP: usize = VEC;

/// Returns the kernel that replaces `out`, given as (address, elements), by its sum over ranks in their
/// order, with its launch: `out` has the values of rank `own`, and from `staged`, given as (address, elements
/// from one rank to the next), those of the others follow in their order.
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
