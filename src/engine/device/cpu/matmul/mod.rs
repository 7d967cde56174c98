//! Matrix products on the CPU.
//!
//! The right operand is packed once, panel by panel. Then the output is divided into tiles by its shape
//! alone. An output element is one chain of multiply-adds over the summed dimension, in order, so its bits
//! depend neither on the number of threads nor on the instruction set. bf16 operands use the processor's bf16
//! instruction or are widened, and a result is rounded once.

mod bf16_pairs;
mod matrix;
mod microkernel;
mod operands;
mod pack;
mod packed;
#[cfg(test)]
mod tests;

pub use matrix::{Matrix, operand, widens};
pub use packed::{Packed, packed_len};

use super::{Pool, View, ViewMut};
use crate::device::{Elem, Real};
use bf16_pairs::Bf16Pairs;
use half::bf16;
use matrix::{same_type, same_type_mut};
use microkernel::{ROWS, Single};
use operands::Operands;
use packed::{PANEL, TERMS, TERMS_ACROSS, pack_panel};
use std::ops::Range;

/// Largest number of elements of a right operand that are packed at the same time: 16 MiB in fp32.
const MAX_PACKED: usize = 1 << 22;

/// Computes `c = a·b`, or `c += a·b`, on the pool. `c` is stored as `C`, the type of the operands or of the
/// accumulator, with adjacent columns.
///
/// Shapes: a `m × k`, b `k × n`, c `m × n`.
pub fn product<E: Elem, C: Elem<Acc = E::Acc>>(
    pool: &Pool,
    size: (usize, usize, usize),
    a: Matrix<View<'_, E>>,
    b: Matrix<View<'_, E>>,
    c: Matrix<ViewMut<'_, C>>,
    add: bool,
) {
    multiply(pool, size, a, b, c, Epilogue::sum(add));
}

/// Computes `c = factor·a·b + other·addend` like [`product`]. The sum is combined with the factors and the
/// addend in the accumulator type, and each element is stored once.
pub fn product_with_addend<E: Elem, C: Elem<Acc = E::Acc>>(
    pool: &Pool,
    size: (usize, usize, usize),
    factor: f64,
    (a, b): (Matrix<View<'_, E>>, Matrix<View<'_, E>>),
    (other, addend): (f64, Matrix<View<'_, C>>),
    c: Matrix<ViewMut<'_, C>>,
) {
    let plus = Some(ScaledAddend { factor, other, addend });
    multiply(pool, size, a, b, c, Epilogue { add: false, plus });
}

/// What happens to the sums of a product.
#[derive(Clone, Copy, Debug)]
struct Epilogue<'a, C> {
    /// Adds the sums to the contents of the result.
    add: bool,
    /// Combines the sums with another matrix.
    plus: Option<ScaledAddend<'a, C>>,
}

/// The combination `factor·sum + other·addend`.
#[derive(Clone, Copy, Debug)]
struct ScaledAddend<'a, C> {
    factor: f64,
    other: f64,
    addend: Matrix<View<'a, C>>,
}

impl<'a, C: Elem> Epilogue<'a, C> {
    fn sum(add: bool) -> Self {
        Self { add, plus: None }
    }

    /// Returns the same for the part of the result that begins at `(row, column)`.
    fn at(self, row: usize, column: usize) -> Self {
        let plus = self.plus.map(|plus| ScaledAddend { addend: plus.addend.at(row, column), ..plus });
        Self { plus, ..self }
    }

    /// Returns the same for results of type `A`, if `A` is `C`.
    fn same_type<A: Elem>(self) -> Option<Epilogue<'a, A>> {
        let Self { add, plus } = self;
        let Some(ScaledAddend { factor, other, addend }) = plus else { return Some(Epilogue::sum(add)) };
        Some(Epilogue { add, plus: Some(ScaledAddend { factor, other, addend: same_type(addend)? }) })
    }
}

impl<C: Elem> ScaledAddend<'_, C> {
    /// Combines row `r` of the sums with row `r` of the other matrix, in place.
    #[inline(always)]
    fn combine(&self, r: usize, sums: &mut [C::Acc]) {
        let (factor, other) = (C::Acc::from_f64(self.factor), C::Acc::from_f64(self.other));
        let addend = self.addend.view.slice(self.addend.at(r, 0).start, sums.len());
        for (sum, addend) in sums.iter_mut().zip(addend) {
            *sum = factor.fma(*sum, other * addend.up());
        }
    }
}

/// Computes [`product`], with the sums finished in a given way.
fn multiply<E: Elem, C: Elem<Acc = E::Acc>>(
    pool: &Pool,
    size: (usize, usize, usize),
    a: Matrix<View<'_, E>>,
    b: Matrix<View<'_, E>>,
    c: Matrix<ViewMut<'_, C>>,
    finish: Epilogue<'_, C>,
) {
    if Bf16Pairs::is_available(pool.arch())
        && let (Some(a), Some(b)) = (same_type::<E, bf16>(a), same_type::<E, bf16>(b))
    {
        if let (Some(c), Some(finish)) = (same_type_mut::<C, bf16>(c), finish.same_type()) {
            return product_as::<_, _, Bf16Pairs>(pool, size, a, b, c, finish);
        }
        if let (Some(c), Some(finish)) = (same_type_mut::<C, f32>(c), finish.same_type()) {
            return product_as::<_, _, Bf16Pairs>(pool, size, a, b, c, finish);
        }
        unreachable!("sums of bf16 are fp32");
    }
    product_as::<E, C, Single<E::Acc>>(pool, size, a, b, c, finish);
}

/// Computes [`multiply`] with one kind of operands.
fn product_as<E: Elem, C: Elem<Acc = E::Acc>, T: Operands<E, Sum = E::Acc>>(
    pool: &Pool,
    (m, n, k): (usize, usize, usize),
    a: Matrix<View<'_, E>>,
    b: Matrix<View<'_, E>>,
    c: Matrix<ViewMut<'_, C>>,
    finish: Epilogue<'_, C>,
) {
    let (terms, k) = (k, k.div_ceil(T::TERMS_PER_ELEMENT));
    let columns = (MAX_PACKED / k.max(1)).next_multiple_of(PANEL);
    // Scratch memory belongs to the thread, so that it is allocated once and not for every product.
    let mut memory = E::Acc::scratch().with_borrow_mut(|[packed, ..]| std::mem::take(packed));
    for first in (0..n).step_by(columns.max(1)) {
        let n = columns.min(n - first);
        memory.resize(memory.len().max(packed_len(k, n)), E::Acc::ZERO);
        let memory = ViewMut::from_slice(bytemuck::cast_slice_mut(&mut memory));
        let b = b.at(0, first);
        let panels = n.div_ceil(PANEL);
        let per_task = if is_small((m, n, k)) { panels } else { 1 };
        pool.chunks(
            panels,
            per_task,
            #[inline(always)]
            |first, count| {
                for panel in first..first + count {
                    pack_panel::<E, T>(pool.arch(), b, (terms, n), panel, memory);
                }
            },
        );
        let b = Packed::<T> { arch: pool.arch(), data: memory.slice(0, packed_len(k, n)), k, n };
        let (tile_m, tile_n) = tile(m, n, k);
        let across = n.div_ceil(tile_n);
        pool.run(
            m.div_ceil(tile_m) * across,
            #[inline(always)]
            |t| {
                let (row, column) = (t / across * tile_m, t % across * tile_n);
                let size = (tile_m.min(m - row), terms);
                let (a, c) = (a.at(row, 0), c.at(row, first + column));
                let finish = finish.at(row, first + column);
                multiply_tile(size, a, b, column..n.min(column + tile_n), c, finish);
            },
        );
    }
    E::Acc::scratch().with_borrow_mut(|[packed, ..]| *packed = memory);
}

/// Computes one tile of a product, with all terms.
#[inline(always)]
fn multiply_tile<E: Elem, C: Elem<Acc = E::Acc>, T: Operands<E, Sum = E::Acc>>(
    (rows, terms): (usize, usize),
    a: Matrix<View<'_, E>>,
    b: Packed<'_, T>,
    columns: Range<usize>,
    c: Matrix<ViewMut<'_, C>>,
    Epilogue { add, plus }: Epilogue<'_, C>,
) {
    let (in_place, wide_c) = (T::in_place(a), same_type_mut(c));
    let width = columns.len();
    if let (Some(a), Some(c)) = (in_place, wide_c) {
        b.multiply(rows, a, 0..b.k, columns, c, add);
        return combine_in_place(rows, width, c, plus);
    }
    let run = if a.column_stride == 1 { TERMS } else { TERMS_ACROSS };
    // Take the buffers out instead of borrowing them: a closure would be compiled without the vector
    // instructions.
    let (mut copy, mut sum) =
        E::Acc::scratch().with_borrow_mut(|[_, copy, sum]| (std::mem::take(copy), std::mem::take(sum)));
    copy.resize(copy.len().max(rows * run), E::Acc::ZERO);
    sum.resize(sum.len().max(rows * width), E::Acc::ZERO);
    let sum_at = Matrix::rows(ViewMut::from_slice(&mut sum), width);
    let (to, add_first) = wide_c.map_or((sum_at, false), |c| (c, add));
    for at in (0..b.k.max(1)).step_by(run) {
        let elements = at..b.k.min(at + run);
        let terms = (at * T::TERMS_PER_ELEMENT)..terms.min(elements.end * T::TERMS_PER_ELEMENT);
        let a = match in_place {
            Some(a) => a.at(0, at),
            None => T::copy(a.at(0, terms.start), (rows, terms.len()), bytemuck::cast_slice_mut(&mut copy)),
        };
        b.multiply(rows, a, elements, columns.clone(), to, add_first || at > 0);
    }
    if let Some(c) = wide_c {
        combine_in_place(rows, width, c, plus);
    } else {
        for (r, row) in sum.chunks_exact_mut(width).enumerate().take(rows) {
            if let Some(plus) = plus {
                plus.combine(r, row);
            }
            let to = c.view.slice(c.at(r, 0).start, width);
            for (to, value) in to.iter_mut().zip(row) {
                *to = C::down(if add { to.up() + *value } else { *value });
            }
        }
    }
    E::Acc::scratch().with_borrow_mut(|buffers| (buffers[1], buffers[2]) = (copy, sum));
}

/// Combines the sums of a tile with the other matrix, if there is one, where the result stores the sums.
#[inline(always)]
fn combine_in_place<C: Elem>(
    rows: usize,
    width: usize,
    sums: Matrix<ViewMut<'_, C::Acc>>,
    plus: Option<ScaledAddend<'_, C>>,
) {
    let Some(plus) = plus else { return };
    for r in 0..rows {
        plus.combine(r, sums.view.slice(sums.at(r, 0).start, width));
    }
}

/// Returns true for products that one thread finishes before other threads have started.
fn is_small((m, n, k): (usize, usize, usize)) -> bool {
    m * n * k <= 1 << 17
}

/// Divides an output into tiles, from its shape alone. Sixteen tiles keep a few threads busy if the output is
/// large enough; the rows of a tile and a panel's terms stay in the L2 cache.
fn tile(m: usize, n: usize, k: usize) -> (usize, usize) {
    const TILES: usize = 16;
    const MIN_ROWS: usize = 8 * ROWS;
    const MAX_ROWS: usize = 32 * ROWS;
    if is_small((m, n, k)) {
        return (m.max(1), n.max(1));
    }
    let rows = (m / TILES).next_multiple_of(ROWS).clamp(MIN_ROWS, MAX_ROWS);
    let groups = TILES.div_ceil(m.div_ceil(rows));
    (rows, n.div_ceil(groups).next_multiple_of(PANEL))
}
