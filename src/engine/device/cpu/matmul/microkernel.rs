//! The innermost loops of matrix products: a block of the result in vector registers.
//!
//! Every element of a result is one chain of fused multiply-adds over the summed dimension, in order, for any
//! tile, vector width and number of threads. So its bits depend on none of them.

use crate::device::Real;
use crate::device::cpu::view::prefetch;
use crate::device::vectors::Vectors;
use pulp::{Simd, WithSimd};
use std::marker::PhantomData;

/// Rows of the largest block of results in registers. With 4 vectors of columns on machines with 32 vector
/// registers (2 with 16), 24 (12) independent sums hide the latency of the multiply-adds.
pub const ROWS: usize = 6;

/// How the terms of a sum are stored in operands and added: one term per element, or several.
pub trait Terms: Copy + std::fmt::Debug + 'static {
    /// The stored form of [`Terms::TERMS_PER_ELEMENT`] terms of one row or column.
    type Element: bytemuck::Pod + Send + Sync;
    /// The type of sums, with the size of an element.
    type Sum: Real;
    /// Number of terms in an element.
    const TERMS_PER_ELEMENT: usize;
    /// A vector of elements.
    type Vector<S: Simd>: Copy;
    /// Returns a vector with `element` in every lane.
    fn splat<S: Simd>(simd: S, element: Self::Element) -> Self::Vector<S>;
    /// Adds the products of the terms to every lane, one after the other, each with one rounding.
    fn multiply_add<S: Simd>(
        simd: S,
        left: Self::Vector<S>,
        right: Self::Vector<S>,
        sum: SumVector<Self, S>,
    ) -> SumVector<Self, S>;
    /// Calls `task` with the instructions that this type needs.
    fn dispatch(arch: pulp::Arch, task: impl WithSimd<Output = ()>) {
        arch.dispatch(task);
    }
}

/// A vector of sums.
type SumVector<T, S> = <<T as Terms>::Sum as Vectors>::Vector<S>;

/// Terms of type `A`, one per element.
#[derive(Clone, Copy, Debug)]
pub struct Single<A>(PhantomData<A>);

impl<A: Real> Terms for Single<A> {
    type Element = A;
    type Sum = A;
    const TERMS_PER_ELEMENT: usize = 1;
    type Vector<S: Simd> = A::Vector<S>;
    #[inline(always)]
    fn splat<S: Simd>(simd: S, element: A) -> A::Vector<S> {
        A::splat(simd, element)
    }
    #[inline(always)]
    fn multiply_add<S: Simd>(
        simd: S,
        left: A::Vector<S>,
        right: A::Vector<S>,
        sum: A::Vector<S>,
    ) -> A::Vector<S> {
        A::multiply_add(simd, left, right, sum)
    }
}

/// The operands of a block: `c (+)= a · b`, with `k` elements per sum.
pub struct Block<T: Terms> {
    /// Number of elements in every sum.
    pub k: usize,
    /// Element (0, 0) of the left operand.
    pub a: *const T::Element,
    /// Elements from one row of `a` to the next.
    pub a_row: usize,
    /// Elements from one column of `a` to the next.
    pub a_column: usize,
    /// Element (0, 0) of the right operand, whose columns are adjacent.
    pub b: *const T::Element,
    /// Elements from one row of `b` to the next.
    pub b_row: usize,
    /// Element (0, 0) of the result, whose columns are adjacent.
    pub c: *mut T::Sum,
    /// Elements from one row of `c` to the next.
    pub c_row: usize,
    /// True if sums start from the contents of `c`.
    pub add: bool,
}

impl<T: Terms> Block<T> {
    /// Computes a block of `rows × columns` results.
    ///
    /// # Safety
    /// The strides must stay inside the operands for `rows` rows, `k` terms and, in `c`, `columns` columns.
    /// Each row of `b` must be readable up to `columns` rounded up to a multiple of [`MAX_LANES`].
    #[inline(always)]
    pub unsafe fn compute<S: Simd>(&self, simd: S, rows: usize, columns: usize) {
        const {
            assert!(size_of::<T::Element>() == size_of::<T::Sum>());
            assert!(size_of::<T::Vector<S>>() == size_of::<SumVector<T, S>>());
            assert!(MAX_LANES.is_multiple_of(size_of::<T::Vector<S>>() / size_of::<T::Sum>()));
        }
        let lanes = size_of::<T::Vector<S>>() / size_of::<T::Sum>();
        let vectors = if S::REGISTER_COUNT >= 32 { 4 } else { 2 };
        let mut column = 0;
        while column < columns {
            let rest = (columns - column).div_ceil(lanes);
            // SAFETY: guaranteed by the caller; `strip` writes no column beyond `columns`.
            let done = unsafe {
                if rest >= 4 && vectors == 4 {
                    self.strip::<S, 4>(simd, rows, column, columns)
                } else if rest >= 2 {
                    self.strip::<S, 2>(simd, rows, column, columns)
                } else {
                    self.strip::<S, 1>(simd, rows, column, columns)
                }
            };
            column += done * lanes;
        }
    }

    /// Computes all rows of `V` vectors of columns and returns `V`.
    ///
    /// # Safety
    /// The requirements of [`Block::compute`].
    #[inline(always)]
    unsafe fn strip<S: Simd, const V: usize>(
        &self,
        simd: S,
        rows: usize,
        column: usize,
        columns: usize,
    ) -> usize {
        let mut row = 0;
        while row < rows {
            let at = (row, column);
            let width = columns - column;
            // SAFETY: guaranteed by the caller.
            row += unsafe {
                match rows - row {
                    ROWS.. => self.registers::<S, ROWS, V>(simd, at, width),
                    4..ROWS => self.registers::<S, 4, V>(simd, at, width),
                    2..4 => self.registers::<S, 2, V>(simd, at, width),
                    _ => self.registers::<S, 1, V>(simd, at, width),
                }
            };
        }
        V
    }

    /// Computes `R` rows of `V` vectors, stores the first `width` columns, and returns `R`.
    ///
    /// # Safety
    /// The requirements of [`Block::compute`].
    #[inline(always)]
    unsafe fn registers<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        (row, column): (usize, usize),
        width: usize,
    ) -> usize {
        let lanes = size_of::<T::Vector<S>>() / size_of::<T::Sum>();
        let zero = T::Sum::splat(simd, T::Sum::ZERO);
        let mut sums = [[zero; V]; R];
        // The last columns pass through `edge`, a row of whole vectors, so that nothing outside `c` is
        // touched. The sums themselves are never addressed, because that would keep them out of registers.
        let whole = width >= V * lanes;
        let mut edge = [zero; V];
        // SAFETY: the caller keeps every access inside the operands. A row of results is read and written as
        // vectors if all its columns exist, else through `edge`.
        unsafe {
            let c = |r: usize| self.c.add((row + r) * self.c_row + column);
            if self.add {
                for (r, sums) in sums.iter_mut().enumerate() {
                    if whole {
                        load(sums, c(r));
                    } else {
                        std::ptr::copy_nonoverlapping(c(r), edge.as_mut_ptr().cast::<T::Sum>(), width);
                        *sums = edge;
                    }
                }
            }
            let mut a = [self.a; R];
            for (r, a) in a.iter_mut().enumerate() {
                *a = self.a.add((row + r) * self.a_row);
            }
            let mut b = self.b.add(column);
            let mut right = [T::splat(simd, bytemuck::Zeroable::zeroed()); V];
            for element in 0..self.k {
                load(&mut right, b);
                prefetch(a[0].wrapping_add((element + PREFETCH_AHEAD) * self.a_column));
                // Index the arrays: where the compiler does not inline `zip`, as in test builds, it is a
                // call, and a call moves every sum to memory.
                for r in 0..R {
                    let left = T::splat(simd, *a[r].add(element * self.a_column));
                    for v in 0..V {
                        sums[r][v] = T::multiply_add(simd, left, right[v], sums[r][v]);
                    }
                }
                b = b.add(self.b_row);
            }
            for (r, sums) in sums.iter().enumerate() {
                if whole {
                    for (v, sum) in sums.iter().enumerate() {
                        c(r).cast::<SumVector<T, S>>().add(v).write_unaligned(*sum);
                    }
                } else {
                    edge = *sums;
                    std::ptr::copy_nonoverlapping(edge.as_ptr().cast::<T::Sum>(), c(r), width);
                }
            }
        }
        R
    }
}

/// How many elements ahead the left operand is prefetched: one of its columns may be a row of a tensor, which
/// hardware prefetchers do not detect.
const PREFETCH_AHEAD: usize = 32;

/// Elements in the widest vector. Rows of right operands are readable up to a multiple of it.
pub const MAX_LANES: usize = 16;

/// Reads adjacent vectors.
///
/// # Safety
/// `V` vectors at `from` must be readable.
#[inline(always)]
unsafe fn load<A, W: Copy, const V: usize>(to: &mut [W; V], from: *const A) {
    for (v, to) in to.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *to = unsafe { from.cast::<W>().add(v).read_unaligned() };
    }
}
