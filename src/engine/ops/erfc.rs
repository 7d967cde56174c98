//! The complementary error function, in fp32 and f64.

use crate::device::{DType, Real};

/// Coefficients of [`erfc`] in fp32, highest power first. The relative error is at most 1.1e-8.
const COEFFICIENTS_F32: [f64; 11] = [
    2.195_114_939_240_738_7e-5,
    -3.724_647_685_885_429_4e-4,
    -1.251_281_471_922_993_7e-3,
    1.281_958_539_038_896_6e-3,
    8.639_279_752_969_742e-3,
    -8.047_840_557_992_458e-3,
    -5.420_565_605_163_574e-2,
    1.640_536_338_090_896_6e-1,
    -1.660_313_010_215_759_3e-1,
    -9.276_391_565_799_713e-2,
    1.276_978_373_527_526_9,
];

/// Coefficients of [`erfc`] in f64, highest power first. The relative error is at most 6e-17.
const COEFFICIENTS_F64: [f64; 25] = [
    -1.109_554_162_067_607_4e-8,
    -1.854_863_755_755_387_5e-8,
    7.987_777_603_162_673e-8,
    2.054_099_947_990_886_5e-7,
    -1.133_367_992_061_302_2e-7,
    -8.918_907_841_490_98e-7,
    -8.561_377_792_469_738e-7,
    1.532_355_317_808_504_3e-6,
    5.335_531_484_925_224_5e-6,
    3.703_368_676_458_086_7e-6,
    -1.354_487_685_563_414_7e-5,
    -3.642_319_482_349_863e-5,
    -1.493_489_456_186_769_8e-6,
    1.510_396_980_524_172e-4,
    2.063_637_823_654_645_8e-4,
    -4.543_409_965_048_797_7e-4,
    -1.456_813_485_863_013e-3,
    1.271_338_989_875_900_1e-3,
    8.722_653_838_718_014e-3,
    -8.034_015_084_141_886e-3,
    -5.422_000_099_048_901_5e-2,
    1.640_512_800_334_954_5e-1,
    -1.660_303_976_153_149_6e-1,
    -9.276_382_658_574_647e-2,
    1.276_978_381_552_528_9,
];

/// `1 - erf(x)`, within 5 ulp even far from zero. It has no branches, so loops over it vectorize.
///
/// `e^x²·erfc(x)·(1 + 2x)` is a polynomial in `(x - 2) / (x + 2)` for positive x, following Shepherd and
/// Laframboise (Chebyshev approximation of (1 + 2x)·exp(x²)·erfc(x), 1981). The coefficients here interpolate
/// at Chebyshev points, computed with 60 digits. A first-order term restores what the square loses by
/// rounding.
#[inline(always)]
pub(super) fn erfc<A: Real>(x: A) -> A {
    // Beyond the limit the result rounds to 0 or 2.
    let (coefficients, limit) = if A::DTYPE == DType::F32 {
        (&COEFFICIENTS_F32[..], A::from_f64(10.1))
    } else {
        (&COEFFICIENTS_F64[..], A::from_f64(27.3))
    };
    let two = A::from_f64(2.0);
    let t = if x < A::ZERO { -x } else { x };
    let t = if t > limit { limit } else { t };
    let at = (t - two) / (t + two);
    let polynomial = coefficients.iter().fold(A::ZERO, |sum, &c| sum.fma(at, A::from_f64(c)));
    let square = t * t;
    let lost = t.fma(t, -square);
    let tail = polynomial / two.fma(t, A::ONE) * (-square).exp();
    let tail = (-lost).fma(tail, tail);
    if x < A::ZERO { two - tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::erfc as plain_erfc;

    fn ulps(found: f64, truth: f64, epsilon: f64) -> f64 {
        (found - truth).abs() / (epsilon * 2f64.powi(truth.log2().floor() as i32))
    }

    #[test]
    fn it_is_within_a_few_ulp() {
        let (mut single, mut double) = (0.0f64, 0.0f64);
        for i in -6_000..26_000 {
            let x = 1e-3 * f64::from(i);
            // Above 9, fp32 results are subnormal.
            if x < 9.0 {
                let x = x as f32;
                let (found, truth) = (f64::from(erfc(x)), plain_erfc(f64::from(x)));
                single = single.max(ulps(found, truth, f64::from(f32::EPSILON)));
            }
            double = double.max(ulps(erfc(x), plain_erfc(x), f64::EPSILON));
        }
        assert!(single <= 5.0, "{single} ulp in fp32");
        assert!(double <= 8.0, "{double} ulp in f64");
    }

    /// Abramowitz and Stegun, table 7.1.
    #[test]
    fn published_values() {
        for (x, erf) in [(0.5f64, 0.520_499_877_8), (1.0, 0.842_700_792_9), (1.9, 0.992_790_429_2)] {
            assert!((1.0 - erfc(x) - erf).abs() < 1e-10 && (erfc(-x) - 1.0 - erf).abs() < 1e-10, "{x}");
            assert!((1.0 - plain_erfc(x) - erf).abs() < 1e-10, "{x}");
        }
    }

    #[test]
    fn at_the_edges() {
        assert_eq!(erfc(0.0f32), 1.0);
        assert_eq!([erfc(f32::INFINITY), erfc(f32::NEG_INFINITY), erfc(1e9f32)], [0.0, 2.0, 0.0]);
        assert_eq!([erfc(f64::INFINITY), erfc(-1e9f64)], [0.0, 2.0]);
        assert!(erfc(f32::NAN).is_nan());
    }
}
