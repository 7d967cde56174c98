//! The operations: one file each, with shapes, gradient, cost, CPU implementation and cases.

pub mod adamw;
pub mod add;
pub mod advance;
pub mod all_reduce;
pub mod copy;
pub mod grad_norm;
pub mod linear;

use crate::device::DType;
use crate::ir::{Case, Cases, Op, Precision, Spec};

/// One prototype of every op, so that checks can enumerate them.
pub fn all() -> Vec<Box<dyn Op>> {
    vec![
        Box::new(adamw::AdamW {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            segments: Vec::new(),
            precision: Precision::of(DType::F32),
        }),
        Box::new(add::Add),
        Box::new(advance::Advance),
        Box::new(all_reduce::AllReduce { like: Spec::new([1], DType::F32) }),
        Box::new(copy::Copy),
        Box::new(grad_norm::GradNorm { max_norm: 1.0 }),
        Box::new(linear::Linear),
        Box::new(linear::LinearInputGrad),
        Box::new(linear::LinearWeightGrad),
    ]
}

/// The cases of every op at a precision, in registry order.
pub fn cases(precision: Precision) -> Vec<Case> {
    all()
        .iter()
        .flat_map(|op| match op.cases(precision) {
            Cases::Own(cases) => cases,
            Cases::GradientOf(_) => Vec::new(),
        })
        .collect()
}
