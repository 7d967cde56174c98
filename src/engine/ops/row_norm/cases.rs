//! Test cases of a norm, alone and after a residual addition.

use super::arithmetic::{RowNorm, vector_attributes};
use crate::ir::{Array, Case, Fill, Op, Precision, Spec};

/// Returns the test cases of the op of a norm: of the norm alone, or with `residual` after an addition.
pub(super) fn cases<N: RowNorm, O: Op>(
    precision: Precision,
    op: impl Fn(N) -> O,
    residual: bool,
) -> Vec<Case> {
    let case = |norm: N, (n, d): (usize, usize), pad: usize, more: &str| {
        let rows = Spec::padded([n, d], [n, pad], precision.act_dtype);
        let weight = Spec::padded([d], [pad], precision.master);
        // The mean is away from zero, so that a missing subtraction of the mean shows.
        let mut inputs = vec![(rows.clone(), Fill::Normal(0.7, 1.5))];
        if residual {
            inputs.push((rows, Fill::Normal(0.2, 0.7)));
        }
        let first = inputs.len();
        let vectors = [(weight.clone(), Fill::Normal(1.0, 0.3)), (weight, Fill::Normal(0.1, 0.5))];
        inputs.extend(vectors.into_iter().take(norm.affine().count()));
        let weights: Vec<usize> = (first..inputs.len()).collect();
        let name = format!("n{n} d{d}{}{more}", vector_attributes(norm));
        let reference = move |inputs: &[Array]| {
            let mut r = inputs[0].clone();
            if residual {
                r.data.iter_mut().zip(&inputs[1].data).for_each(|(x, y)| *x += y);
            }
            let n = reference(norm, &r, &inputs[first..]);
            if residual { vec![r, n] } else { vec![n] }
        };
        let case = Case::new(name, op(norm), inputs, reference).upstream(&[0, 1][..first]);
        case.weights(&weights).depth(n.max(d))
    };
    let mut cases = Vec::new();
    for (i, norm) in N::examples().into_iter().enumerate() {
        let shapes = [(17, 96), (1000, 40), (33, 5), (9, 1536), (1, 128), (255, 64), (256, 48)];
        // Four shapes suffice for every other norm; the fourth has rows for more than a warp.
        let shapes = &shapes[..if i == 0 { shapes.len() } else { 4 }];
        cases.extend(shapes.iter().map(|&shape| case(norm, shape, shape.1, "")));
        cases.push(case(norm, (9, 30), 64, " padded"));
        if residual {
            cases.push(case(norm, (33, 40), 40, " residual unread").upstream(&[1]));
        }
    }
    cases
}

/// Normalizes rows by the definition. As in torch, ones and zeros replace absent vectors.
fn reference<N: RowNorm>(norm: N, x: &Array, vectors: &[Array]) -> Array {
    let (ones, zeros) = (vec![1.0; x.width()], vec![0.0; x.width()]);
    let w = vectors.first().map_or(&ones, |w| &w.data);
    let b = vectors.get(1).map_or(&zeros, |b| &b.data);
    let mut y = x.clone();
    y.data.chunks_mut(x.width()).for_each(|row| norm.reference(row, w, b));
    y
}
