//! The two 8-bit float formats of the OCP 8-bit Floating Point Specification (revision 1.0, 2023), which
//! matrix products of fp8 programs read.

use super::{DType, Elem};
use std::sync::LazyLock;

/// A float with 4 bits of exponent and 3 of mantissa: up to 448 in steps of at least 2⁻⁹, no infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(pub u8);

/// A float with 5 bits of exponent and 2 of mantissa: up to 57,344 in steps of at least 2⁻¹⁶.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct E5m2(pub u8);

/// The layout of an 8-bit format.
#[derive(Clone, Copy, Debug)]
struct Layout {
    mantissa: u32,
    bias: i32,
    /// The largest finite number.
    largest: f32,
    /// The magnitude bits of a NaN.
    nan: u8,
}

const E4M3: Layout = Layout { mantissa: 3, bias: 7, largest: 448.0, nan: 0x7f };
const E5M2: Layout = Layout { mantissa: 2, bias: 15, largest: 57_344.0, nan: 0x7f };

impl Layout {
    /// Returns the number that a byte stands for.
    fn decode(self, byte: u8) -> f32 {
        let magnitude = byte & 0x7f;
        let (exponent, fraction) = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let step = |exponent: i32| 2f32.powi(exponent - self.bias - self.mantissa as i32);
        let implied = f32::from(1u8 << self.mantissa) + f32::from(fraction);
        let value = match exponent {
            0 => f32::from(fraction) * step(1),
            _ => implied * step(i32::from(exponent)),
        };
        // E4M3 has one NaN per sign. In E5M2 the largest exponent stands for infinity and NaN.
        let value = match value > self.largest {
            true if self.mantissa == 2 && fraction == 0 => f32::INFINITY,
            true => f32::NAN,
            false => value,
        };
        if byte & 0x80 == 0 { value } else { -value }
    }

    /// Returns the byte of the nearest number, ties to even. Numbers beyond the largest, infinities among
    /// them, become the largest; a NaN stays a NaN.
    fn encode(self, value: f32) -> u8 {
        let sign = (value.to_bits() >> 24) as u8 & 0x80;
        if value.is_nan() {
            return sign | self.nan;
        }
        let size = value.abs().min(self.largest);
        // The exponent of the number, or that of the subnormal numbers.
        let exponent = ((size.to_bits() >> 23) as i32 - 127).max(1 - self.bias);
        // Scaling by a power of two is exact, so this rounds once.
        let steps = (size * 2f32.powi(self.mantissa as i32 - exponent)).round_ties_even() as u32;
        // A subnormal number has the exponent 0 and no implied bit. Rounding up to the next power of two
        // carries into the exponent.
        let below = ((exponent + self.bias - 1) as u32) << self.mantissa;
        sign | (below + steps) as u8
    }
}

/// Implements a format.
macro_rules! format {
    ($type:ident, $layout:ident) => {
        impl $type {
            /// The largest finite number of the format.
            pub const LARGEST: f32 = $layout.largest;

            /// Returns the number with these bits.
            pub fn from_bits(bits: u8) -> Self {
                Self(bits)
            }
        }

        impl Elem for $type {
            type Acc = f32;
            const DTYPE: DType = DType::$type;
            #[inline(always)]
            fn up(self) -> f32 {
                static NUMBERS: LazyLock<[f32; 256]> =
                    LazyLock::new(|| std::array::from_fn(|byte| $layout.decode(byte as u8)));
                NUMBERS[usize::from(self.0)]
            }
            /// Rounds to nearest, ties to even. A number beyond the largest becomes the largest.
            fn down(value: f32) -> Self {
                Self($layout.encode(value))
            }
        }
    };
}

format!(E4m3, E4M3);
format!(E5m2, E5M2);

/// Runs generic code for a runtime 8-bit format: `dispatch_fp8!(dtype, E => expression)`.
///
/// Panics for other formats, which `infer` of every op on 8-bit tensors rejects at plan time.
#[macro_export]
macro_rules! dispatch_fp8 {
    ($dtype:expr, $elem:ident => $body:expr) => {
        match $dtype {
            $crate::device::DType::E4m3 => {
                type $elem = $crate::device::E4m3;
                $body
            }
            $crate::device::DType::E5m2 => {
                type $elem = $crate::device::E5m2;
                $body
            }
            other => unreachable!("infer rejects {other} tensors here"),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the byte of the number nearest to a value by comparing it with all numbers of the format;
    /// of two equally near ones, that with an even mantissa.
    fn nearest(layout: Layout, value: f32) -> u8 {
        let target = f64::from(value.abs().min(layout.largest));
        let distance = |byte: u8| (f64::from(layout.decode(byte)) - target).abs();
        let numbers = (0..0x7fu8).filter(|&byte| layout.decode(byte).is_finite());
        let best =
            numbers.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then_with(|| (a & 1).cmp(&(b & 1))));
        best.unwrap_or_default() | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn numbers_are_those_of_the_specification() {
        let e4m3 = |byte| E4m3(byte).up();
        assert_eq!(
            [0x00, 0x01, 0x07, 0x08, 0x38, 0x7e].map(e4m3),
            [0.0, 2f32.powi(-9), 7.0 * 2f32.powi(-9), 2f32.powi(-6), 1.0, 448.0]
        );
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        let e5m2 = |byte| E5m2(byte).up();
        assert_eq!(
            [0x01, 0x03, 0x04, 0x3c, 0x7b, 0x7c, 0xfc].map(e5m2),
            [
                2f32.powi(-16),
                3.0 * 2f32.powi(-16),
                2f32.powi(-14),
                1.0,
                57_344.0,
                f32::INFINITY,
                f32::NEG_INFINITY
            ]
        );
        assert!((0x7d..=0x7f).all(|byte| e5m2(byte).is_nan()));
    }

    #[test]
    fn rounds_to_the_nearest_number() {
        // Every bf16 number, and numbers between them, at and beside the middles.
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                for (layout, byte) in [(E4M3, E4m3::down(value).0), (E5M2, E5m2::down(value).0)] {
                    match value.is_nan() {
                        true => assert!(layout.decode(byte).is_nan()),
                        false => assert_eq!(byte, nearest(layout, value), "{value:e} {layout:?}"),
                    }
                }
            }
        }
    }

    /// The numbers are those of `scripts/fp8_casts.py`, with PyTorch 2.15.
    #[test]
    fn casts_are_those_of_pytorch() {
        let numbers = (0..=u16::MAX).map(|bits| f32::from_bits(u32::from(bits) << 16));
        let combined = |cast: fn(f32) -> u8| {
            let casts = numbers.clone().filter(|number| !number.is_nan()).map(cast);
            casts.fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
        };
        assert_eq!(combined(|number| E4m3::down(number).0), 0x925b_e6dd_97da_f860);
        assert_eq!(combined(|number| E5m2::down(number).0), 0x3b8b_0d23_2ce6_5820);
    }

    #[test]
    fn large_numbers_saturate() {
        assert_eq!([449.0, 1e30, f32::INFINITY].map(|x| E4m3::down(x).up()), [448.0; 3]);
        assert_eq!([-1e9, f32::NEG_INFINITY].map(|x| E5m2::down(x).up()), [-57_344.0; 2]);
    }
}
