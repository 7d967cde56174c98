//! Cross-entropy together with its gradient, for losses that end a program: their upstream gradients are
//! known in the forward pass.

use super::cases as formula;
use super::{IGNORED, Objective, Row, Upstreams, launch_rows, losses_spec, optional_outputs};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::Arg;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId,
};
use crate::ops::lanes::rows_per_task;
use crate::ops::sum::{Factor, SumGrad};

/// The factors of the losses of rows in the objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowFactor {
    /// The same for all rows.
    Same(Factor),
    /// One for each row. The op's last input is `factors[n]`, in the format of the losses.
    Each,
}

impl RowFactor {
    /// Returns the factors as an attribute of the op.
    pub(in crate::ops) fn attribute(self) -> String {
        match self {
            Self::Same(factor) => factor.attribute(),
            Self::Each => "scale=each".to_owned(),
        }
    }

    /// Splits off the input that the factors are read from, and checks it.
    pub(in crate::ops) fn split(self, inputs: &[Spec]) -> Result<&[Spec], String> {
        match (self, inputs) {
            (Self::Same(factor), inputs) => factor.split(inputs),
            (Self::Each, [inputs @ .., factors])
                if inputs
                    .first()
                    .is_some_and(|x| *factors == Spec::new([x.rows()], x.dtype.accumulator())) =>
            {
                Ok(inputs)
            }
            (Self::Each, _) => Err("the last input must be a factor for each row".into()),
        }
    }

    /// Records the upstream gradients of `losses`. `inputs` are what the factors are read from.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn d_losses(self, b: &mut Builder, losses: TensorId, inputs: &[TensorId]) -> Result<TensorId> {
        match (self, inputs) {
            (Self::Each, &[factors]) => Ok(factors),
            (Self::Each, _) => Err(crate::Error::failed("a factor for each row is one input")),
            (Self::Same(scale), count) => {
                b.emit1("d_losses", SumGrad { scale }, &[&[losses], count].concat())
            }
        }
    }

    /// Returns the arguments that a kernel takes for the factors: a number, the address of a count whose
    /// reciprocal replaces it, and that of a factor for each row; 0 for those that do not apply.
    pub(in crate::ops) fn kernel_args(self, cx: &GpuNode<'_>) -> [Arg; 3] {
        let (scale, count, factors) = match self {
            Self::Same(scale) => {
                let (scale, count) = scale.kernel_args(cx);
                (scale, count, 0)
            }
            Self::Each => (0.0, 0, cx.input(cx.inputs.len() - 1)),
        };
        [(scale as f32).into(), count.into(), factors.into()]
    }
}

/// Rows of logits on the CPU, whose losses are wanted, and perhaps their gradients.
pub(in crate::ops) struct LossRows<'a, E: Elem> {
    /// `logits[n, V]`.
    pub logits: View<'a, E>,
    /// Where their gradient goes, if it is wanted, and the factors of the losses in the objective. It may be
    /// the memory of the logits.
    pub gradient: Option<(ViewMut<'a, E>, RowFactor)>,
    /// Where the losses go, `[n]`.
    pub losses: ViewMut<'a, E::Acc>,
    /// Where z-losses and smoothing losses go, `[n]`, if the objective has them.
    pub terms: [Option<ViewMut<'a, E::Acc>>; 2],
}

impl<E: Elem> LossRows<'_, E> {
    /// Computes losses and gradients. `vocab` and `width` are the size of the vocabulary without and with
    /// padding.
    pub fn compute(
        &self,
        cx: &CpuNode<'_>,
        (vocab, width): (usize, usize),
        targets: &[u32],
        objective: &Objective,
    ) {
        let Self { logits, gradient, losses, terms: [z_losses, smoothing] } = *self;
        let gradient = gradient.map(|(gradient, factor)| {
            let (same, factors) = match factor {
                RowFactor::Same(scale) => (E::Acc::from_f64(scale.value(cx)), None),
                RowFactor::Each => (E::Acc::ONE, Some(cx.input::<E::Acc>(cx.inputs.len() - 1))),
            };
            (gradient, same, factors)
        });
        cx.pool.chunks(
            targets.len(),
            rows_per_task(width),
            #[inline(always)]
            |start, len| {
                let mut row = Row::new(objective, vocab);
                for (r, &target) in (start..).zip(&targets[start..start + len]) {
                    logits.load(r * width, &mut row.logits);
                    let found = row.losses(target);
                    losses.slice(r, 1)[0] = found.plain;
                    z_losses.iter().for_each(|to| to.slice(r, 1)[0] = found.z_loss);
                    smoothing.iter().for_each(|to| to.slice(r, 1)[0] = found.smoothing);
                    if let Some((gradient, same, factors)) = gradient {
                        let factor = factors.map_or(same, |factors| factors.get(r));
                        row.gradient(
                            &found,
                            target,
                            Upstreams::all(factor),
                            gradient.slice(r * width, width),
                        );
                    }
                }
            },
        );
    }
}

/// `(logits[n, V], targets[n])`, and what the [`RowFactor`] reads, `→ (losses[n], d_logits[n, V])`, then
/// z-losses `[n]` and smoothing losses `[n]` if the [`Objective`] has them.
///
/// Losses are those of [`CrossEntropy`](super::CrossEntropy), unscaled. `d_logits` is the gradient of the sum
/// of all losses, each times the factor of its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyWithGrad {
    /// The factors of the losses in the objective.
    pub factor: RowFactor,
    /// How logits are transformed, and the terms beyond cross-entropy.
    pub objective: Objective,
}

/// Index of the first output after the gradient.
const TERMS: usize = 2;

impl Op for CrossEntropyWithGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_with_grad"
    }

    fn attributes(&self) -> String {
        let parts = [self.factor.attribute(), self.objective.attributes()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [logits, targets] = self.factor.split(inputs)? else {
            return Err("takes logits and targets".into());
        };
        if !logits.dtype.is_float() {
            return Err("logits must be in a format of ops".into());
        }
        let losses = losses_spec(logits, targets)?;
        let terms = vec![losses.clone(); self.objective.terms()];
        Ok([vec![losses, logits.clone()], terms].concat())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 1, input: 0 }]
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let logits = cx.input_spec(0);
        let sizes = (logits.shape[1], logits.width());
        dispatch_float!(logits.dtype, E => {
            let rows = LossRows::<E> {
                logits: cx.input(0),
                gradient: Some((cx.output(1), self.factor)),
                losses: cx.output(0),
                terms: self.objective.places(TERMS).map(|place| place.map(|at| cx.output(at))),
            };
            rows.compute(cx, sizes, cx.input_u32(1), &self.objective);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let [z_losses, smoothing] = optional_outputs(cx, self.objective.places(TERMS));
        let [logits, d_logits] = [cx.input(0), cx.output(1)].map(Arg::from);
        let tensors = [logits, d_logits, cx.input(1).into(), cx.output(0).into(), z_losses, smoothing];
        let of_rows = (cx.input_spec(0), &self.objective);
        launch_rows(cx, self.name(), of_rows, true, &tensors, &self.factor.kernel_args(cx))
    }

    fn cases(precision: Precision) -> Cases {
        let mean = RowFactor::Same(Factor::Constant(1.0 / 12.0));
        let over_count = RowFactor::Same(Factor::Reciprocal);
        let ignoring = || Fill::Values(vec![3.0, f64::from(IGNORED), 39.0, 0.0]);
        let below = Fill::Below;
        let mut cases = vec![
            case(precision, ("", Objective::PLAIN), mean, (1, 5, 5), below(5)),
            case(precision, ("", Objective::PLAIN), mean, (17, 300, 320), below(300)),
            case(precision, ("", Objective::PLAIN), mean, (12, 40, 64), ignoring()),
            case(precision, ("over a count", Objective::PLAIN), over_count, (17, 300, 320), below(300)),
            case(precision, ("each row", Objective::PLAIN), RowFactor::Each, (12, 40, 64), ignoring()),
        ];
        for objective in formula::OBJECTIVES {
            cases.push(case(precision, objective, mean, (17, 300, 320), below(300)));
            cases.push(case(precision, objective, over_count, (12, 50, 64), ignoring()));
        }
        Cases::Own(cases)
    }
}

/// Returns a case with `n` rows over a vocabulary of the given size without and with padding.
fn case(
    precision: Precision,
    (name, objective): (&str, Objective),
    factor: RowFactor,
    (n, vocab, pad): (usize, usize, usize),
    targets: Fill,
) -> Case {
    let op = CrossEntropyWithGrad { factor, objective };
    let accumulator = precision.act_dtype.accumulator();
    let mut inputs = vec![
        (Spec::padded([n, vocab], [n, pad], precision.act_dtype), Fill::Normal(-3.0, 4.0)),
        (Spec::new([n], DType::U32), targets),
    ];
    inputs.extend(match factor {
        RowFactor::Same(Factor::Constant(_)) => None,
        RowFactor::Same(Factor::Reciprocal) => Some((Spec::new([1], DType::U32), Fill::Values(vec![51.0]))),
        RowFactor::Each => Some((Spec::new([n], accumulator), Fill::Normal(0.0, 0.1))),
    });
    Case::new(format!("n{n} v{vocab} {name}").trim_end(), op, inputs, move |inputs| reference(op, inputs))
        .without_gradient()
        .depth(vocab)
}

/// Computes losses and gradients by plain loops.
fn reference(op: CrossEntropyWithGrad, inputs: &[Array]) -> Vec<Array> {
    let (logits, targets) = (&inputs[0], &inputs[1]);
    let factor = |row: usize| match op.factor {
        RowFactor::Same(Factor::Constant(factor)) => factor,
        RowFactor::Same(Factor::Reciprocal) => 1.0 / inputs[2].data[0],
        RowFactor::Each => inputs[2].data[row],
    };
    let rows = || logits.data.chunks(logits.width()).zip(&targets.data).enumerate();
    let losses: Vec<[f64; 3]> =
        rows().map(|(_, (row, &target))| formula::losses(&op.objective, row, target)).collect();
    let gradient = rows().flat_map(|(r, (row, &target))| {
        formula::gradient(&op.objective, row, target).into_iter().map(move |d| factor(r) * d)
    });
    let of = |k: usize| Array {
        shape: targets.shape.clone(),
        data: losses.iter().map(|losses| losses[k]).collect(),
    };
    let d_logits = Array { shape: logits.shape.clone(), data: gradient.collect() };
    let terms = op.objective.places(TERMS).into_iter().zip([1, 2]).filter(|(place, _)| place.is_some());
    let terms: Vec<Array> = terms.map(|(_, k)| of(k)).collect();
    [vec![of(0), d_logits], terms].concat()
}
