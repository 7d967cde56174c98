//! Test cases of layer norm, alone and after a residual addition, against torch's formula.

use crate::ir::{Array, Case, Fill, Op, Precision, Spec};
use crate::ops::affine::Affine;

/// Returns the test cases of the norm alone, or with `residual` of the norm after an addition.
pub(super) fn cases<O: Op + 'static>(
    precision: Precision,
    op: impl Fn(Affine) -> O,
    eps: f64,
    residual: bool,
) -> Vec<Case> {
    let case = |name: &str, (n, d): (usize, usize), pad: usize, affine: Affine| {
        let op = op(affine);
        let rows = Spec::padded([n, d], [n, pad], precision.act_dtype);
        let weight = Spec::padded([d], [pad], precision.master);
        // The mean is away from zero, so that a missing subtraction of the mean shows.
        let mut inputs = vec![(rows.clone(), Fill::Normal(0.7, 1.5))];
        if residual {
            inputs.push((rows, Fill::Normal(0.2, 0.7)));
        }
        let first = inputs.len();
        let vectors = [(weight.clone(), Fill::Normal(1.0, 0.3)), (weight, Fill::Normal(0.1, 0.5))];
        inputs.extend(vectors.into_iter().take(affine.count()));
        let weights: Vec<usize> = (first..inputs.len()).collect();
        // The rows, then weight and bias; as in torch, ones and zeros replace absent ones.
        let norm = move |rows: &Array, vectors: &[Array]| {
            let of = |number: f64| Array { shape: vec![d], data: vec![number; d] };
            let (one, zero) = (of(1.0), of(0.0));
            torch_layer_norm(rows, vectors.first().unwrap_or(&one), vectors.get(1).unwrap_or(&zero), eps)
        };
        let name = format!("{name}n{n} d{d}");
        let case = if residual {
            Case::new(name, op, inputs, move |inputs: &[Array]| {
                let mut r = inputs[0].clone();
                r.data.iter_mut().zip(&inputs[1].data).for_each(|(x, y)| *x += y);
                let n = norm(&r, &inputs[2..]);
                vec![r, n]
            })
            .upstream(&[0, 1])
        } else {
            Case::new(name, op, inputs, move |inputs: &[Array]| vec![norm(&inputs[0], &inputs[1..])])
        };
        case.weights(&weights).depth(n.max(d))
    };
    let mut cases: Vec<Case> = [(1, 128), (17, 96), (255, 64), (256, 48), (1000, 40), (33, 5), (9, 1536)]
        .into_iter()
        .map(|shape| case("", shape, shape.1, Affine::WeightAndBias))
        .collect();
    cases.push(case("padded ", (9, 30), 64, Affine::WeightAndBias));
    for (lacks, affine) in [("no bias ", Affine::Weight), ("no weight ", Affine::None)] {
        cases.extend([(17, 96), (1000, 40), (33, 5)].map(|shape| case(lacks, shape, shape.1, affine)));
        cases.push(case(&format!("{lacks}padded "), (9, 30), 64, affine));
    }
    if residual {
        for affine in [Affine::WeightAndBias, Affine::Weight, Affine::None] {
            cases.push(case(&format!("{affine:?} residual unread "), (33, 40), 40, affine).upstream(&[1]));
        }
    }
    cases
}

/// Computes the formula in the documentation of torch.nn.LayerNorm:
/// `(x − E[x]) / √(Var[x] + eps) · weight + bias`, with the biased estimate of the variance
/// (`torch.var(input, correction=0)`).
pub(super) fn torch_layer_norm(x: &Array, weight: &Array, bias: &Array, eps: f64) -> Array {
    let mut y = x.clone();
    for row in y.data.chunks_mut(weight.data.len()) {
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        for ((x, w), b) in row.iter_mut().zip(&weight.data).zip(&bias.data) {
            *x = (*x - mean) / (variance + eps).sqrt() * w + b;
        }
    }
    y
}
