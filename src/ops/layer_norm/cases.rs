//! Cases of layer norm, alone and after a residual addition, against torch's formula.

use crate::ir::{Array, Case, Fill, Op, Precision, Spec};

/// Cases of the norm alone, or with `residual` of the norm after an addition.
pub(super) fn cases<O: Op + Copy + 'static>(
    precision: Precision,
    op: O,
    eps: f64,
    residual: bool,
) -> Vec<Case> {
    let case = |name: &str, (n, d): (usize, usize), pad: usize| {
        let rows = Spec::padded([n, d], [n, pad], precision.act_dtype);
        let weight = Spec::padded([d], [pad], precision.master);
        // Away from zero, so that a missing subtraction of the mean shows.
        let mut inputs = vec![(rows.clone(), Fill::Normal(0.7, 1.5))];
        if residual {
            inputs.push((rows, Fill::Normal(0.2, 0.7)));
        }
        let first = inputs.len();
        inputs.extend([(weight.clone(), Fill::Normal(1.0, 0.3)), (weight, Fill::Normal(0.1, 0.5))]);
        let name = format!("{name}n{n} d{d}");
        let case = if residual {
            Case::new(name, op, inputs, move |inputs: &[Array]| {
                let mut r = inputs[0].clone();
                r.data.iter_mut().zip(&inputs[1].data).for_each(|(x, y)| *x += y);
                let n = torch_layer_norm(&r, &inputs[2], &inputs[3], eps);
                vec![r, n]
            })
            .upstream(&[0, 1])
        } else {
            Case::new(name, op, inputs, move |inputs: &[Array]| {
                vec![torch_layer_norm(&inputs[0], &inputs[1], &inputs[2], eps)]
            })
        };
        case.weights(&[first, first + 1]).depth(n.max(d))
    };
    let mut cases: Vec<Case> = [(1, 128), (17, 96), (255, 64), (256, 48), (1000, 40), (33, 5), (9, 1536)]
        .into_iter()
        .map(|shape| case("", shape, shape.1))
        .collect();
    cases.push(case("padded ", (9, 30), 64));
    if residual {
        cases.push(case("residual unread ", (33, 40), 40).upstream(&[1]));
    }
    cases
}

/// Computes the formula in the documentation of torch.nn.LayerNorm: `(x − E[x]) / √(Var[x] + eps) · weight +
/// bias`, with the biased estimate of the variance (`torch.var(input, correction=0)`).
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
