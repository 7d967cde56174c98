//! bf16 products with the processor's bf16 instruction: two terms per lane and multiply-add, exact products,
//! sums in fp32.
//!
//! The instruction (AVX512-BF16, `VDPBF16PS`) adds the product of the upper halves, rounds, adds the product
//! of the lower halves, and rounds. So the first term of a pair is stored in the upper half, and sums have
//! the same bits as the chain over widened operands, except that the instruction treats subnormal numbers as
//! zero.

use super::matrix::Matrix;
use super::microkernel::{MAX_LANES, Terms};
use super::operands::Operands;
use crate::device::cpu::View;
use crate::device::vectors::{SIDE, Vectors};
use half::bf16;
use pulp::Simd;
#[cfg(target_arch = "x86_64")]
use pulp::WithSimd;

/// Pairs of bf16 terms, the first in the upper half.
#[derive(Clone, Copy, Debug)]
pub struct Bf16Pairs;

/// Returns a pair in its stored form.
#[inline(always)]
fn pair(first: bf16, second: bf16) -> u32 {
    u32::from(first.to_bits()) << 16 | u32::from(second.to_bits())
}

impl Terms for Bf16Pairs {
    type Element = u32;
    type Sum = f32;
    const TERMS_PER_ELEMENT: usize = 2;
    type Vector<S: Simd> = S::u32s;
    #[inline(always)]
    fn splat<S: Simd>(simd: S, element: u32) -> S::u32s {
        simd.splat_u32s(element)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn multiply_add<S: Simd>(_simd: S, left: S::u32s, right: S::u32s, sum: S::f32s) -> S::f32s {
        use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps};
        assert!(size_of::<S::f32s>() == size_of::<__m512>());
        // SAFETY: both names stand for the same 512-bit vectors, and `dispatch` checked for the instruction.
        unsafe {
            let sum = std::mem::transmute_copy::<S::f32s, __m512>(&sum);
            let left = std::mem::transmute_copy::<S::u32s, __m512bh>(&left);
            let right = std::mem::transmute_copy::<S::u32s, __m512bh>(&right);
            std::mem::transmute_copy::<__m512, S::f32s>(&_mm512_dpbf16_ps(sum, left, right))
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn multiply_add<S: Simd>(_simd: S, _left: S::u32s, _right: S::u32s, _sum: S::f32s) -> S::f32s {
        unreachable!("available on x86-64 alone")
    }

    #[cfg(target_arch = "x86_64")]
    fn dispatch(arch: pulp::Arch, task: impl WithSimd<Output = ()>) {
        let pulp::Arch::V4(v4) = arch else { unreachable!("available with AVX-512 alone") };
        assert!(Self::is_available(arch));
        // SAFETY: the processor has the instruction, and the token proves the other features.
        unsafe { with_instruction(v4, task) };
    }
}

/// Runs a task compiled with the bf16 instruction enabled.
///
/// # Safety
/// The processor must have AVX512-BF16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")]
unsafe fn with_instruction(v4: pulp::x86::V4, task: impl WithSimd<Output = ()>) {
    task.with_simd(v4);
}

impl Bf16Pairs {
    /// Returns true if the machine has the instruction.
    pub fn is_available(arch: pulp::Arch) -> bool {
        #[cfg(target_arch = "x86_64")]
        let available = matches!(arch, pulp::Arch::V4(_)) && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        let (available, _) = (false, arch);
        available
    }
}

impl Operands<bf16> for Bf16Pairs {
    #[inline(always)]
    fn pack(arch: pulp::Arch, from: Matrix<View<'_, bf16>>, (k, columns): (usize, usize), to: &mut [u32]) {
        let width = columns.next_multiple_of(MAX_LANES);
        if from.column_stride == 1 {
            for (p, to) in to.chunks_exact_mut(width).enumerate() {
                interleave(from.at(2 * p, 0), columns, 2 * p + 1 < k, &mut to[..columns]);
                to[columns..].fill(0);
            }
            return;
        }
        assert!(from.row_stride == 1 || k <= 1, "one direction of a matrix is contiguous");
        let pairs = k.div_ceil(2);
        for first in (0..pairs).step_by(SIDE) {
            let rows = SIDE.min(pairs - first);
            for column in (0..width).step_by(SIDE) {
                let mut block = [[0u32; SIDE]; SIDE];
                for (c, block) in (column..columns).zip(&mut block) {
                    let terms = (2 * SIDE).min(k - 2 * first);
                    pack_pairs(from.view.slice(from.at(2 * first, c).start, terms), block);
                }
                let block = f32::transpose(arch, bytemuck::cast(block));
                for (r, row) in bytemuck::cast::<_, [[u32; SIDE]; SIDE]>(block).iter().enumerate().take(rows)
                {
                    to[(first + r) * width + column..][..SIDE].copy_from_slice(row);
                }
            }
        }
    }

    #[inline(always)]
    fn in_place(_from: Matrix<View<'_, bf16>>) -> Option<Matrix<View<'_, u32>>> {
        None
    }

    #[inline(always)]
    fn copy<'a>(
        from: Matrix<View<'_, bf16>>,
        (rows, k): (usize, usize),
        to: &'a mut [u32],
    ) -> Matrix<View<'a, u32>> {
        let pairs = k.div_ceil(2);
        let to = &mut to[..rows * pairs];
        if from.column_stride == 1 {
            for (r, to) in to.chunks_exact_mut(pairs.max(1)).enumerate() {
                pack_pairs(from.view.slice(from.at(r, 0).start, k), to);
            }
            Matrix::rows(View::from_slice(to), pairs)
        } else {
            assert_eq!(from.row_stride, 1, "one direction of a matrix is contiguous");
            for (p, to) in to.chunks_exact_mut(rows).enumerate() {
                interleave(from.at(0, 2 * p), rows, 2 * p + 1 < k, to);
            }
            Matrix::rows(View::from_slice(to), rows).t()
        }
    }
}

/// Stores adjacent terms as pairs; a last single term gets a zero.
#[inline(always)]
fn pack_pairs(terms: &[bf16], to: &mut [u32]) {
    let (whole, rest) = terms.as_chunks::<2>();
    for (to, [first, second]) in to.iter_mut().zip(whole) {
        *to = pair(*first, *second);
    }
    if let [last] = rest {
        to[whole.len()] = pair(*last, bf16::ZERO);
    }
}

/// Stores pairs of elements from a line of a matrix and the next line, or zeros if there is none. Lines are
/// contiguous and `len` long.
#[inline(always)]
fn interleave(line: Matrix<View<'_, bf16>>, len: usize, has_next: bool, to: &mut [u32]) {
    let stride = line.row_stride.max(line.column_stride);
    let first = line.view.slice(line.start, len);
    if has_next {
        let second = line.view.slice(line.start + stride, len);
        for ((to, first), second) in to.iter_mut().zip(first).zip(second) {
            *to = pair(*first, *second);
        }
    } else {
        for (to, first) in to.iter_mut().zip(first) {
            *to = pair(*first, bf16::ZERO);
        }
    }
}
