//! The operations: one file each, with shapes, gradient, cost, CPU implementation and cases.

pub mod attention;
pub mod dropout;
pub mod linear;
pub mod softmax;

use crate::ir::{Case, Cases, Op, Precision};

/// One prototype of every op, so that checks can enumerate them.
pub fn all() -> Vec<Box<dyn Op>> {
    vec![Box::new(linear::Linear), Box::new(linear::LinearInputGrad), Box::new(linear::LinearWeightGrad)]
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
