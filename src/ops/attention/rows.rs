//! Arithmetic on rows, with a fixed number of partial sums so that loops vectorize and bits do not depend on the
//! instruction set.

use crate::device::Real;
use std::ops::Range;

/// Partial sums of a row.
pub const LANES: usize = 16;

/// Σ a·b.
#[inline(always)]
pub fn dot<A: Real>(a: &[A], b: &[A]) -> A {
    let mut lanes = [A::ZERO; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for ((lane, a), b) in lanes.iter_mut().zip(a.remainder()).zip(b.remainder()) {
        *lane = *a * *b;
    }
    for (a, b) in a.zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.fma(*b, *lane);
        }
    }
    fold(lanes, |a, b| a + b)
}

/// The largest element of a row; negative infinity for an empty one.
#[inline(always)]
pub fn largest<A: Real>(row: &[A]) -> A {
    let mut lanes = [A::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = lane.larger(*x);
    }
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = lane.larger(*x);
        }
    }
    fold(lanes, A::larger)
}

/// Replaces a row by `e^(x − shift)` and returns the sum.
#[inline(always)]
pub fn exponentials<A: Real>(row: &mut [A], shift: A) -> A {
    let mut lanes = [A::ZERO; LANES];
    let mut chunks = row.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            let e = (*x - shift).exp();
            *x = e;
            *lane += e;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(chunks.into_remainder()) {
        *x = (*x - shift).exp();
        *lane += *x;
    }
    fold(lanes, |a, b| a + b)
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

/// Fills a row with negative infinity outside `seen` up to a whole number of lanes, with zeros beyond, and returns
/// the length of the first part: exponentials over it give zero wherever nothing is seen.
///
/// The row's length is a multiple of [`LANES`].
#[inline(always)]
pub fn hide_outside<A: Real>(row: &mut [A], seen: &Range<usize>) -> usize {
    let live = seen.end.next_multiple_of(LANES);
    row[..seen.start].fill(A::NEG_INFINITY);
    row[seen.end..live].fill(A::NEG_INFINITY);
    row[live..].fill(A::ZERO);
    live
}

/// Combines lanes in a fixed tree.
#[inline(always)]
fn fold<A: Real>(mut lanes: [A; LANES], combine: impl Fn(A, A) -> A) -> A {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Working memory of a task: this thread's buffer, lent and given back.
pub struct Scratch<A: Real>(Vec<A>);

impl<A: Real> Scratch<A> {
    /// At least `len` elements, of any content.
    pub fn lend(len: usize) -> Self {
        let mut buffer = A::scratch().with_borrow_mut(|[buffer, ..]| std::mem::take(buffer));
        if buffer.len() < len {
            buffer.resize(len, A::ZERO);
        }
        Self(buffer)
    }

    /// The memory, to [`cut`] into pieces.
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
    fn rows_of_any_length() {
        for n in [0, 1, 15, 16, 17, 64, 100] {
            let a: Vec<f64> = (0..n).map(|i| f64::from(i * 7 % 13) - 6.0).collect();
            let b: Vec<f64> = (0..n).map(|i| f64::from(i % 5)).collect();
            assert_eq!(dot(&a, &b), a.iter().zip(&b).map(|(a, b)| a * b).sum::<f64>());
            assert_eq!(largest(&a), a.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            let mut e = a.clone();
            let sum = exponentials(&mut e, 2.0);
            let truth: f64 = a.iter().map(|x| (x - 2.0).exp()).sum();
            assert!((sum - truth).abs() <= 1e-12 * truth, "{sum} {truth}");
            assert_eq!(e, a.iter().map(|x| (x - 2.0).exp()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn hidden_elements_vanish() {
        let mut row = vec![1f32; 48];
        let live = hide_outside(&mut row, &(3..20));
        assert_eq!(live, 32);
        exponentials(&mut row[..live], 1.0);
        for (i, x) in row.iter().enumerate() {
            assert_eq!(*x, if (3..20).contains(&i) { 1.0 } else { 0.0 }, "{i}");
        }
    }
}
