//! Cases of the head, and its losses and gradients by loops over rows and the vocabulary.

use super::super::cross_entropy::{Objective, cases as formula};
use super::{DW, HeadLoss};
use crate::device::{DType, ProductPrecision};
use crate::ir::{Array, Case, Fill, Mode, Precision, Spec};

pub(super) fn cases(precision: Precision) -> Vec<Case> {
    let ignoring = Fill::Values(vec![3.0, f64::from(u32::MAX), 39.0, 0.0, 39.0]);
    let plain = |sizes, vocab, targets: Fill, gradients, mode| {
        case(precision, ("", Objective::PLAIN), sizes, vocab, targets, (gradients, mode))
    };
    let mut cases = Vec::new();
    for (gradients, mode) in [(true, Mode::Write), (true, Mode::Add), (false, Mode::Write)] {
        cases.push(plain((1, 24), (5, 5), Fill::Below(5), gradients, mode));
        cases.push(plain((17, 32), (300, 320), Fill::Below(300), gradients, mode));
        cases.push(plain((255, 16), (33, 64), Fill::Below(33), gradients, mode));
        cases.push(plain((19, 20), (40, 64), ignoring.clone(), gradients, mode));
    }
    cases.push(plain((256, 48), (50, 64), Fill::Below(50), true, Mode::Add));
    cases.push(plain((1000, 8), (10, 10), Fill::Below(10), true, Mode::Write));
    for objective in formula::OBJECTIVES {
        let case = |sizes, vocab, targets: Fill, gradients, mode| {
            case(precision, objective, sizes, vocab, targets, (gradients, mode))
        };
        cases.push(case((1, 24), (5, 5), Fill::Below(5), true, Mode::Write));
        cases.push(case((17, 32), (300, 320), Fill::Below(300), false, Mode::Write));
        cases.push(case((19, 20), (40, 64), ignoring.clone(), true, Mode::Write));
        cases.push(case((37, 20), (300, 320), Fill::Below(300), true, Mode::Add));
    }
    cases
}

/// Forward only: the generic gradient check uses any upstream gradient, and this op accepts only 1.
fn case(
    precision: Precision,
    (name, objective): (&str, Objective),
    (n, d): (usize, usize),
    (vocab, pad): (usize, usize),
    targets: Fill,
    (gradients, mode): (bool, Mode),
) -> Case {
    let op = HeadLoss { scale: 1.0 / n as f64, gradients, objective, products: ProductPrecision::Native };
    let inputs = vec![
        (Spec::new([n, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
        (Spec::padded([vocab, d], [pad, d], precision.act_dtype), Fill::Normal(0.0, 0.5)),
        (Spec::new([n], DType::U32), targets),
    ];
    let outputs = (0..if gradients { 4 } else { 2 }).map(|k| {
        let mode = if k == DW { mode } else { Mode::Write };
        (mode, Fill::Normal(0.0, 0.1))
    });
    let name = format!("n{n} d{d} v{vocab} gradients {gradients} {mode:?} {name}");
    Case::new(name.trim_end(), op, inputs, move |inputs| reference(inputs, op, precision.act_dtype))
        .weights(&[1])
        .outputs(outputs.collect())
        .differentiable(&[])
        .upstream(&[])
        .depth(d.max(vocab).max(n))
}

/// Logits and their gradients are stored in the format of activations, so the reference rounds them to it.
fn reference(inputs: &[Array], op: HeadLoss, act_dtype: DType) -> Vec<Array> {
    let stored = |value: f64| match act_dtype {
        DType::Bf16 => half::bf16::from_f64(value).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    };
    let (x, w, targets) = (&inputs[0], &inputs[1], &inputs[2]);
    let d = x.width();
    let mut losses = [(); 3].map(|()| Array::zeros(&targets.shape));
    let (mut dx, mut dw) = (Array::zeros(&x.shape), Array::zeros(&w.shape));
    if let Some(before) = inputs.get(3) {
        dw.data.clone_from(&before.data);
    }
    for (r, &target) in targets.data.iter().enumerate() {
        let row = &x.data[r * d..][..d];
        let logits: Vec<f64> =
            w.data.chunks(d).map(|word| stored(word.iter().zip(row).map(|(a, b)| a * b).sum())).collect();
        for (to, loss) in losses.iter_mut().zip(formula::losses(&op.objective, &logits, target)) {
            to.data[r] = loss;
        }
        for (v, gradient) in formula::gradient(&op.objective, &logits, target).into_iter().enumerate() {
            let gradient = stored(op.scale * gradient);
            for (k, x) in row.iter().enumerate() {
                dx.data[r * d + k] += gradient * w.data[v * d + k];
                dw.data[v * d + k] += gradient * x;
            }
        }
    }
    let [plain, z_losses, smoothing] = losses;
    let mut outputs = vec![plain, Array::zeros(&[0])];
    if op.gradients {
        outputs.extend([dx, dw]);
    }
    let [has_z_losses, has_smoothing] = op.term_outputs().map(|output| output.is_some());
    outputs.extend(has_z_losses.then_some(z_losses));
    outputs.extend(has_smoothing.then_some(smoothing));
    outputs
}
