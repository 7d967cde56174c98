//! Matrix products on the CPU.
//!
//! The output is cut into tiles by its shape alone and every tile is one single-threaded product by the
//! `gemm` crate, so the bits do not depend on the number of threads. bf16 operands are widened tile by tile
//! into fp32 scratch, and a result is rounded once.

use super::{Pool, View, ViewMut};
use crate::device::{Elem, Real};

/// A matrix inside a tensor: `rows × columns`, elements `start + r·row_stride + c·column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<V> {
    /// The tensor.
    pub view: V,
    /// Element of row 0, column 0.
    pub start: usize,
    /// Elements from a row to the next.
    pub row_stride: usize,
    /// Elements from a column to the next.
    pub column_stride: usize,
}

impl<V> Matrix<V> {
    /// Creates a row-major matrix of `width` columns, from the start of a tensor.
    pub fn rows(view: V, width: usize) -> Self {
        Self { view, start: 0, row_stride: width, column_stride: 1 }
    }

    /// Returns the transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// The same matrix from an element further on.
    #[must_use]
    pub fn at(self, row: usize, column: usize) -> Self {
        Self { start: self.start + row * self.row_stride + column * self.column_stride, ..self }
    }

    fn last(&self, rows: usize, columns: usize) -> usize {
        self.start + (rows - 1) * self.row_stride + (columns - 1) * self.column_stride
    }
}

/// `c = alpha·a·b` or `c += alpha·a·b` for matrices of the accumulator type, on the calling thread.
///
/// Shapes: a `m × k`, b `k × n`, c `m × n`.
pub fn multiply<A: Real>(
    (m, n, k): (usize, usize, usize),
    alpha: A,
    a: Matrix<View<'_, A>>,
    b: Matrix<View<'_, A>>,
    c: Matrix<ViewMut<'_, A>>,
    add: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            for r in 0..m {
                for col in 0..n {
                    c.view.slice(c.at(r, col).start, 1)[0] = A::ZERO;
                }
            }
        }
        return;
    }
    assert!(a.last(m, k) < a.view.len() && b.last(k, n) < b.view.len() && c.last(m, n) < c.view.len());
    let beta = if add { A::ONE } else { A::ZERO };
    let to = |m: Matrix<View<'_, A>>| m.view.slice(m.start, m.view.len() - m.start).as_ptr();
    // SAFETY: the assertion above keeps every element of the three matrices inside its view; the output tile
    // belongs to this task by the contract of views. `gemm` calls the existing output's factor alpha, the
    // product's beta.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.view.slice(c.start, c.view.len() - c.start).as_mut_ptr(),
            c.column_stride as isize,
            c.row_stride as isize,
            add,
            to(a),
            a.column_stride as isize,
            a.row_stride as isize,
            to(b),
            b.column_stride as isize,
            b.row_stride as isize,
            beta,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Cuts an output into tiles: shape in, tile out, nothing else.
///
/// Tiles are large enough that packing the operands is a small share, and there are at least sixteen of them
/// where the output allows, so that a few threads stay busy.
pub fn tile(m: usize, n: usize) -> (usize, usize) {
    const SMALLEST: usize = 96;
    let (mut tile_m, mut tile_n) = (m.min(512), n.min(1024));
    while m.div_ceil(tile_m) * n.div_ceil(tile_n) < 16 {
        if tile_m >= tile_n && tile_m >= 2 * SMALLEST {
            tile_m = tile_m.div_ceil(2).next_multiple_of(16);
        } else if tile_n >= 2 * SMALLEST {
            tile_n = tile_n.div_ceil(2).next_multiple_of(16);
        } else {
            break;
        }
    }
    (tile_m.max(1), tile_n.max(1))
}

/// `c = alpha·a·b`, or `c += …`, over the pool. `c` is stored as `C`: the operands' type or the
/// accumulator's.
///
/// Shapes: a `m × k`, b `k × n`, c `m × n`.
pub fn product<E: Elem, C: Elem<Acc = E::Acc>>(
    pool: &Pool,
    (m, n, k): (usize, usize, usize),
    alpha: E::Acc,
    a: Matrix<View<'_, E>>,
    b: Matrix<View<'_, E>>,
    c: Matrix<ViewMut<'_, C>>,
    add: bool,
) {
    let (tile_m, tile_n) = tile(m, n);
    let across = n.div_ceil(tile_n);
    pool.run(m.div_ceil(tile_m) * across, |t| {
        let (row, column) = (t / across * tile_m, t % across * tile_n);
        let (rows, columns) = (tile_m.min(m - row), tile_n.min(n - column));
        let (a, b, c) = (a.at(row, 0), b.at(0, column), c.at(row, column));
        if let (Some(a), Some(b), Some(c)) = (same_type(a), same_type(b), same_type_mut(c)) {
            return multiply((rows, columns, k), alpha, a, b, c, add);
        }
        E::Acc::scratch().with_borrow_mut(|[a_wide, b_wide, sum]| {
            sum.resize(rows * columns, E::Acc::ZERO);
            let sum_at = Matrix::rows(ViewMut::from_slice(sum), columns);
            // Long sums go block by block, so that the widened operands stay small.
            for at in (0..k).step_by(LONGEST_WIDENED) {
                let depth = LONGEST_WIDENED.min(k - at);
                a_wide.resize(rows * depth, E::Acc::ZERO);
                b_wide.resize(depth * columns, E::Acc::ZERO);
                let a = widen(a.at(0, at), (rows, depth), a_wide);
                let b = widen(b.at(at, 0), (depth, columns), b_wide);
                multiply((rows, columns, depth), alpha, a, b, sum_at, at > 0);
            }
            for (r, row) in sum.chunks_exact(columns).enumerate() {
                for (col, value) in row.iter().enumerate() {
                    let to = &mut c.view.slice(c.at(r, col).start, 1)[0];
                    *to = C::down(if add { to.up() + *value } else { *value });
                }
            }
        });
    });
}

/// The longest run of the summed dimension that is widened at once.
const LONGEST_WIDENED: usize = 2048;

/// Returns a matrix as an operand of [`multiply`]: itself where it is stored in the accumulator type, else a
/// widened copy.
///
/// `scratch` holds `rows * columns` elements; it may be empty where [`widens`] is false.
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

/// Returns a copy of a matrix in the accumulator type, in scratch.
fn widen<'a, E: Elem>(
    from: Matrix<View<'_, E>>,
    (rows, columns): (usize, usize),
    scratch: &'a mut [E::Acc],
) -> Matrix<View<'a, E::Acc>> {
    let scratch = &mut scratch[..rows * columns];
    // Walk the source along its contiguous direction and keep the copy laid out the same way.
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

/// Returns the matrix as one of type `A`, if that is how it is stored.
fn same_type<'a, E: Elem, A: Real>(m: Matrix<View<'a, E>>) -> Option<Matrix<View<'a, A>>> {
    if std::any::TypeId::of::<E>() != std::any::TypeId::of::<A>() {
        return None;
    }
    let len = m.view.len();
    // SAFETY: E and A are the same type, so this only renames it.
    let view = unsafe { View::new(m.view.slice(0, len).as_ptr().cast::<A>(), len) };
    Some(Matrix { view, start: m.start, row_stride: m.row_stride, column_stride: m.column_stride })
}

/// As [`same_type`], for an output.
fn same_type_mut<'a, C: Elem, A: Real>(m: Matrix<ViewMut<'a, C>>) -> Option<Matrix<ViewMut<'a, A>>> {
    if std::any::TypeId::of::<C>() != std::any::TypeId::of::<A>() {
        return None;
    }
    let len = m.view.len();
    // SAFETY: C and A are the same type, so this only renames it.
    let view = unsafe { ViewMut::new(m.view.slice(0, len).as_mut_ptr().cast::<A>(), len) };
    Some(Matrix { view, start: m.start, row_stride: m.row_stride, column_stride: m.column_stride })
}
