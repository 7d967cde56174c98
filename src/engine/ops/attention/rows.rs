//! Operations on a row of scores, and the working memory of attention's tasks.

use crate::device::Real;
use crate::ops::lanes::replace_and_sum;
use std::ops::Range;

/// Rows of scores are padded to a multiple of this many elements, so that loops over them have no remainder.
pub const LANES: usize = 16;

/// Replaces each element of a row by `e^(scale·x − shift)` and returns the sum.
#[inline(always)]
pub fn exponentials<A: Real>(row: &mut [A], scale: A, shift: A) -> A {
    replace_and_sum(
        row,
        #[inline(always)]
        |x| x.fma(scale, -shift).exp(),
    )
}

/// Replaces each product by its capped score, `cap·tanh(scale·x / cap)`.
#[inline(always)]
pub fn cap_scores<A: Real>(row: &mut [A], scale: A, cap: A) {
    let to_cap = scale / cap;
    row.iter_mut().for_each(|x| *x = cap * (*x * to_cap).tanh());
}

/// Works like [`cap_scores`] and also writes the slope of the cap at each score, `1 − tanh²(scale·x / cap)`.
#[inline(always)]
pub fn cap_scores_with_slopes<A: Real>(row: &mut [A], slopes: &mut [A], scale: A, cap: A) {
    let to_cap = scale / cap;
    for (x, slope) in row.iter_mut().zip(slopes) {
        let t = (*x * to_cap).tanh();
        *slope = t.fma(-t, A::ONE);
        *x = cap * t;
    }
}

/// Multiplies a row by a number.
#[inline(always)]
pub fn scale<A: Real>(row: &mut [A], by: A) {
    row.iter_mut().for_each(|x| *x *= by);
}

/// Multiplies a row by another, element by element.
#[inline(always)]
pub fn multiply_by<A: Real>(row: &mut [A], by: &[A]) {
    row.iter_mut().zip(by).for_each(|(x, f)| *x *= *f);
}

/// Fills the row outside `seen`: with negative infinity up to the next multiple of [`LANES`], and with zeros
/// beyond. Returns the length of the first part, in which the exponential of every masked key is zero.
///
/// The row's length must be a multiple of [`LANES`].
#[inline(always)]
pub fn hide_outside<A: Real>(row: &mut [A], seen: &Range<usize>) -> usize {
    let live = seen.end.next_multiple_of(LANES);
    row[..seen.start].fill(A::NEG_INFINITY);
    row[seen.end..live].fill(A::NEG_INFINITY);
    row[live..].fill(A::ZERO);
    live
}

/// Working memory of a task. It borrows this thread's buffer and returns it when dropped.
pub struct Scratch<A: Real>(Vec<A>);

impl<A: Real> Scratch<A> {
    /// Takes a buffer of at least `len` elements with undefined content.
    pub fn take(len: usize) -> Self {
        let mut buffer = A::scratch().with_borrow_mut(|[buffer, ..]| std::mem::take(buffer));
        if buffer.len() < len {
            buffer.resize(len, A::ZERO);
        }
        Self(buffer)
    }

    /// Returns the memory, to [`cut`] into pieces.
    pub fn all(&mut self) -> &mut [A] {
        &mut self.0
    }
}

impl<A: Real> Drop for Scratch<A> {
    fn drop(&mut self) {
        A::scratch().with_borrow_mut(|[buffer, ..]| *buffer = std::mem::take(&mut self.0));
    }
}

/// Splits `len` elements off the front of `rest`.
pub fn cut<'a, A>(rest: &mut &'a mut [A], len: usize) -> &'a mut [A] {
    let (piece, tail) = std::mem::take(rest).split_at_mut(len);
    *rest = tail;
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_elements_vanish() {
        let mut row = vec![1f32; 48];
        let live = hide_outside(&mut row, &(3..20));
        assert_eq!(live, 32);
        exponentials(&mut row[..live], 1.0, 1.0);
        for (i, x) in row.iter().enumerate() {
            assert_eq!(*x, if (3..20).contains(&i) { 1.0 } else { 0.0 }, "{i}");
        }
    }
}
