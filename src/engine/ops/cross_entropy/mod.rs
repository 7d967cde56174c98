//! Cross-entropy of rows of logits, with the terms of an objective.

pub(super) mod cases;
mod objective;
mod rows;
mod with_grad;

use super::lanes::{rows_per_task, vector_width};
use super::sum::{Factor, SumGrad};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::Upstream;
use crate::ir::{Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, Vjp};
pub use objective::{IGNORED, Objective};
pub(super) use rows::{Row, Upstreams};
pub(super) use with_grad::LossRows;
pub use with_grad::{CrossEntropyWithGrad, RowFactor};

/// `(logits[n, V], targets[n]) → losses[n]`, then z-losses `[n]` and smoothing losses `[n]` if the
/// [`Objective`] has them. All are in nats.
///
/// The padding of the vocabulary takes no part. Rows whose target is [`IGNORED`] have losses of 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy(pub Objective);

/// The gradient of logits `[n, V]`, from `(logits, targets)` and the upstream gradients of every output of
/// [`CrossEntropy`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyGrad(pub Objective);

/// Checks logits `[n, V]` and targets `[n]`. Returns the spec of the losses.
pub(super) fn losses_spec(logits: &Spec, targets: &Spec) -> Result<Spec, String> {
    let one_each = targets.shape.len() == 1 && logits.shape.len() == 2 && targets.alloc[0] == logits.alloc[0];
    if !one_each || targets.dtype != DType::U32 {
        return Err("logits must be [n, V] and targets u32 [n]".into());
    }
    Ok(Spec::padded(targets.shape.clone(), targets.alloc.clone(), logits.dtype.accumulator()))
}

/// Launches an entry of the kernel file with one block per row of `logits`. With `stage`, the row stays in
/// shared memory between the two passes over it if it fits. The arguments are the tensors, the vocabulary
/// size, the width of a row, the objective's numbers, then `further`.
pub(super) fn launch_rows(
    cx: &GpuNode<'_>,
    entry: &'static str,
    (logits, objective): (&Spec, &Objective),
    stage: bool,
    tensors: &[Arg],
    further: &[Arg],
) -> Result<()> {
    /// Bytes that the kernel uses besides the row, for the sums of warps.
    const STATIC_SHARED: usize = 512;
    const WARP: usize = 32;
    const MOST_THREADS: usize = 512;
    let (rows, vocab, width) = (logits.rows(), logits.shape[1], logits.width());
    let vec = vector_width(width, logits.dtype);
    let vectors = width / vec;
    let threads = vectors.next_multiple_of(WARP).min(MOST_THREADS);
    let row_bytes = width * logits.dtype.size();
    let fits = vec > 1 && row_bytes + STATIC_SHARED <= cx.queue.properties().shared_per_block;
    let kernel = objective
        .define(Kernel::new("cross_entropy", entry))
        .with("T", logits.dtype)
        .with("VEC", vec)
        .with("THREADS", threads)
        .with("ROUNDS", if fits { vectors.div_ceil(threads) } else { 0 });
    let args = [tensors, &[vocab.into(), width.into()], &objective.args(), further].concat();
    let shared = if stage && fits { row_bytes } else { 0 };
    cx.queue.launch(kernel, Grid::new(rows, threads as u32).shared(shared), &args)
}

/// Returns the addresses of optional outputs, with 0 for absent ones.
pub(super) fn optional_outputs(cx: &GpuNode<'_>, outputs: [Option<usize>; 2]) -> [Arg; 2] {
    outputs.map(|output| Arg::Ptr(output.map_or(0, |k| cx.output(k))))
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [logits, targets] if logits.dtype.is_float() => {
                Ok(vec![losses_spec(logits, targets)?; 1 + self.0.terms()])
            }
            _ => Err("takes logits and targets".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs = vec![v.input(0), v.input(1)];
        for k in 0..=self.0.terms() {
            inputs.push(match v.upstream(k) {
                Some(Upstream::One) => {
                    v.backward(SumGrad { scale: Factor::Constant(1.0) }, &[v.output(k)], &[])?[0]
                }
                _ => v.output_grad(k)?,
            });
        }
        v.backward(CrossEntropyGrad(self.0), &inputs, &[0]).map(drop)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let logits = cx.input_spec(0);
        let sizes = (logits.shape[1], logits.width());
        dispatch_float!(logits.dtype, E => {
            let rows = LossRows::<E> {
                logits: cx.input(0),
                gradient: None,
                losses: cx.output(0),
                terms: self.0.places(1).map(|place| place.map(|at| cx.output(at))),
            };
            rows.compute(cx, sizes, cx.input_u32(1), &self.0);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let [z_losses, smoothing] = optional_outputs(cx, self.0.places(1));
        let tensors = [cx.input(0).into(), cx.input(1).into(), cx.output(0).into(), z_losses, smoothing];
        launch_rows(cx, "cross_entropy", (cx.input_spec(0), &self.0), false, &tensors, &[])
    }

    fn cases(precision: Precision) -> Cases {
        Cases::Own(cases::cases(precision, CrossEntropy))
    }
}

impl Op for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [logits, targets, upstreams @ ..] = inputs else {
            return Err("takes logits, targets and upstream gradients".into());
        };
        let losses = losses_spec(logits, targets)?;
        if upstreams.len() != 1 + self.0.terms() || upstreams.iter().any(|d| *d != losses) {
            return Err("every loss needs an upstream gradient of its shape and format".into());
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
            let [z_losses, smoothing] = self.0.places(3).map(|k| k.map(|k| cx.input::<A>(k)));
            cx.pool.chunks(rows, rows_per_task(width), #[inline(always)] |start, len| {
                let mut row = Row::new(&self.0, vocab);
                for (r, &target) in (start..).zip(&targets[start..start + len]) {
                    logits.load(r * width, &mut row.logits);
                    let found = row.losses(target);
                    let mut d = Upstreams::all(d_losses.get(r));
                    z_losses.iter().for_each(|from| d.z_loss = from.get(r));
                    smoothing.iter().for_each(|from| d.smoothing = from.get(r));
                    row.gradient(&found, target, d, d_logits.slice(r * width, width));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let [logits, targets, d_losses] = [0, 1, 2].map(|i| cx.input(i).into());
        let [z_losses, smoothing] = self.0.places(3).map(|k| Arg::Ptr(k.map_or(0, |k| cx.input(k))));
        let tensors = [logits, targets, d_losses, z_losses, smoothing, cx.output(0).into()];
        launch_rows(cx, "cross_entropy_grad", (cx.input_spec(0), &self.0), true, &tensors, &[])
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<CrossEntropy>()
    }
}
