//! Element types of CPU implementations: the type that is stored, and the type of sums and elementwise math.

use super::DType;
use super::vectors::Vectors;
use half::bf16;
use std::cell::RefCell;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};
use std::thread::LocalKey;

/// A stored element. Arithmetic happens in [`Elem::Acc`]; storing rounds once.
pub trait Elem: Copy + Default + Send + Sync + PartialEq + std::fmt::Debug + 'static {
    /// The type of sums and elementwise math: `f32` for bf16, the type itself otherwise.
    type Acc: Real;
    /// The matching tensor format.
    const DTYPE: DType;
    /// Widens exactly.
    fn up(self) -> Self::Acc;
    /// Rounds to nearest, ties to even.
    fn down(value: Self::Acc) -> Self;
}

/// An arithmetic type: `f32` or `f64`.
///
/// `exp` and the other functions are branch-free for `f32`, so that loops over them vectorize. They use only
/// correctly rounded operations, so that every instruction set gives the same bits.
pub trait Real:
    Elem<Acc = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + PartialOrd
    + Sum
    + Vectors
    + bytemuck::Pod
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Negative infinity.
    const NEG_INFINITY: Self;
    /// Rounds an `f64` constant.
    fn from_f64(value: f64) -> Self;
    /// Widens to `f64` exactly.
    fn to_f64(self) -> f64;
    /// Returns `self * a + b` with one rounding.
    fn fma(self, a: Self, b: Self) -> Self;
    /// e^self.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sine of an angle in radians.
    fn sin(self) -> Self;
    /// Cosine of an angle in radians.
    fn cos(self) -> Self;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// Returns the larger of two values that are not NaN.
    fn larger(self, other: Self) -> Self;
    /// Returns true if the value is neither NaN nor infinite.
    fn finite(self) -> bool;
    /// Returns this thread's scratch memory for tiles of products that are widened from a narrower format.
    fn scratch() -> &'static LocalKey<RefCell<[Vec<Self>; 3]>>;
}

impl Elem for bf16 {
    type Acc = f32;
    const DTYPE: DType = DType::Bf16;
    #[inline(always)]
    fn up(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    /// Rounds to nearest, ties to even, without branches; a NaN stays a NaN.
    #[inline(always)]
    fn down(value: f32) -> bf16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let quiet = (bits | 0x0040_0000) >> 16;
        let kept = if value.is_nan() { quiet } else { rounded >> 16 };
        bf16::from_bits(kept as u16)
    }
}

/// Implements an arithmetic type, whose stored form is the type itself. How it rounds f64 and computes
/// functions is given.
macro_rules! real {
    ($type:ident is $dtype:ident, from f64 by $from_f64:path; $($function:ident = $computed:path,)+) => {
        impl Elem for $type {
            type Acc = $type;
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn up(self) -> $type {
                self
            }
            #[inline(always)]
            fn down(value: $type) -> $type {
                value
            }
        }

        impl Real for $type {
            const ZERO: $type = 0.0;
            const ONE: $type = 1.0;
            const NEG_INFINITY: $type = $type::NEG_INFINITY;
            #[inline(always)]
            fn from_f64(value: f64) -> $type {
                $from_f64(value)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn fma(self, a: $type, b: $type) -> $type {
                self.mul_add(a, b)
            }
            $(#[inline(always)]
            fn $function(self) -> $type {
                $computed(self)
            })+
            #[inline(always)]
            fn larger(self, other: $type) -> $type {
                if other > self { other } else { self }
            }
            #[inline(always)]
            fn finite(self) -> bool {
                self.is_finite()
            }
            fn scratch() -> &'static LocalKey<RefCell<[Vec<$type>; 3]>> {
                thread_local! {
                    static SCRATCH: RefCell<[Vec<$type>; 3]> =
                        const { RefCell::new([const { Vec::new() }; 3]) };
                }
                &SCRATCH
            }
        }
    };
}

real! {
    f64 is F64, from f64 by std::convert::identity;
    exp = f64::exp, ln = f64::ln, tanh = f64::tanh, sin = f64::sin, cos = f64::cos, sqrt = f64::sqrt,
}

real! {
    f32 is F32, from f64 by round_to_f32;
    exp = exp_f32, ln = ln_f32, tanh = tanh_f32, sin = sin_f32, cos = cos_f32, sqrt = f32::sqrt,
}

#[inline(always)]
fn round_to_f32(value: f64) -> f32 {
    value as f32
}

/// Returns e^x in fp32, within 2 ulp of the true value on the normal range: 0 below -104, +inf above 88.8,
/// NaN for NaN.
///
/// Reduces x to r = x − n·ln 2 with |r| ≤ ln 2 / 2 in two steps (Cody and Waite, 1980), evaluates the
/// polynomial for e^r from the Cephes library's `expf` (Moshier), then scales by 2^n in two halves, so that
/// neither half leaves the range.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5·2^23 rounds to the nearest integer without a branch, and leaves that integer in the low
    // bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -104.0 { -104.0 } else { x };
    let clamped = if clamped > 89.0 { 89.0 } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HIGH, clamped);
    let r = n.mul_add(-LN2_LOW, r);
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    // For a NaN these bits are arbitrary, but the product below stays NaN through `p`.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let scale_a = f32::from_bits((half.wrapping_add(127) as u32) << 23);
    let scale_b = f32::from_bits((n.wrapping_sub(half).wrapping_add(127) as u32) << 23);
    p * scale_a * scale_b
}

/// Returns tanh x in fp32, within 2 ulp of the true value on the normal range; NaN for NaN.
///
/// Near zero it uses the polynomial from the Cephes library's `tanhf` (Moshier), elsewhere 1 − 2 / (e^2|x| +
/// 1).
#[inline(always)]
fn tanh_f32(x: f32) -> f32 {
    let size = x.abs();
    let far = 1.0 - 2.0 / (exp_f32(size + size) + 1.0);
    let z = x * x;
    let p = -5.704_988_7e-3_f32;
    let p = p.mul_add(z, 2.063_909e-2);
    let p = p.mul_add(z, -5.373_971_6e-2);
    let p = p.mul_add(z, 1.333_144_2e-1);
    let p = p.mul_add(z, -3.333_328e-1);
    let near = p.mul_add(z * x, x);
    if size < 0.625 { near } else { far.copysign(x) }
}

/// Returns the natural logarithm in fp32, computed in f64 and rounded once: within 0.5001 ulp. It does not
/// call the C library, so its bits are the same everywhere, and loops over it vectorize.
///
/// x = m·2^n with √½ ≤ m < √2; ln m = 2·artanh(s) = 2·(s + s³/3 + s⁵/5 + …) with s = (m − 1) / (m + 1) and
/// |s| ≤ 0.1716.
#[inline(always)]
fn ln_f32(x: f32) -> f32 {
    // Subnormal fp32 numbers are normal in f64.
    let wide = f64::from(x);
    // Adding the distance in bits from √½ to 1 makes the exponent change at √2.
    const SHIFT: u64 = 0x3ff0_0000_0000_0000 - 0x3fe6_a09e_667f_3bcd;
    let shifted = wide.to_bits().wrapping_add(SHIFT);
    let n = (shifted >> 52) as i32 - 1023;
    let m = f64::from_bits((shifted & 0x000f_ffff_ffff_ffff).wrapping_add(0x3fe6_a09e_667f_3bcd));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = 1.0 / 15.0;
    let p = p * z + 1.0 / 13.0;
    let p = p * z + 1.0 / 11.0;
    let p = p * z + 1.0 / 9.0;
    let p = p * z + 1.0 / 7.0;
    let p = p * z + 1.0 / 5.0;
    let p = p * z + 1.0 / 3.0;
    let ln = f64::from(n) * std::f64::consts::LN_2 + 2.0 * (s + s * z * p);
    let ln = if x == 0.0 { f64::NEG_INFINITY } else { ln };
    let ln = if x == f32::INFINITY { f64::INFINITY } else { ln };
    (if x >= 0.0 { ln } else { f64::NAN }) as f32
}

#[inline(always)]
fn sin_f32(x: f32) -> f32 {
    turned_sin_f32(x, 0)
}

#[inline(always)]
fn cos_f32(x: f32) -> f32 {
    turned_sin_f32(x, 1)
}

/// Returns sin(x + quarters·π/2) in fp32, computed in f64 and rounded once: within 0.501 ulp up to |x| = 10⁵,
/// and off by 10⁻⁷ up to 10⁸. Beyond 10⁸ the distance between fp32 numbers exceeds a full turn, and the angle
/// is clamped. NaN for an infinite angle.
///
/// Reduces x to r = x − n·π/2 with |r| ≤ π/4 in two steps (Cody and Waite, 1980), then sums the series for
/// the sine or cosine of r.
#[inline(always)]
fn turned_sin_f32(x: f32, quarters: u64) -> f32 {
    const FARTHEST: f64 = 1e8;
    // The first 33 bits of π/2, so that the product with n is exact, and the rest.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    // Rounds to the nearest integer, as in `exp_f32`, for f64.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let wide = f64::from(x);
    let wide = if wide < -FARTHEST { -FARTHEST } else { wide };
    let wide = if wide > FARTHEST { FARTHEST } else { wide };
    let shifted = wide * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = (wide - n * HIGH) - n * LOW;
    let z = r * r;
    let p = -1.0 / 39_916_800.0;
    let p = p * z + 1.0 / 362_880.0;
    let p = p * z - 1.0 / 5_040.0;
    let p = p * z + 1.0 / 120.0;
    let p = p * z - 1.0 / 6.0;
    let sine = r + r * z * p;
    let q = 1.0 / 479_001_600.0;
    let q = q * z - 1.0 / 3_628_800.0;
    let q = q * z + 1.0 / 40_320.0;
    let q = q * z - 1.0 / 720.0;
    let q = q * z + 1.0 / 24.0;
    let q = q * z - 0.5;
    let cosine = 1.0 + z * q;
    let quarter = shifted.to_bits().wrapping_add(quarters);
    let found = if quarter & 1 == 0 { sine } else { cosine };
    let found = if quarter & 2 == 0 { found } else { -found };
    // `x * 0.0` is 0, or NaN if the angle is infinite or NaN.
    found as f32 + x * 0.0
}

/// Runs generic code for a runtime float format: `dispatch_float!(dtype, E => expression)`.
///
/// Panics for integers and 8-bit floats, which `infer` of every floating-point op rejects at plan time.
#[macro_export]
macro_rules! dispatch_float {
    ($dtype:expr, $elem:ident => $body:expr) => {
        match $dtype {
            $crate::device::DType::F64 => {
                type $elem = f64;
                $body
            }
            $crate::device::DType::F32 => {
                type $elem = f32;
                $body
            }
            $crate::device::DType::Bf16 => {
                type $elem = half::bf16;
                $body
            }
            other => unreachable!("infer rejects {other} tensors here"),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0f64;
        let mut x = -87.0f32;
        while x < 88.0 {
            let truth = f64::from(x).exp();
            let ulp = f64::from(f32::EPSILON) * 2f64.powi(truth.log2().floor() as i32);
            worst = worst.max((f64::from(exp_f32(x)) - truth).abs() / ulp);
            x += 0.001_37;
        }
        assert!(worst <= 2.0, "{worst} ulp");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(-200.0), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_two_ulp_and_passes_the_edges() {
        let mut worst = 0.0f64;
        let powers = (-126..5).map(|n| 2f64.powi(n) as f32);
        let evenly = (0..20_000u16).map(|n| f32::from(n) * 5e-4);
        for x in powers.chain(evenly).filter(|x| *x > 0.0) {
            let truth = f64::from(x).tanh();
            let ulp = f64::from(f32::EPSILON) * 2f64.powi(truth.log2().floor() as i32);
            worst = worst.max((f64::from(tanh_f32(x)) - truth).abs() / ulp);
            assert_eq!(tanh_f32(-x), -tanh_f32(x));
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert_eq!(
            [f32::NEG_INFINITY, -1e4, 0.0, 1e4, f32::INFINITY].map(tanh_f32),
            [-1.0, -1.0, 0.0, 1.0, 1.0]
        );
        assert!(tanh_f32(f32::NAN).is_nan());
    }

    #[test]
    fn sine_and_cosine_are_near_the_last_bit() {
        for i in -100_000..100_000i32 {
            let x = (f64::from(i) * 1e-4 + f64::from(i / 1000) * 321.7) as f32;
            let truths = [f64::from(x).sin(), f64::from(x).cos()];
            for (found, truth) in [sin_f32(x), cos_f32(x)].into_iter().zip(truths) {
                let ulp = f64::from(f32::EPSILON) * 2f64.powi(truth.abs().max(1e-30).log2().floor() as i32);
                let error = (f64::from(found) - truth).abs();
                assert!(error <= 0.51 * ulp || error <= 1e-11, "{x}: {found} for {truth}");
            }
        }
        assert_eq!([0.0f32, 1e30].map(|x| sin_f32(x).abs() <= 1.0), [true; 2]);
        assert!([f32::INFINITY, f32::NAN].into_iter().all(|x| sin_f32(x).is_nan() && cos_f32(x).is_nan()));
    }

    #[test]
    fn ln_is_within_0_5001_ulp() {
        let mut worst = 0.0f64;
        let powers = (-149..128).map(|n| 2f64.powi(n) as f32);
        let near_one = (0..4000u32).map(|n| f32::from_bits(1f32.to_bits() - 2000 + n));
        for x in (1..0x7f80_0000).step_by(9_973).map(f32::from_bits).chain(powers).chain(near_one) {
            let (truth, found) = (f64::from(x).ln(), ln_f32(x));
            let ulp =
                f64::from(f32::EPSILON) * 2f64.powi(truth.abs().max(f64::MIN_POSITIVE).log2().floor() as i32);
            worst = worst.max((f64::from(found) - truth).abs() / ulp);
        }
        assert!(worst <= 0.5001, "{worst} ulp");
    }

    #[test]
    fn ln_at_the_edges() {
        assert_eq!(ln_f32(1.0), 0.0);
        assert_eq!(ln_f32(0.0), f32::NEG_INFINITY);
        assert_eq!(ln_f32(-0.0), f32::NEG_INFINITY);
        assert_eq!(ln_f32(f32::INFINITY), f32::INFINITY);
        assert!([-1.0, f32::NEG_INFINITY, f32::NAN].into_iter().all(|x| ln_f32(x).is_nan()));
    }

    #[test]
    fn bf16_rounds_like_the_half_crate() {
        for bits in (0..=u32::MAX).step_by(9_973) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (<bf16 as Elem>::down(x), bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || (x.is_nan() && ours.is_nan()), "{x} {bits:#x}");
        }
    }
}
