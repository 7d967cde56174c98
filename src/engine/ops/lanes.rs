//! Helpers shared by elementwise and row-wise ops: they split work into tasks and sum in a fixed order.
//!
//! Sums run in [`LANES`] partial sums that are combined in a fixed tree. So loops vectorize, and the bits are
//! the same with every instruction set.

use crate::device::cpu::{Pool, View, ViewMut};
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS};
use crate::device::{DType, Elem, Real};
use crate::error::Result;
use crate::ir::{GpuNode, Spec};

/// Partial sums of a row.
const LANES: usize = 16;

/// Elements per task: enough to outweigh the cost of starting it, few enough to share the work among threads.
pub const TASK: usize = 16 * 1024;

/// Elements that elementwise ops hold in scratch at a time.
pub const BLOCK: usize = 256;

/// The most rows of partial sums: two blocks for every SM of a large GPU, with a bounded scratch.
const MAX_PARTIALS: usize = 256;

/// The fewest rows that share one row of partial sums, so that partial sums stay small beside what they sum.
const MIN_ROWS: usize = 8;

/// Returns the number of rows per task, for rows of `width` elements.
pub fn rows_per_task(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}

/// Returns the number of rows that are summed into one row of partial sums, on every device.
pub fn rows_per_partial(rows: usize) -> usize {
    rows.div_ceil(MAX_PARTIALS).max(MIN_ROWS)
}

/// Threads per block of the launches below.
const THREADS: u32 = 256;

/// Launches the kernel `entry` of an elementwise op over all elements of output 0, including padding. Its
/// arguments are the tensors, all of format `T`, then the number of elements, then `further`. A thread
/// handles `VEC` neighbors.
pub fn launch_elementwise(
    cx: &GpuNode<'_>,
    (file, entry): (&'static str, &'static str),
    tensors: &[DevicePtr],
    further: &[Arg],
) -> Result<()> {
    let spec = cx.output_spec(0);
    let vec = vector_width(spec.elements(), spec.dtype);
    let kernel = Kernel::new(file, entry).with("T", spec.dtype).with("VEC", vec);
    launch_over(cx, kernel, (spec.elements(), vec), tensors, further)
}

/// Launches like [`launch_elementwise`], but over all elements of `spec`. The kernel knows the `WIDTH`
/// of its rows.
pub fn launch_packs(
    cx: &GpuNode<'_>,
    (file, entry): (&'static str, &'static str),
    spec: &Spec,
    tensors: &[DevicePtr],
    further: &[Arg],
) -> Result<()> {
    let vec = vector_width(spec.width(), spec.dtype);
    let kernel = Kernel::new(file, entry).with("T", spec.dtype).with("WIDTH", spec.width()).with("VEC", vec);
    launch_over(cx, kernel, (spec.elements(), vec), tensors, further)
}

/// Launches one thread for every `vec` elements.
pub fn launch_over(
    cx: &GpuNode<'_>,
    kernel: Kernel,
    (elements, vec): (usize, usize),
    tensors: &[DevicePtr],
    further: &[Arg],
) -> Result<()> {
    if elements == 0 {
        return Ok(());
    }
    let mut args: Vec<Arg> = tensors.iter().map(|&t| t.into()).collect();
    args.push(elements.into());
    args.extend(further);
    cx.queue.launch(kernel, Grid::covering(elements / vec, THREADS), &args)
}

/// Most tensors whose addresses are one argument.
pub const MAX_ADDRESSES: usize = MAX_RANKS;

/// Returns the addresses of tensors as one argument, in kernels a `struct` with an array.
pub fn addresses(tensors: &[DevicePtr]) -> Arg {
    let mut all = [0; MAX_ADDRESSES];
    all[..tensors.len()].copy_from_slice(tensors);
    Arg::Ranks(all)
}

/// Returns the spec of rows as a matrix: one row per row in memory.
pub fn row_matrix(x: &Spec) -> Spec {
    let rows = x.alloc[0];
    Spec::new([rows, x.elements() / rows.max(1)], x.dtype)
}

/// Copies an input into output 0, unless it is already there.
pub fn launch_copy(cx: &GpuNode<'_>, input: usize) -> Result<()> {
    let (to, from, bytes) = (cx.output(0), cx.input(input), cx.output_spec(0).bytes());
    if bytes == 0 || to == from {
        return Ok(());
    }
    cx.queue.copy(to, from, bytes)
}

/// Returns the number of elements that a thread can move at once in rows of `width`: 16 bytes of them, or 1
/// if that does not divide the width. (Tensors begin at multiples of 256 bytes.)
pub fn vector_width(width: usize, dtype: DType) -> usize {
    let wide = 16 / dtype.size();
    if width.is_multiple_of(wide) { wide } else { 1 }
}

/// Computes `y[i] = f(x[i])`. `y` may be the same memory as `x`.
pub fn map<E: Elem, F: Elem>(
    pool: &Pool,
    x: View<'_, E>,
    y: ViewMut<'_, F>,
    f: impl Fn(E::Acc) -> F::Acc + Sync,
) {
    pool.chunks(
        x.len(),
        TASK,
        #[inline(always)]
        |start, len| {
            let mut block = [E::Acc::ZERO; BLOCK];
            for at in (start..start + len).step_by(BLOCK) {
                let block = &mut block[..BLOCK.min(start + len - at)];
                x.load(at, block);
                for (y, x) in y.slice(at, block.len()).iter_mut().zip(&*block) {
                    *y = F::down(f(*x));
                }
            }
        },
    );
}

/// Computes `y[i] = f(a[i], b[i])`. `y` may be the same memory as `a` or `b`.
pub fn map2<E: Elem>(
    pool: &Pool,
    a: View<'_, E>,
    b: View<'_, E>,
    y: ViewMut<'_, E>,
    f: impl Fn(E::Acc, E::Acc) -> E::Acc + Sync,
) {
    pool.chunks(
        a.len(),
        TASK,
        #[inline(always)]
        |start, len| {
            let mut blocks = [[E::Acc::ZERO; BLOCK]; 2];
            for at in (start..start + len).step_by(BLOCK) {
                let count = BLOCK.min(start + len - at);
                let [left, right] = &mut blocks;
                let (left, right) = (&mut left[..count], &mut right[..count]);
                a.load(at, left);
                b.load(at, right);
                for (y, (a, b)) in y.slice(at, count).iter_mut().zip(left.iter().zip(&*right)) {
                    *y = E::down(f(*a, *b));
                }
            }
        },
    );
}

/// Returns `Σ a[i]·b[i]`.
#[inline(always)]
pub fn dot<A: Real>(a: &[A], b: &[A]) -> A {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [A::ZERO; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.fma(*b, *lane);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = a.fma(*b, *lane);
    }
    combine(lanes, |a, b| a + b)
}

/// Returns `Σ x[i]`.
#[inline(always)]
pub fn sum<A: Real>(x: &[A]) -> A {
    fold(x, A::ZERO, |a, b| a + b)
}

/// Returns the largest element, or -∞ for an empty slice.
#[inline(always)]
pub fn max<A: Real>(x: &[A]) -> A {
    fold(x, A::NEG_INFINITY, A::larger)
}

#[inline(always)]
fn fold<A: Real>(x: &[A], start: A, with: impl Fn(A, A) -> A) -> A {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = with(*lane, *x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = with(*lane, *x);
    }
    combine(lanes, with)
}

/// Replaces every element `x` by `f(x)` and returns the sum of the new elements.
#[inline(always)]
pub fn replace_and_sum<A: Real>(x: &mut [A], f: impl Fn(A) -> A) -> A {
    let (blocks, rest) = x.as_chunks_mut::<LANES>();
    let mut lanes = [A::ZERO; LANES];
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *x = f(*x);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *x = f(*x);
        *lane += *x;
    }
    combine(lanes, |a, b| a + b)
}

/// Folds the lanes in halves: a fixed tree.
#[inline(always)]
fn combine<A: Real>(mut lanes: [A; LANES], with: impl Fn(A, A) -> A) -> A {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (l, h) in low.iter_mut().zip(high) {
            *l = with(*l, *h);
        }
        half /= 2;
    }
    lanes[0]
}

/// Computes `to[c] (+)= Σ partials[·, column + c]` over all rows of `[rows, width]`, in their order.
pub fn reduce_partials<A: Real>(
    pool: &Pool,
    (partials, width): (ViewMut<'_, A>, usize),
    column: usize,
    to: ViewMut<'_, A>,
    add: bool,
) {
    let count = partials.len() / width.max(1);
    pool.chunks(
        to.len(),
        BLOCK,
        #[inline(always)]
        |start, len| {
            let mut sum = [A::ZERO; BLOCK];
            let sum = &mut sum[..len];
            for row in 0..count {
                let part = partials.slice(row * width + column + start, len);
                sum.iter_mut().zip(&*part).for_each(|(sum, part)| *sum += *part);
            }
            to.put(start, sum, add);
        },
    );
}

/// Launches the last step of sums over rows on a GPU: `outputs (+)= Σ partials` over all rows of the output
/// `partials`. Its columns belong to one output, or to two side by side.
pub fn launch_sum_partials(cx: &GpuNode<'_>, partials: usize, outputs: &[usize]) -> Result<()> {
    /// Columns per block and threads per column: a warp in both directions.
    const COLUMNS: usize = 32;
    const ROWS: usize = 32;
    let (count, width) = (cx.output_spec(partials).rows(), cx.output_spec(partials).width());
    let (first, second) = (outputs[0], outputs[outputs.len() - 1]);
    let split = cx.output_spec(first).elements();
    let adds = u32::from(cx.adds(first)) | u32::from(cx.adds(second)) << 1;
    cx.queue.launch(
        Kernel::new("partials", "sum_partials").with("COLUMNS", COLUMNS).with("ROWS", ROWS),
        Grid::new(width.div_ceil(COLUMNS), (COLUMNS * ROWS) as u32),
        &[
            cx.output(partials).into(),
            cx.output(first).into(),
            cx.output(second).into(),
            count.into(),
            width.into(),
            split.into(),
            adds.into(),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_and_maxima_agree_with_plain_loops(x in prop::collection::vec(-1e3..1e3f64, 0..200)) {
            let plain: f64 = x.iter().sum();
            prop_assert!((sum(&x) - plain).abs() <= 1e-9);
            let squares: f64 = x.iter().map(|x| x * x).sum();
            prop_assert!((dot(&x, &x) - squares).abs() <= 1e-9 * squares);
            prop_assert_eq!(max(&x), x.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            let mut doubled = x.clone();
            prop_assert!((replace_and_sum(&mut doubled, |v| 2.0 * v) - 2.0 * plain).abs() <= 1e-9);
            prop_assert!(doubled.iter().zip(&x).all(|(d, x)| *d == 2.0 * x));
        }
    }

    #[test]
    fn tasks_cover_rows_and_partials_stay_few() {
        assert_eq!(rows_per_task(128), 128);
        assert_eq!(rows_per_task(TASK * 2), 1);
        assert_eq!(rows_per_task(0), TASK);
        for rows in [1usize, 255, 2048, 8192, 1_000_000] {
            assert!(rows.div_ceil(rows_per_partial(rows)) <= MAX_PARTIALS);
        }
    }

    #[test]
    fn partials_are_added_in_order() {
        let pool = Pool::new(2).unwrap();
        let mut partials: Vec<f32> = (0..3 * 300).map(|i| i as f32).collect();
        let mut total = vec![1.0f32; 300];
        let partials = ViewMut::from_slice(&mut partials);
        reduce_partials(&pool, (partials, 300), 0, ViewMut::from_slice(&mut total), true);
        assert!(total.iter().enumerate().all(|(i, t)| *t == 1.0 + 3.0 * i as f32 + 900.0));
        reduce_partials(&pool, (partials, 300), 0, ViewMut::from_slice(&mut total), false);
        assert!(total.iter().enumerate().all(|(i, t)| *t == 3.0 * i as f32 + 900.0));
    }
}
