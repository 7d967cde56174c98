//! The cases that prove the choice of tokens, against a full sort.

use super::{SampleTokens, WEIGHT_BITS};
use crate::device::philox::philox;
use crate::ir::{Array, Case, Cases, Fill, Mode, Precision, Spec};

/// Returns the cases at a precision.
pub(super) fn cases(precision: Precision) -> Cases {
    let normal = || Fill::Normal(0.0, 3.0);
    let greedy = (0.0, 0, 1.0);
    let mut cases = Vec::new();
    let mut case = |name: &str, (rows, vocab, alloc): (usize, usize, usize), fill: Fill, sampling| {
        // The last entries of a large vocabulary take no part.
        let entries = if vocab == 5000 { 4321 } else { vocab };
        let (temperature, top_k, top_p) = sampling;
        let op = SampleTokens { temperature, top_k, top_p, seed: 0x1234_5678_9abc, entries, last: 50 };
        let logits = (Spec::padded([rows, vocab], [rows, alloc], precision.act_dtype), fill);
        // Every row at a position of its own; one row was bad before.
        let positions = Fill::Values((0..rows).map(|row| (7 * row) as f64).collect());
        let bad = Fill::Values((0..rows).map(|row| f64::from(u8::from(row == 0))).collect());
        let outputs = vec![(Mode::Write, Fill::Below(1)), (Mode::Add, positions), (Mode::Add, bad)];
        cases.push(
            Case::new(name, op, vec![logits], move |inputs| reference(op, inputs))
                .differentiable(&[])
                .upstream(&[])
                .outputs(outputs),
        );
    };
    case("greedy", (5, 1000, 1024), normal(), greedy);
    case("greedy of equals", (3, 70, 128), Fill::Values(vec![1.0; 210]), greedy);
    case("greedy below zero", (2, 33, 33), Fill::Uniform(-9.0, -1.0), greedy);
    case("all", (9, 5000, 5056), normal(), (0.8, 0, 1.0));
    case("odd width", (4, 777, 777), normal(), (1.0, 0, 1.0));
    case("one token", (2, 1, 64), normal(), (1.0, 3, 0.5));
    case("top 40", (9, 3000, 3008), normal(), (1.0, 40, 1.0));
    case("k beyond the vocabulary", (3, 60, 64), normal(), (1.0, 100, 1.0));
    case("nucleus", (9, 3000, 3008), normal(), (1.0, 0, 0.9));
    case("tiny nucleus", (4, 3000, 3008), normal(), (1.0, 0, 1e-9));
    case("top 40 and nucleus", (9, 3000, 3008), normal(), (1.3, 40, 0.7));
    case("equals cut by k", (6, 700, 704), Fill::Values(vec![-2.5; 4200]), (1.0, 300, 1.0));
    case("equals cut by k and nucleus", (6, 700, 704), Fill::Values(vec![0.0; 4200]), (1.0, 300, 0.31));
    let steps = (0..9 * 400).map(|i| f64::from(i * 7 % 5)).collect();
    case("many equals", (9, 400, 448), Fill::Values(steps), (2.0, 150, 0.8));
    case("cold", (4, 300, 320), normal(), (1e-6, 0, 1.0));
    case("hot", (4, 300, 320), normal(), (100.0, 0, 0.5));
    let mut holes = vec![f64::NEG_INFINITY; 3 * 100];
    (holes[17], holes[103], holes[299]) = (1.0, -4.0, 0.5);
    case("minus infinity", (3, 100, 128), Fill::Values(holes), (1.0, 0, 1.0));
    let mut broken = vec![0.5; 4 * 100];
    (broken[50], broken[199], broken[200]) = (f64::NAN, f64::INFINITY, f64::NAN);
    case("not finite", (4, 100, 128), Fill::Values(broken.clone()), (1.0, 10, 0.9));
    case("greedy, not finite", (4, 100, 128), Fill::Values(broken), greedy);
    Cases::Own(cases)
}

/// Sorts every row, adds up in that order, and draws by id.
fn reference(op: SampleTokens, inputs: &[Array]) -> Vec<Array> {
    let [logits, positions, bad] = inputs else { return Vec::new() };
    let (rows, vocab) = (logits.shape[0], logits.shape[1]);
    let mut out = vec![Array::zeros(&[rows]); 3];
    for row in 0..rows {
        let position = positions.data[row];
        out[1].data[row] = (position + 1.0).min(f64::from(op.last));
        let values = &logits.data[row * vocab..][..op.entries];
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_bad = values.iter().any(|x| x.is_nan()) || !highest.is_finite();
        out[2].data[row] = bad.data[row] + f64::from(u8::from(is_bad));
        if is_bad {
            continue;
        }
        let mut order: Vec<usize> = (0..op.entries).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        if op.temperature == 0.0 {
            out[0].data[row] = order[0] as f64;
            continue;
        }
        let scale = 2f64.powi(WEIGHT_BITS as i32);
        let weight = |i: usize| (((values[i] - highest) / op.temperature).exp() * scale).round();
        if op.top_k > 0 {
            order.truncate(op.top_k);
        }
        let mass: f64 = order.iter().map(|&i| weight(i)).sum();
        let (mut kept, mut sum) = (0, 0.0);
        while kept < order.len() && (op.top_p == 1.0 || sum < (op.top_p * mass).ceil()) {
            sum += weight(order[kept]);
            kept += 1;
        }
        order.truncate(kept);
        order.sort_unstable();
        let bits = philox([position as u32, row as u32, 0, 0], op.key());
        let unit = (f64::from(bits[0]) + f64::from(bits[1]) / 2f64.powi(32)) / 2f64.powi(32);
        let mut left = unit * order.iter().map(|&i| weight(i)).sum::<f64>();
        for &token in &order {
            left -= weight(token);
            if left < 0.0 {
                out[0].data[row] = token as f64;
                break;
            }
        }
    }
    out
}
