//! The operations: one file each, with shapes, gradient, cost, CPU implementation and cases.

pub mod adamw;
pub mod add;
pub mod advance;
pub mod all_reduce;
pub mod cast;
pub mod copy;
pub mod cross_entropy;
pub mod embedding;
pub mod grad_norm;
pub mod half;
pub mod head_loss;
mod lanes;
pub mod linear;
pub mod mul;
pub mod residual_norm;
pub mod rms_norm;
pub mod scale;
pub mod silu;
pub mod sum;
pub mod swiglu;
#[cfg(test)]
pub mod with_gradient;

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
        Box::new(cast::Cast { to: DType::F32 }),
        Box::new(copy::Copy),
        Box::new(cross_entropy::CrossEntropy),
        Box::new(cross_entropy::CrossEntropyGrad),
        Box::new(embedding::Embedding),
        Box::new(embedding::EmbeddingGrad),
        Box::new(grad_norm::GradNorm { max_norm: 1.0 }),
        Box::new(half::Half { index: 0 }),
        Box::new(half::HalfGrad { index: 0 }),
        Box::new(head_loss::HeadLoss { scale: 1.0, gradients: true }),
        Box::new(linear::Linear),
        Box::new(linear::LinearInputGrad),
        Box::new(linear::LinearWeightGrad),
        Box::new(mul::Mul),
        Box::new(residual_norm::ResidualNorm { eps: 1e-6 }),
        Box::new(rms_norm::RmsNorm { eps: 1e-6 }),
        Box::new(rms_norm::RmsNormGrad { eps: 1e-6, residual: false }),
        Box::new(scale::Scale { factor: 1.0 }),
        Box::new(silu::Silu),
        Box::new(silu::SiluGrad),
        Box::new(sum::Sum { scale: 1.0 }),
        Box::new(sum::SumGrad { scale: 1.0 }),
        Box::new(swiglu::Swiglu),
        Box::new(swiglu::SwigluGrad),
        Box::new(with_gradient::WithGradient),
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
