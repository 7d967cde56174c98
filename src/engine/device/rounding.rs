//! The numbers that tensors store for values.

use super::{DType, E4m3, E5m2, Elem};

impl DType {
    /// Returns the number that a tensor of this format stores for a value.
    pub fn round(self, value: f64) -> f64 {
        match self {
            DType::F64 => value,
            DType::F32 => f64::from(value as f32),
            DType::Bf16 => half::bf16::from_f64(value).to_f64(),
            DType::E4m3 => f64::from(E4m3::down(value as f32).up()),
            DType::E5m2 => f64::from(E5m2::down(value as f32).up()),
            DType::U32 => value.trunc(),
        }
    }
}
