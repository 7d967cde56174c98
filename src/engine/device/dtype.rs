//! The number formats of tensors.

use std::fmt;

/// The storage format of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 64-bit float: gradient checks and references.
    F64,
    /// 32-bit float: masters, moments, gradients, and activations of fp32 and tf32 programs.
    F32,
    /// bfloat16: activations and product weights of bf16 programs.
    Bf16,
    /// 8-bit float with 3 bits of mantissa: factors of products in fp8 programs.
    E4m3,
    /// 8-bit float with 2 bits of mantissa and a wider range: gradients that such products read.
    E5m2,
    /// 32-bit unsigned: token ids, positions, counters, flags.
    U32,
}

impl DType {
    /// Returns the number of bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
            DType::E4m3 | DType::E5m2 => 1,
        }
    }

    /// Returns true for the formats in which ops compute: all except integers and 8-bit floats, which only
    /// products read.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::Bf16)
    }

    /// Returns true for 8-bit floats.
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::E4m3 | DType::E5m2)
    }

    /// Returns the format in which sums over this format are accumulated: fp32 for narrower floats, itself
    /// otherwise.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::Bf16 | DType::E4m3 | DType::E5m2 => DType::F32,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::E4m3 => "e4m3",
            DType::E5m2 => "e5m2",
            DType::U32 => "u32",
        })
    }
}

/// The formats of a program's activations and masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Format of activations and of the weights that products read.
    pub act_dtype: DType,
    /// Format of masters, moments, gradients, norm weights and statistics: the accumulator format of
    /// activations.
    pub master: DType,
}

impl Precision {
    /// Returns the precision that stores activations as `act_dtype`.
    pub fn for_act_dtype(act_dtype: DType) -> Self {
        Self { act_dtype, master: act_dtype.accumulator() }
    }

    /// Returns true if products read a rounded copy of the masters, the compute copy.
    pub fn has_compute_copy(self) -> bool {
        self.act_dtype != self.master
    }
}

/// The precision in which matrix products multiply their factors. Sums use the accumulator format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProductPrecision {
    /// Factors are multiplied in the format they are stored in.
    #[default]
    Native,
    /// On a GPU, f32 factors are rounded to TF32 (10 bits of mantissa) for its tensor cores. The same as
    /// `Native` elsewhere.
    Tf32,
}

impl ProductPrecision {
    /// Returns the attribute that an op prints; empty for `Native`.
    pub fn attribute(self) -> &'static str {
        match self {
            ProductPrecision::Native => "",
            ProductPrecision::Tf32 => "products=tf32",
        }
    }
}
