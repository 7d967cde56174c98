//! Test cases of cross-entropy, and its formula by plain loops.

use super::objective::{IGNORED, Objective};
use crate::device::DType;
use crate::ir::{Array, Case, Fill, Op, Precision, Spec};

/// The parts of an objective beyond plain cross-entropy, each alone and then all together.
pub(in crate::ops) const OBJECTIVES: [(&str, Objective); 5] = [
    ("scaled", Objective { logit_scale: 0.375, ..Objective::PLAIN }),
    ("capped", Objective { logit_cap: Some(4.0), ..Objective::PLAIN }),
    ("z-loss", Objective { z_loss: 0.05, ..Objective::PLAIN }),
    ("smoothed", Objective { label_smoothing: 0.2, ..Objective::PLAIN }),
    ("everything", Objective { logit_scale: 1.5, logit_cap: Some(6.0), z_loss: 0.05, label_smoothing: 0.2 }),
];

/// Returns the test cases of an op that computes the losses of an objective.
pub(super) fn cases<O: Op + 'static>(precision: Precision, op: impl Fn(Objective) -> O) -> Vec<Case> {
    let objective_case =
        |(name, objective): (&str, Objective), n: usize, vocab: (usize, usize), targets: Fill| {
            case(precision, op(objective), (name, objective), n, vocab, targets)
        };
    let case = |n, vocab, targets: Fill| objective_case(("", Objective::PLAIN), n, vocab, targets);
    let ignoring = Fill::Values(vec![3.0, f64::from(IGNORED), 39.0, 0.0]);
    let mut cases = vec![
        case(1, (5, 5), Fill::Below(5)),
        case(17, (300, 320), Fill::Below(300)),
        case(255, (33, 33), Fill::Below(33)),
        case(256, (16, 64), Fill::Below(16)),
        case(1000, (10, 10), Fill::Below(10)),
        case(12, (40, 64), ignoring.clone()),
    ];
    for objective in OBJECTIVES {
        cases.extend([
            // With fewer words, ln Σ e^l can be almost 0, and then no format represents it to its relative
            // precision.
            objective_case(objective, 1, (50, 64), Fill::Below(50)),
            objective_case(objective, 17, (300, 320), Fill::Below(300)),
            objective_case(objective, 12, (50, 64), ignoring.clone()),
        ]);
    }
    cases
}

fn case(
    precision: Precision,
    op: impl Op + 'static,
    (name, objective): (&str, Objective),
    n: usize,
    (vocab, pad): (usize, usize),
    targets: Fill,
) -> Case {
    let inputs = vec![
        (Spec::padded([n, vocab], [n, pad], precision.act_dtype), Fill::Normal(-3.0, 4.0)),
        (Spec::new([n], DType::U32), targets),
    ];
    let name = format!("n{n} v{vocab} {name}");
    Case::new(name.trim_end(), op, inputs, move |inputs: &[Array]| {
        let vocab = inputs[0].width();
        let rows = inputs[0].data.chunks(vocab).zip(&inputs[1].data);
        let losses: Vec<[f64; 3]> = rows.map(|(row, &target)| losses(&objective, row, target)).collect();
        let output = |k: usize| Array {
            shape: inputs[1].shape.clone(),
            data: losses.iter().map(|losses| losses[k]).collect(),
        };
        let [z_loss, smoothing] = objective.places(1).map(|place| place.is_some());
        let all = [(true, 0), (z_loss, 1), (smoothing, 2)];
        all.into_iter().filter(|(there, _)| *there).map(|(_, k)| output(k)).collect()
    })
    .upstream(&(0..=objective.terms()).collect::<Vec<_>>())
    .depth(vocab)
}

/// Returns the logits that the losses see, and their derivatives with respect to the stored logits.
fn transformed(objective: &Objective, stored: &[f64]) -> Vec<(f64, f64)> {
    let scale = objective.logit_scale;
    let one = |&z: &f64| match objective.logit_cap {
        None => (scale * z, scale),
        Some(cap) => {
            let l = cap * (scale * z / cap).tanh();
            (l, scale * (1.0 - (l / cap).powi(2)))
        }
    };
    stored.iter().map(one).collect()
}

/// Returns the cross-entropy, z-loss and smoothing loss of a row.
pub(in crate::ops) fn losses(objective: &Objective, stored: &[f64], target: f64) -> [f64; 3] {
    if target == f64::from(IGNORED) {
        return [0.0; 3];
    }
    let logits = transformed(objective, stored);
    let log_total = logits.iter().map(|(l, _)| l.exp()).sum::<f64>().ln();
    let plain = |word: usize| log_total - logits[word].0;
    let mean = (0..logits.len()).map(plain).sum::<f64>() / logits.len() as f64;
    let (s, plain) = (objective.label_smoothing, plain(target as usize));
    // The smoothing loss is what (1 - s)·plain + s·mean exceeds plain by.
    [plain, objective.z_loss * log_total * log_total, s * (mean - plain)]
}

/// Returns the gradient of the sum of all losses of a row with respect to its stored logits.
pub(in crate::ops) fn gradient(objective: &Objective, stored: &[f64], target: f64) -> Vec<f64> {
    if target == f64::from(IGNORED) {
        return vec![0.0; stored.len()];
    }
    let logits = transformed(objective, stored);
    let total: f64 = logits.iter().map(|(l, _)| l.exp()).sum();
    let (s, count) = (objective.label_smoothing, logits.len() as f64);
    let one = |(word, (l, slope)): (usize, &(f64, f64))| {
        let onehot = if word == target as usize { 1.0 } else { 0.0 };
        let wanted = (1.0 - s) * onehot + s / count;
        let probability = l.exp() / total;
        (probability - wanted + 2.0 * objective.z_loss * total.ln() * probability) * slope
    };
    logits.iter().enumerate().map(one).collect()
}
