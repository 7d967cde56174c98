//! Copies of right operands in the order in which the innermost loops read them.

use super::matrix::Matrix;
use super::microkernel::MAX_LANES;
use crate::device::cpu::view::{ROWS_AHEAD, View};
use crate::device::vectors::{SIDE, Vectors};
use crate::device::{Elem, Real};

/// Copies a matrix of `k` rows and widens it. Each row of `columns` elements is padded with zeros to a
/// multiple of [`MAX_LANES`]. `to` holds exactly these rows.
#[inline(always)]
pub fn pack<E: Elem>(
    arch: pulp::Arch,
    from: Matrix<View<'_, E>>,
    (k, columns): (usize, usize),
    to: &mut [E::Acc],
) {
    let width = columns.next_multiple_of(MAX_LANES);
    if from.column_stride == 1 {
        for (r, to) in to.chunks_exact_mut(width).enumerate() {
            from.view.prefetch(from.at(r + ROWS_AHEAD, 0).start, columns);
            from.view.load(from.at(r, 0).start, &mut to[..columns]);
            to[columns..].fill(E::Acc::ZERO);
        }
        return;
    }
    assert!(from.row_stride == 1 || k <= 1, "one direction of a matrix is contiguous");
    for first in (0..k).step_by(SIDE) {
        let rows = SIDE.min(k - first);
        for column in (0..width).step_by(SIDE) {
            let mut block = [[E::Acc::ZERO; SIDE]; SIDE];
            for (c, block) in (column..columns).zip(&mut block) {
                let start = from.at(first, c).start;
                from.view.prefetch(from.at(first, c + ROWS_AHEAD).start, SIDE);
                if rows == SIDE {
                    from.view.load(start, block);
                } else {
                    from.view.load(start, &mut block[..rows]);
                }
            }
            let block = E::Acc::transpose(arch, block);
            for (r, row) in block.iter().enumerate().take(rows) {
                to[(first + r) * width + column..][..SIDE].copy_from_slice(row);
            }
        }
    }
}
