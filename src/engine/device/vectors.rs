//! Number types as vectors of an instruction set chosen at run time.

use pulp::Simd;

/// Rows and columns of a block for [`Vectors::transpose`].
pub const SIDE: usize = 8;

/// A real type with its vectors.
pub trait Vectors: Copy {
    /// One vector register.
    type Vector<S: Simd>: Copy;
    /// Returns a vector with `value` in every lane.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// Returns `a · b + c` in every lane, with one rounding if the instruction set has fused multiply-add.
    fn multiply_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// Transposes a block.
    #[inline(always)]
    fn transpose(_arch: pulp::Arch, block: [[Self; SIDE]; SIDE]) -> [[Self; SIDE]; SIDE] {
        transpose_plain(block)
    }
}

impl Vectors for f32 {
    type Vector<S: Simd> = S::f32s;
    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: f32) -> S::f32s {
        simd.splat_f32s(value)
    }
    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        simd.mul_add_f32s(a, b, c)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn transpose(arch: pulp::Arch, block: [[f32; SIDE]; SIDE]) -> [[f32; SIDE]; SIDE] {
        transpose_f32(arch, block)
    }
}

impl Vectors for f64 {
    type Vector<S: Simd> = S::f64s;
    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: f64) -> S::f64s {
        simd.splat_f64s(value)
    }
    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, a: S::f64s, b: S::f64s, c: S::f64s) -> S::f64s {
        simd.mul_add_f64s(a, b, c)
    }
}

/// Transposes a block of fp32 in vector registers, if the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transpose_f32(arch: pulp::Arch, block: [[f32; SIDE]; SIDE]) -> [[f32; SIDE]; SIDE] {
    use pulp::{cast, f32x8};
    let avx = match arch {
        pulp::Arch::V4(v4) => v4.avx,
        pulp::Arch::V3(v3) => v3.avx,
        _ => return transpose_plain(block),
    };
    let [a, b, c, d, e, f, g, h] = block.map(|row| cast::<f32x8, _>(bytemuck::cast(row)));
    // Interleave pairs of rows, then pairs of pairs, inside both halves; then exchange the halves.
    let pairs = |a, b| (avx._mm256_unpacklo_ps(a, b), avx._mm256_unpackhi_ps(a, b));
    let fours = |(a, b), (c, d)| {
        [
            avx._mm256_shuffle_ps::<0b0100_0100>(a, c),
            avx._mm256_shuffle_ps::<0b1110_1110>(a, c),
            avx._mm256_shuffle_ps::<0b0100_0100>(b, d),
            avx._mm256_shuffle_ps::<0b1110_1110>(b, d),
        ]
    };
    let (low, high) = (fours(pairs(a, b), pairs(c, d)), fours(pairs(e, f), pairs(g, h)));
    let mut to = [[0.0; SIDE]; SIDE];
    for i in 0..SIDE / 2 {
        let halves = [
            avx._mm256_permute2f128_ps::<0x20>(low[i], high[i]),
            avx._mm256_permute2f128_ps::<0x31>(low[i], high[i]),
        ];
        for (half, vector) in halves.into_iter().enumerate() {
            to[i + half * SIDE / 2] = bytemuck::cast(cast::<_, f32x8>(vector));
        }
    }
    to
}

/// Transposes a block element by element.
#[inline(always)]
fn transpose_plain<A: Copy>(block: [[A; SIDE]; SIDE]) -> [[A; SIDE]; SIDE] {
    std::array::from_fn(|r| std::array::from_fn(|c| block[c][r]))
}
