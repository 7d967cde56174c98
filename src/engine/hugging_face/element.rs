//! Formats of elements, and their conversion to fp32.

use half::{bf16, f16};

/// Format of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    Bf16,
    F16,
    /// A format that weights are not read in, such as the format of masks: its name, and the bytes per
    /// element.
    Other(&'static str, usize),
}

/// Formats that weights are not read in, with the bytes per element.
const OTHERS: [(&str, usize); 12] = [
    ("BOOL", 1),
    ("U8", 1),
    ("I8", 1),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
    ("U16", 2),
    ("I16", 2),
    ("U32", 4),
    ("I32", 4),
    ("U64", 8),
    ("I64", 8),
    ("F64", 8),
];

impl Element {
    /// Returns the format with this name in a header; `None` if no such format exists.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "BF16" => Some(Self::Bf16),
            "F16" => Some(Self::F16),
            _ => {
                OTHERS.iter().find(|(other, _)| *other == name).map(|(other, size)| Self::Other(other, *size))
            }
        }
    }

    /// Returns the bytes per element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Other(_, size) => size,
        }
    }

    /// Appends the elements to `out`, widened exactly to fp32. Appends nothing for other formats.
    pub(super) fn widen(self, bytes: &[u8], out: &mut Vec<f32>) {
        match self {
            Self::F32 => out.extend(bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x))),
            Self::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|&x| bf16::from_le_bytes(x).to_f32())),
            Self::F16 => out.extend(bytes.as_chunks().0.iter().map(|&x| f16::from_le_bytes(x).to_f32())),
            Self::Other(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks against the definitions of the formats: IEEE 754 half precision, and the upper half of single
    /// precision.
    #[test]
    fn every_element_of_two_bytes_widens_exactly() {
        for bits in 0..=u16::MAX {
            let mut wide = Vec::new();
            Element::Bf16.widen(&bits.to_le_bytes(), &mut wide);
            Element::F16.widen(&bits.to_le_bytes(), &mut wide);
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
            let size = match exponent {
                0 => fraction * 2f32.powi(-24),
                31 => f32::INFINITY,
                _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
            };
            let expected = if bits >> 15 == 1 { -size } else { size };
            let upper = f32::from_bits(u32::from(bits) << 16);
            assert!(wide[0].to_bits() == upper.to_bits() || (wide[0].is_nan() && upper.is_nan()), "{bits:x}");
            match exponent == 31 && fraction > 0.0 {
                true => assert!(wide[1].is_nan(), "{bits:x}"),
                false => assert_eq!(wide[1].to_bits(), expected.to_bits(), "{bits:x}"),
            }
        }
    }
}
