//! Matrices inside tensors, and copies of them in the accumulator type.

use crate::device::Elem;
use crate::device::cpu::{View, ViewMut};

/// A matrix inside a tensor. Element `(r, c)` is at `start + r·row_stride + c·column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<V> {
    /// The tensor.
    pub view: V,
    /// Index of the element in row 0, column 0.
    pub start: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub column_stride: usize,
}

impl<V> Matrix<V> {
    /// Creates a row-major matrix of `width` columns that begins at the start of a tensor.
    pub fn rows(view: V, width: usize) -> Self {
        Self { view, start: 0, row_stride: width, column_stride: 1 }
    }

    /// Returns the transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// Returns the part of the matrix that begins at `(row, column)`.
    #[must_use]
    pub fn at(self, row: usize, column: usize) -> Self {
        Self { start: self.start + row * self.row_stride + column * self.column_stride, ..self }
    }

    /// Returns the index of the last element in the first `rows` rows and `columns` columns. Both must be
    /// positive.
    pub(super) fn last_index(&self, rows: usize, columns: usize) -> usize {
        self.start + (rows - 1) * self.row_stride + (columns - 1) * self.column_stride
    }
}

/// Returns a matrix as a left operand of [`Packed::multiply`](super::Packed::multiply): the matrix itself if
/// it is stored in the accumulator type, else a widened copy.
///
/// `scratch` holds `rows * columns` elements; it may be empty if [`widens`] is false.
#[inline(always)]
pub fn operand<'a, E: Elem>(
    from: Matrix<View<'a, E>>,
    size: (usize, usize),
    scratch: &'a mut [E::Acc],
) -> Matrix<View<'a, E::Acc>> {
    match same_type(from) {
        Some(matrix) => matrix,
        None => widen(from, size, scratch),
    }
}

/// Returns true if [`operand`] copies matrices stored as `E`.
pub fn widens<E: Elem>() -> bool {
    E::DTYPE != E::Acc::DTYPE
}

/// Returns a copy of a matrix in the accumulator type, stored in `scratch`.
#[inline(always)]
pub(super) fn widen<'a, E: Elem>(
    from: Matrix<View<'_, E>>,
    (rows, columns): (usize, usize),
    scratch: &'a mut [E::Acc],
) -> Matrix<View<'a, E::Acc>> {
    let scratch = &mut scratch[..rows * columns];
    // Walk the source along its contiguous direction and lay out the copy the same way.
    if from.column_stride == 1 {
        for r in 0..rows {
            from.view.load(from.at(r, 0).start, &mut scratch[r * columns..(r + 1) * columns]);
        }
        Matrix::rows(View::from_slice(scratch), columns)
    } else {
        assert_eq!(from.row_stride, 1, "one direction of a matrix is contiguous");
        for c in 0..columns {
            from.view.load(from.at(0, c).start, &mut scratch[c * rows..(c + 1) * rows]);
        }
        Matrix::rows(View::from_slice(scratch), rows).t()
    }
}

/// Returns the matrix typed as `A`, if it is stored as `A`.
pub(super) fn same_type<'a, E: Elem, A: Elem>(m: Matrix<View<'a, E>>) -> Option<Matrix<View<'a, A>>> {
    if std::any::TypeId::of::<E>() != std::any::TypeId::of::<A>() {
        return None;
    }
    let len = m.view.len();
    // SAFETY: E and A are the same type, so this only renames it.
    let view = unsafe { View::new(m.view.slice(0, len).as_ptr().cast::<A>(), len) };
    Some(Matrix { view, start: m.start, row_stride: m.row_stride, column_stride: m.column_stride })
}

/// Does the same as [`same_type`] for an output.
pub(super) fn same_type_mut<'a, C: Elem, A: Elem>(
    m: Matrix<ViewMut<'a, C>>,
) -> Option<Matrix<ViewMut<'a, A>>> {
    if std::any::TypeId::of::<C>() != std::any::TypeId::of::<A>() {
        return None;
    }
    let len = m.view.len();
    // SAFETY: C and A are the same type, so this only renames it.
    let view = unsafe { ViewMut::new(m.view.slice(0, len).as_mut_ptr().cast::<A>(), len) };
    Some(Matrix { view, start: m.start, row_stride: m.row_stride, column_stride: m.column_stride })
}
