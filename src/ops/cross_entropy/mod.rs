//! Cross-entropy of rows of logits, and the row functions that it shares with `head_loss`.

use super::lanes::{max, replace_and_sum, rows_per_task, vector_width};
use super::sum::SumGrad;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::Upstream;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// A row with this target has no loss and no gradient.
pub const IGNORED: u32 = u32::MAX;

/// `losses[n] = ln Σ_v e^logits[n, v] - logits[n, targets[n]]` in nats, from `(logits[n, V], targets[n])`.
///
/// The padded vocabulary takes no part. Rows whose target is [`IGNORED`] lose 0.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy;

/// `dlogits[n, V] = d_losses[n]·(softmax(logits) - onehot(targets))`, from `(logits, targets, d_losses)`.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyGrad;

/// Replaces logits by `e^(logit - max)`; returns their sum and the loss of the row.
#[inline(always)]
pub(super) fn exponentials<A: Real>(row: &mut [A], target: u32) -> (A, A) {
    let highest = max(row);
    let wanted = if target == IGNORED { A::ZERO } else { row[target as usize] };
    let sum = replace_and_sum(row, |x| (x - highest).exp());
    let loss = if target == IGNORED { A::ZERO } else { sum.ln() + (highest - wanted) };
    (sum, loss)
}

/// Writes `scale·(softmax - onehot)` of a row that [`exponentials`] left behind; padding becomes zero.
#[inline(always)]
pub(super) fn row_gradient<E: Elem>(
    row: &mut [E::Acc],
    sum: E::Acc,
    target: u32,
    scale: E::Acc,
    to: &mut [E],
) {
    let (to, padding) = to.split_at_mut(row.len());
    padding.fill(E::default());
    if target == IGNORED {
        return to.fill(E::default());
    }
    let factor = scale / sum;
    row.iter_mut().for_each(|x| *x *= factor);
    row[target as usize] -= scale;
    for (to, x) in to.iter_mut().zip(row) {
        *to = E::down(*x);
    }
}

/// Checks logits `[n, V]` and targets `[n]`; returns the spec of the losses.
pub(super) fn losses_spec(logits: &Spec, targets: &Spec) -> Result<Spec, String> {
    let one_each = targets.shape.len() == 1 && logits.shape.len() == 2 && targets.alloc[0] == logits.alloc[0];
    if !one_each || targets.dtype != DType::U32 {
        return Err("logits are [n, V] and targets u32 [n]".into());
    }
    Ok(Spec::padded(targets.shape.clone(), targets.alloc.clone(), logits.dtype.accumulator()))
}

/// Launches an entry of the kernel file, a block per row of `logits`. With `stage`, the row waits in shared
/// memory between the two passes over it, where it fits. `args` are the tensors, then the vocabulary and the
/// row's width, then what else the entry takes.
pub(super) fn launch_rows(
    cx: &GpuNode<'_>,
    entry: &'static str,
    logits: &Spec,
    stage: bool,
    tensors: &[Arg],
    further: &[Arg],
) -> Result<()> {
    /// Beyond the row, for the sums of warps.
    const STATIC_SHARED: usize = 512;
    const WARP: usize = 32;
    const MOST_THREADS: usize = 512;
    let (rows, vocab, width) = (logits.rows(), logits.shape[1], logits.width());
    let vec = vector_width(width, logits.dtype);
    let vectors = width / vec;
    let threads = vectors.next_multiple_of(WARP).min(MOST_THREADS);
    let row_bytes = width * logits.dtype.size();
    let fits = vec > 1 && row_bytes + STATIC_SHARED <= cx.queue.properties().shared_per_block;
    let kernel = Kernel::new("cross_entropy", entry)
        .with_type("T", logits.dtype)
        .with("VEC", vec)
        .with("THREADS", threads)
        .with("ROUNDS", if fits { vectors.div_ceil(threads) } else { 0 });
    let args = [tensors, &[vocab.into(), width.into()], further].concat();
    let shared = if stage && fits { row_bytes } else { 0 };
    cx.queue.launch(kernel, Grid::new(rows, threads as u32).shared(shared), &args)
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [logits, targets] if logits.dtype.is_float() => Ok(vec![losses_spec(logits, targets)?]),
            _ => Err("takes logits and targets".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (logits, targets) = (v.input(0), v.input(1));
        let d_losses = match v.upstream(0) {
            Some(Upstream::One) => v.backward(SumGrad { scale: 1.0 }, &[v.output(0)], &[])?[0],
            _ => v.output_grad(0)?,
        };
        v.backward(CrossEntropyGrad, &[logits, targets, d_losses], &[0]).map(drop)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let logits = cx.input_spec(0);
        let (rows, vocab, width) = (logits.rows(), logits.shape[1], logits.width());
        let targets = cx.input_u32(1);
        dispatch_float!(logits.dtype, E => {
            type A = <E as Elem>::Acc;
            let (logits, losses) = (cx.input::<E>(0), cx.output::<A>(0));
            cx.pool.chunks(rows, rows_per_task(width), #[inline(always)] |start, len| {
                let mut row = vec![A::ZERO; vocab];
                for (r, &target) in (start..).zip(&targets[start..start + len]) {
                    logits.load(r * width, &mut row);
                    losses.slice(r, 1)[0] = exponentials(&mut row, target).1;
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let tensors = [cx.input(0).into(), cx.input(1).into(), cx.output(0).into()];
        launch_rows(cx, "cross_entropy", cx.input_spec(0), false, &tensors, &[])
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |n: usize, (vocab, pad): (usize, usize), targets: Fill| {
            let inputs = vec![
                (Spec::padded([n, vocab], [n, pad], precision.act_dtype), Fill::Normal(-3.0, 4.0)),
                (Spec::new([n], DType::U32), targets),
            ];
            Case::new(format!("n{n} v{vocab}"), CrossEntropy, inputs, |inputs: &[Array]| {
                let vocab = inputs[0].width();
                let losses = inputs[0].data.chunks(vocab).zip(&inputs[1].data).map(|(row, &target)| {
                    let sum: f64 = row.iter().map(|x| x.exp()).sum();
                    if target == f64::from(u32::MAX) { 0.0 } else { sum.ln() - row[target as usize] }
                });
                vec![Array { shape: inputs[1].shape.clone(), data: losses.collect() }]
            })
            .depth(vocab)
        };
        Cases::Own(vec![
            case(1, (5, 5), Fill::Below(5)),
            case(17, (300, 320), Fill::Below(300)),
            case(255, (33, 33), Fill::Below(33)),
            case(256, (16, 64), Fill::Below(16)),
            case(1000, (10, 10), Fill::Below(10)),
            case(12, (40, 64), Fill::Values(vec![3.0, f64::from(IGNORED), 39.0, 0.0])),
        ])
    }
}

impl Op for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [logits, targets, d_losses] = inputs else {
            return Err("takes logits, targets and d_losses".into());
        };
        if losses_spec(logits, targets)? != *d_losses {
            return Err("d_losses has the shape and format of the losses".into());
        }
        Ok(vec![logits.clone()])
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let spec = cx.input_spec(0);
        let (rows, vocab, width) = (spec.rows(), spec.shape[1], spec.width());
        let targets = cx.input_u32(1);
        dispatch_float!(spec.dtype, E => {
            type A = <E as Elem>::Acc;
            let (logits, d_losses, d_logits) = (cx.input::<E>(0), cx.input::<A>(2), cx.output::<E>(0));
            cx.pool.chunks(rows, rows_per_task(width), #[inline(always)] |start, len| {
                let mut row = vec![A::ZERO; vocab];
                for (r, &target) in (start..).zip(&targets[start..start + len]) {
                    logits.load(r * width, &mut row);
                    let (sum, _) = exponentials(&mut row, target);
                    row_gradient(&mut row, sum, target, d_losses.get(r), d_logits.slice(r * width, width));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let [logits, targets, d_losses] = [0, 1, 2].map(|i| cx.input(i).into());
        let tensors = [logits, targets, d_losses, cx.output(0).into()];
        launch_rows(cx, "cross_entropy_grad", cx.input_spec(0), true, &tensors, &[])
    }

    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("cross_entropy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_logits_do_not_overflow() {
        let mut row = [1e30f32, -1e30, 0.0];
        let (sum, loss) = exponentials(&mut row, 0);
        assert_eq!((sum, loss, row), (1.0, 0.0, [1.0, 0.0, 0.0]));
        let mut d = [9.0f32; 4];
        row_gradient(&mut row, sum, 2, 0.5, &mut d);
        assert_eq!(d, [0.5, 0.0, -0.5, 0.0]);
    }

    #[test]
    fn an_ignored_row_has_no_loss_and_no_gradient() {
        let mut row = [1.0f64, 2.0];
        let (sum, loss) = exponentials(&mut row, IGNORED);
        assert_eq!(loss, 0.0);
        let mut d = [9.0f64; 3];
        row_gradient(&mut row, sum, IGNORED, 1.0, &mut d);
        assert_eq!(d, [0.0; 3]);
    }

    #[test]
    fn nan_logits_show() {
        assert!(exponentials(&mut [0.0f32, f32::NAN], 0).1.is_nan());
    }
}
