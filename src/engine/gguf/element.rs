//! Formats of elements, and rounding to them.

use crate::error::{Error, Result};
use half::{bf16, f16};

/// The format of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

impl Element {
    /// Returns the number of the format in files (`enum ggml_type`).
    pub(super) fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 30,
        }
    }

    /// Returns the bytes per element.
    pub(super) fn size(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Checks that no finite number becomes infinite when it is rounded.
    ///
    /// # Errors
    /// A usage error that names the first such number.
    pub fn check(self, values: &[f32]) -> Result<()> {
        let overflows = |value: &f32| value.is_finite() && !self.rounded(*value).is_finite();
        let Some(at) = values.iter().position(overflows) else { return Ok(()) };
        let (name, largest) = match self {
            Self::F16 => ("fp16", f16::MAX.to_f32()),
            Self::Bf16 => ("bf16", bf16::MAX.to_f32()),
            Self::F32 => ("fp32", f32::MAX),
        };
        Err(Error::usage(format!(
            "element {at} is {}, and {name} ends at {largest}; export with a wider --dtype, such as fp32",
            values[at]
        )))
    }

    /// Returns numbers as the bytes of this format, rounded to nearest, ties to even.
    ///
    /// # Errors
    /// Like [`Element::check`].
    pub fn encode(self, values: &[f32]) -> Result<Vec<u8>> {
        self.check(values)?;
        Ok(match self {
            Self::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        })
    }

    /// Returns a number rounded to this format.
    pub fn rounded(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}
