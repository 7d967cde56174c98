//! Shapes, inputs and the reference norm of the test cases.

use super::norm::QkNorm;
use crate::ir::{Array, Fill, Precision, Spec};
use crate::ops::attention::Heads;

/// Returns the rows and heads of test cases.
pub(super) fn shapes() -> impl Iterator<Item = (usize, Heads)> {
    [
        (1, (1, 1, 32)),
        (17, (4, 2, 64)),
        (33, (8, 1, 96)),
        (255, (2, 1, 128)),
        (1000, (1, 1, 32)),
        (5, (2, 1, 6)),
    ]
    .into_iter()
    .map(|(n, (query, kv, dim))| (n, Heads { query, kv, dim }))
}

/// Returns the inputs of the norm: qkv, then wq and wk if it has weights.
pub(super) fn inputs(n: usize, norm: QkNorm, precision: Precision) -> Vec<(Spec, Fill)> {
    let weight = Spec::new([norm.heads.dim], precision.master);
    let mut inputs = vec![(Spec::new([n, norm.heads.width()], precision.act_dtype), Fill::Normal(0.0, 2.0))];
    if norm.weighted {
        inputs.extend([(weight.clone(), Fill::Normal(1.0, 0.2)), (weight, Fill::Normal(1.0, 0.2))]);
    }
    inputs
}

/// Computes the norm of rows by its definition. `weights` are wq and wk, or empty.
pub(super) fn reference(norm: QkNorm, x: &Array, weights: &[Array]) -> Array {
    let (QkNorm { heads, eps, .. }, width) = (norm, x.width());
    let mut y = x.clone();
    for row in 0..x.shape[0] {
        for head in 0..heads.query + heads.kv {
            let start = row * width + head * heads.dim;
            let weight = weights.get(usize::from(head >= heads.query));
            let squares: f64 = (0..heads.dim).map(|d| x.data[start + d].powi(2)).sum();
            for d in 0..heads.dim {
                y.data[start + d] = x.data[start + d] / (squares / heads.dim as f64 + eps).sqrt()
                    * weight.map_or(1.0, |w| w.data[d]);
            }
        }
    }
    y
}
