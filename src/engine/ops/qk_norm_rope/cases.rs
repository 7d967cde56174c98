//! Shapes, inputs and the reference norm of the test cases.

use super::norm::{QkNorm, QkNormRope};
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

/// Returns the inputs of the norm: the rows, then wq and wk if it has weights.
pub(super) fn inputs(n: usize, op: QkNormRope, precision: Precision) -> Vec<(Spec, Fill)> {
    let heads = op.norm.heads;
    let weight = Spec::new([heads.dim], precision.master);
    let rows = |width: usize| (Spec::new([n, width], precision.act_dtype), Fill::Normal(0.0, 2.0));
    let mut inputs = vec![rows(op.row_width())];
    inputs.extend(op.values_apart.then(|| rows(heads.width() - op.row_width())));
    if op.norm.weighted {
        inputs.extend([(weight.clone(), Fill::Normal(1.0, 0.2)), (weight, Fill::Normal(1.0, 0.2))]);
    }
    inputs
}

/// Returns tensors of equally many rows side by side.
pub(super) fn packed(rows: &[Array]) -> Array {
    let (count, width) = (rows[0].shape[0], rows.iter().map(Array::width).sum());
    let mut packed = Array { shape: vec![count, width], data: Vec::with_capacity(count * width) };
    for row in 0..count {
        for part in rows {
            packed.data.extend(&part.data[row * part.width()..][..part.width()]);
        }
    }
    packed
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
                    * weight.map_or(1.0, |w| w.data[d] + norm.weight_offset);
            }
        }
    }
    y
}
