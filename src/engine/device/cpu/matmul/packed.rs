//! A right operand in the order in which the innermost loops read it, and single-threaded products with it.

use super::matrix::Matrix;
use super::microkernel::{Block, MAX_LANES, Single, Terms};
use super::operands::Operands;
use crate::device::cpu::{View, ViewMut};
use crate::device::{Elem, Real};
use std::ops::Range;

/// Number of elements summed before the loop moves to the next columns: a panel with this many rows stays in
/// the L1 cache.
pub(super) const TERMS: usize = 256;
/// The same for left operands that are read across their rows.
pub(super) const TERMS_ACROSS: usize = 128;

/// Columns of a panel in a packed operand.
pub(super) const PANEL: usize = 64;

/// A right operand `k × n`, laid out as the innermost loops read it: panels of [`PANEL`] columns (the last
/// one padded with zeros to a multiple of [`MAX_LANES`]), each with its rows one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a, T: Terms> {
    /// The instructions to multiply with.
    pub(super) arch: pulp::Arch,
    pub(super) data: &'a [T::Element],
    /// Rows, in elements.
    pub(super) k: usize,
    pub(super) n: usize,
}

/// Returns the number of elements in a packed `k × n` operand.
pub fn packed_len(k: usize, n: usize) -> usize {
    k * n.next_multiple_of(MAX_LANES)
}

/// Packs one panel of a `terms × n` right operand into the memory for the whole operand.
#[inline(always)]
pub(super) fn pack_panel<E: Elem, T: Operands<E, Sum = E::Acc>>(
    arch: pulp::Arch,
    b: Matrix<View<'_, E>>,
    (terms, n): (usize, usize),
    panel: usize,
    memory: ViewMut<'_, T::Element>,
) {
    let (first, k) = (panel * PANEL, terms.div_ceil(T::TERMS_PER_ELEMENT));
    let columns = PANEL.min(n - first);
    let to = memory.slice(first * k, k * columns.next_multiple_of(MAX_LANES));
    T::pack(arch, b.at(0, first), (terms, columns), to);
}

impl<'a, A: Real> Packed<'a, Single<A>> {
    /// Packs a `k × n` matrix into memory of at least [`packed_len`] elements, on the calling thread.
    #[inline(always)]
    pub fn new<E: Elem<Acc = A>>(
        arch: pulp::Arch,
        b: Matrix<View<'_, E>>,
        (k, n): (usize, usize),
        memory: &'a mut [A],
    ) -> Self {
        let to = ViewMut::from_slice(&mut *memory);
        for panel in 0..n.div_ceil(PANEL) {
            pack_panel::<E, Single<A>>(arch, b, (k, n), panel, to);
        }
        Self { arch, data: &memory[..packed_len(k, n)], k, n }
    }
}

impl<T: Terms> Packed<'_, T> {
    /// Computes `c = a·b`, or `c += a·b`, on the calling thread, with the rows `terms` and the `columns` of
    /// this operand. `a` and `c` begin at the first of these; columns must begin at a multiple of 16.
    pub fn multiply(
        &self,
        rows: usize,
        a: Matrix<View<'_, T::Element>>,
        terms: Range<usize>,
        columns: Range<usize>,
        c: Matrix<ViewMut<'_, T::Sum>>,
        add: bool,
    ) {
        if rows == 0 || columns.is_empty() {
            return;
        }
        if terms.is_empty() {
            if !add {
                (0..rows).for_each(|r| c.view.slice(c.at(r, 0).start, columns.len()).fill(T::Sum::ZERO));
            }
            return;
        }
        assert!(terms.end <= self.k && columns.end <= self.n && columns.start.is_multiple_of(MAX_LANES));
        assert!(c.column_stride == 1 && c.last_index(rows, columns.len()) < c.view.len());
        assert!(a.last_index(rows, terms.len()) < a.view.len());
        T::dispatch(self.arch, Multiplication { b: *self, rows, a, terms, columns, c, add });
    }
}

/// The arguments of [`Packed::multiply`], checked.
struct Multiplication<'a, 'b, T: Terms> {
    b: Packed<'a, T>,
    rows: usize,
    a: Matrix<View<'b, T::Element>>,
    terms: Range<usize>,
    columns: Range<usize>,
    c: Matrix<ViewMut<'b, T::Sum>>,
    add: bool,
}

impl<T: Terms> pulp::WithSimd for Multiplication<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        let Self { b, rows, a, terms, columns, c, add } = self;
        let a_start = a.view.slice(a.start, a.view.len() - a.start).as_ptr();
        let c_start = c.view.slice(c.start, c.view.len() - c.start).as_mut_ptr();
        let most = if a.column_stride == 1 { TERMS } else { TERMS_ACROSS };
        for at in terms.clone().step_by(most) {
            let mut column = columns.start;
            while column < columns.end {
                let panel = column / PANEL * PANEL;
                let width = (panel + PANEL).min(columns.end) - column;
                let b_row = PANEL.min(b.n - panel).next_multiple_of(MAX_LANES);
                let k = most.min(terms.end - at);
                // SAFETY: `multiply` has checked the last element that each operand has in these ranges, and
                // a panel's rows are readable up to a multiple of `MAX_LANES`. By the contract of views, a
                // tile of `c` belongs to one task.
                unsafe {
                    Block::<T> {
                        k,
                        a: a_start.add((at - terms.start) * a.column_stride),
                        a_row: a.row_stride,
                        a_column: a.column_stride,
                        b: b.data[panel * b.k + at * b_row..][..k * b_row].as_ptr().add(column - panel),
                        b_row,
                        c: c_start.add(column - columns.start),
                        c_row: c.row_stride,
                        add: add || at > terms.start,
                    }
                    .compute(simd, rows, width);
                }
                column += width;
            }
        }
    }
}
