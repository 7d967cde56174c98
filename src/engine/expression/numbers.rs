//! Functions and powers of numbers, computed as formulas compute them.

use super::functions::Function;
use super::slopes::steps_of;
use super::tree::{Operator, Tree};

impl Function {
    /// Computes the function of numbers, as many as it has arguments, in f64.
    pub fn evaluate(self, arguments: &[f64]) -> f64 {
        value(&Tree::Call(self, arguments.iter().copied().map(Tree::Number).collect()))
    }
}

/// Computes a power in f64.
pub fn power(base: f64, exponent: f64) -> f64 {
    value(&Tree::Operation(Operator::Power, Tree::Number(base).into(), Tree::Number(exponent).into()))
}

/// Returns the value of a tree without variables.
fn value(tree: &Tree) -> f64 {
    steps_of(tree, None).evaluate(&[])[0]
}
