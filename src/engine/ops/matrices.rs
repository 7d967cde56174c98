//! Matrices of one shape in the flat parameter buffers, for optimizers that treat a matrix as a whole.

use super::rank_tables::{RankTables, own};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::ir::Spec;
use std::fmt;
use std::ops::Range;

/// Threads per block of a kernel, and rounds in which each thread moves `VEC` neighbors
/// (kernels/matrices.cuh).
const THREADS: usize = 256;
const ROUNDS: usize = 4;

/// Neighboring elements that a thread moves at once if they are aligned.
const VEC: usize = 4;

/// The first elements of a matrix in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixPlace {
    /// First element in the flat buffers: gradients and the compute copy.
    pub flat: usize,
    /// First element among the masters.
    pub master: usize,
    /// First element in the optimizer's slots.
    pub slot: usize,
}

/// Matrices of one shape that are updated together. A rank updates those it owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrices {
    /// Rows, as allocated.
    pub rows: usize,
    /// Columns, as allocated.
    pub columns: usize,
    /// Number of elements in the masters.
    pub masters_len: usize,
    /// Number of elements in each optimizer slot.
    pub slot_len: usize,
    /// The matrices of each rank; a single entry if every rank updates all of them.
    pub by_rank: Vec<Vec<MatrixPlace>>,
}

impl Matrices {
    /// Returns the matrices that `rank` updates.
    pub(super) fn for_rank(&self, rank: usize) -> &[MatrixPlace] {
        own::<Vec<_>>(&self.by_rank, rank)
    }

    /// Returns the range of a buffer from the first to the last matrix of `rank`; `first` gives the first
    /// element of a matrix in that buffer.
    pub(super) fn span(&self, rank: usize, first: impl Fn(&MatrixPlace) -> usize) -> Range<usize> {
        let starts = || self.for_rank(rank).iter().map(&first);
        starts().min().unwrap_or(0)..starts().max().map_or(0, |last| last + self.size())
    }

    /// Returns the number of matrices per rank; a single number if all ranks update all of them.
    pub fn counts(&self) -> Vec<usize> {
        self.by_rank.iter().map(Vec::len).collect()
    }

    /// Returns the number of elements in a matrix.
    pub(super) fn size(&self) -> usize {
        self.rows * self.columns
    }

    /// Returns the largest number of matrices that a rank updates.
    pub(super) fn most(&self) -> usize {
        self.by_rank.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the shape of a batch of matrices: `[matrices, rows, columns]`.
    pub(super) fn batch(&self) -> [usize; 3] {
        [self.most(), self.rows, self.columns]
    }

    /// Returns true if all matrices lie within the gradients, the masters and the slots.
    pub(super) fn lies_within(&self, grads: &Spec) -> bool {
        let size = self.size();
        let ends = |place: &MatrixPlace| {
            place.flat + size <= grads.elements()
                && place.master + size <= self.masters_len
                && place.slot + size <= self.slot_len
        };
        self.by_rank.iter().flatten().all(ends)
    }

    /// Returns the number of neighbors that a kernel thread moves at once.
    fn vec(&self) -> usize {
        let starts = self.by_rank.iter().flatten().flat_map(|place| [place.flat, place.master, place.slot]);
        let aligned = starts.chain([self.size()]).all(|start| start.is_multiple_of(VEC));
        if aligned { VEC } else { 1 }
    }

    /// Returns the number of kernel blocks per matrix.
    pub(super) fn blocks(&self) -> usize {
        self.size().div_ceil(THREADS * ROUNDS * self.vec())
    }

    /// Returns the grid of a kernel over `count` matrices.
    pub(super) fn grid(&self, count: usize) -> Grid {
        Grid { blocks: [self.blocks() as u32, count as u32, 1], threads: THREADS as u32, shared: 0 }
    }

    /// Adds the places of each rank's matrices to a kernel, as the preprocessor definitions of
    /// `kernels/matrices.cuh`. They are the same for every step of a run. Also returns the table row of
    /// `rank`, a kernel argument.
    pub(super) fn define_in(&self, kernel: Kernel, rank: usize) -> (Kernel, Arg) {
        let tables = RankTables::new(&self.by_rank, rank, 3);
        let kernel = tables
            .define_rows_in(kernel)
            .with("THREADS", THREADS)
            .with("ROUNDS", ROUNDS)
            .with("MATRIX_COUNT", tables.columns())
            .with("FLAT_STARTS", tables.initializer(|place| place.flat))
            .with("MASTER_STARTS", tables.initializer(|place| place.master))
            .with("SLOT_STARTS", tables.initializer(|place| place.slot))
            .with("VEC", self.vec());
        (kernel, tables.row())
    }
}

/// Prints the number of matrices (per rank if ranks own them) and their shape: `48x[768,768]`.
impl fmt::Display for Matrices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.by_rank.iter().map(|places| places.len().to_string()).collect();
        write!(f, "{}x[{},{}]", counts.join(","), self.rows, self.columns)
    }
}
