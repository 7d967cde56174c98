//! How stored matrices become operands of products.

use super::matrix::{Matrix, same_type, widen};
use super::microkernel::{Single, Terms};
use super::pack::pack;
use crate::device::Elem;
use crate::device::cpu::View;

/// How matrices stored as `E` become operands.
pub trait Operands<E: Elem<Acc = Self::Sum>>: Terms {
    /// Copies at most 64 columns of a right operand with `k` terms. Each row is padded to a multiple of 16
    /// elements, with zeros beyond the last column and term. `to` holds exactly these rows.
    fn pack(arch: pulp::Arch, from: Matrix<View<'_, E>>, size: (usize, usize), to: &mut [Self::Element]);

    /// Returns the matrix as a left operand if that needs no copy.
    fn in_place(from: Matrix<View<'_, E>>) -> Option<Matrix<View<'_, Self::Element>>>;

    /// Copies a left operand of `rows × terms`, with zeros beyond the last term.
    fn copy<'a>(
        from: Matrix<View<'_, E>>,
        size: (usize, usize),
        to: &'a mut [Self::Element],
    ) -> Matrix<View<'a, Self::Element>>;
}

impl<E: Elem> Operands<E> for Single<E::Acc> {
    #[inline(always)]
    fn pack(arch: pulp::Arch, from: Matrix<View<'_, E>>, size: (usize, usize), to: &mut [E::Acc]) {
        pack(arch, from, size, to);
    }
    #[inline(always)]
    fn in_place(from: Matrix<View<'_, E>>) -> Option<Matrix<View<'_, E::Acc>>> {
        same_type(from)
    }
    #[inline(always)]
    fn copy<'a>(
        from: Matrix<View<'_, E>>,
        size: (usize, usize),
        to: &'a mut [E::Acc],
    ) -> Matrix<View<'a, E::Acc>> {
        widen(from, size, to)
    }
}
