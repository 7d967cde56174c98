//! The output projection with its loss; both gradients are computed in the forward pass.
//!
//! Logits are the largest tensor of a small model. Here they exist only inside one node: a product writes
//! them, their gradient overwrites them, and the two products that follow read it.

use super::cross_entropy::cases as formula;
use super::cross_entropy::{
    CrossEntropy, CrossEntropyGrad, LossRows, Objective, RowFactor, launch_rows, losses_spec,
    optional_outputs,
};
use super::linear::{Linear, LinearInputGrad, LinearWeightGrad};
use super::sum::Factor;
use super::with_gradient::{WithGradient, require_unit_upstream};
use crate::device::cpu::matmul::product;
use crate::device::cpu::{Matrix, View};
use crate::device::gpu::Operand;
use crate::device::{DType, Elem, ProductPrecision};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec, TensorId, Vjp,
};

#[cfg(test)]
mod tests;

/// `(x[n, d], W[V, d], targets[n])`, and what the [`RowFactor`] reads, `→ (losses[n], logits[n, V])`. The
/// gradients follow, `dx[n, d]` and `dW[V, d]`, then z-losses `[n]` and smoothing losses `[n]` if the
/// objective has them.
///
/// Losses are in nats and unscaled. The first output is the cross-entropy of the logits `x·W_v` as the
/// [`Objective`] transforms them; the other terms are separate outputs. All are 0 where the target is
/// [`IGNORED`](super::cross_entropy::IGNORED). `dx` and `dW` are the gradients of the sum of all losses, each
/// times the factor of its row. `logits` is scratch; with gradients it ends up with the gradient of the
/// logits. The vocabulary excludes the padding of `W`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadLoss {
    /// The factors of the losses in the objective, such as 1 / tokens of a batch.
    pub factor: RowFactor,
    /// The gradients that are computed.
    pub gradients: HeadGradients,
    /// How logits are transformed, and the terms beyond cross-entropy.
    pub objective: Objective,
    /// Precision of the products.
    pub products: ProductPrecision,
}

/// The gradients that a [`HeadLoss`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadGradients {
    /// None, outside training.
    None,
    /// That of `x`, if `W` is frozen.
    Rows,
    /// Those of `x` and `W`.
    RowsAndWeight,
}

impl HeadGradients {
    /// Returns the number of gradients.
    pub const fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::Rows => 1,
            Self::RowsAndWeight => 2,
        }
    }
}

/// Index of the output that holds the logits.
pub const LOGITS: usize = 1;
/// Index of the output that receives the gradient of `x`.
pub const DX: usize = 2;
/// Index of the output that receives the gradient of `W`.
pub const DW: usize = 3;

impl HeadLoss {
    /// Returns the indices of the outputs for z-losses and smoothing losses, if the objective has them.
    fn term_outputs(&self) -> [Option<usize>; 2] {
        self.objective.places(DX + self.gradients.count())
    }
}

impl Op for HeadLoss {
    fn name(&self) -> &'static str {
        "head_loss"
    }

    fn attributes(&self) -> String {
        let gradients = match self.gradients {
            HeadGradients::None => "without gradients".into(),
            HeadGradients::Rows => self.factor.attribute() + " frozen",
            HeadGradients::RowsAndWeight => self.factor.attribute(),
        };
        let further = [self.objective.attributes(), self.products.attribute().to_owned()];
        further.into_iter().filter(|text| !text.is_empty()).fold(gradients, |all, text| all + " " + &text)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, w, targets] = self.factor.split(inputs)? else { return Err("takes x, W and targets".into()) };
        let logits = Linear::default().infer(&inputs[..2])?.remove(0);
        let losses = losses_spec(&logits, targets)?;
        let mut outputs = vec![losses.clone(), logits];
        let gradients = [x.clone(), w.with_dtype(w.dtype.accumulator())];
        outputs.extend(gradients.into_iter().take(self.gradients.count()));
        outputs.extend(vec![losses; self.objective.terms()]);
        Ok(outputs)
    }

    /// The gradients already exist: the gradient of `x` is an output, and the gradient of `W` was written to
    /// its destination.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        require_unit_upstream(v, self)?;
        if self.gradients == HeadGradients::None {
            return Err(crate::Error::failed(format!(
                "{} in {}: recorded without gradients, so training cannot pass through it",
                self.name(),
                v.scope()
            )));
        }
        v.set_input_grad(0, v.output(DX));
        Ok(())
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (logits, d) = (outputs[1].elements() as f64, inputs[1].width() as f64);
        let products = (1 + self.gradients.count()) as f64;
        Cost::streaming(inputs, outputs).with_flops(products * 2.0 * logits * d)
    }

    fn accumulates(&self, output: usize) -> bool {
        output == DW && self.gradients == HeadGradients::RowsAndWeight
    }

    /// Ends the losses in [`WithGradient`], so that autodiff finds the same gradients as in the fused form.
    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let &[x, w, targets, ref factor @ ..] = inputs else { return Ok(None) };
        let products = self.products;
        let logits = b.emit1("logits", Linear { products }, &[x, w])?;
        let losses = b.emit("losses", CrossEntropy(self.objective), &[logits, targets])?;
        let terms = &losses[1..];
        if self.gradients == HeadGradients::None {
            return Ok(Some([&[losses[0], logits], terms].concat()));
        }
        let d_losses = self.factor.d_losses(b, losses[0], factor)?;
        let inputs = [&[logits, targets][..], &vec![d_losses; losses.len()]].concat();
        let d_logits = b.emit1("d_logits", CrossEntropyGrad(self.objective), &inputs)?;
        let dx = b.emit1("d_x", LinearInputGrad { products, adds: false }, &[d_logits, w])?;
        let mut outputs = vec![logits, dx];
        if self.gradients == HeadGradients::RowsAndWeight {
            outputs.push(b.emit1("d_head", LinearWeightGrad { products }, &[x, d_logits, w])?);
        }
        let with_gradient = b.emit1("losses", WithGradient, &[losses[0], x, dx])?;
        Ok(Some([&[with_gradient], &outputs[..], terms].concat()))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let logits = cx.output_spec(1);
        let (rows, vocab, width) = (logits.rows(), logits.shape[1], logits.width());
        let d = cx.input_spec(1).width();
        let targets = cx.input_u32(2);
        dispatch_float!(logits.dtype, E => {
            type A = <E as Elem>::Acc;
            let (x, w) = (Matrix::rows(cx.input::<E>(0), d), Matrix::rows(cx.input::<E>(1), d));
            let logits = cx.output::<E>(1);
            product(cx.pool, (rows, width, d), x, w.t(), Matrix::rows(logits, width), false);
            let of_rows = LossRows {
                logits: logits.as_view(),
                gradient: (self.gradients != HeadGradients::None).then_some((logits, self.factor)),
                losses: cx.output::<A>(0),
                terms: self.term_outputs().map(|k| k.map(|k| cx.output::<A>(k))),
            };
            of_rows.compute(cx, (vocab, width), targets, &self.objective);
            let d_logits = Matrix::rows(View::from_slice(logits.slice(0, rows * width)), width);
            if self.gradients == HeadGradients::RowsAndWeight {
                let dw = Matrix::rows(cx.output::<A>(DW), d);
                product(cx.pool, (width, d, rows), d_logits.t(), x, dw, cx.adds(DW));
            }
            if self.gradients != HeadGradients::None {
                let dx = Matrix::rows(cx.output::<E>(DX), d);
                product(cx.pool, (rows, d, width), d_logits, w, dx, false);
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let spec = cx.output_spec(1);
        let (rows, width, d) = (spec.rows(), spec.width(), cx.input_spec(1).width());
        let [x, w, targets] = [0, 1, 2].map(|i| cx.input(i));
        let logits = cx.output(1);
        let losses = cx.output(0);
        cx.product((rows, width, d), Operand::plain(x), Operand::transposed(w), 1, self.products)?;
        let [z_losses, smoothing] = optional_outputs(cx, self.term_outputs());
        let row_args = (spec, &self.objective);
        if self.gradients == HeadGradients::None {
            let tensors = [logits.into(), targets.into(), losses.into(), z_losses, smoothing];
            return launch_rows(cx, "cross_entropy", row_args, false, &tensors, &[]);
        }
        let tensors = [logits.into(), logits.into(), targets.into(), losses.into(), z_losses, smoothing];
        launch_rows(cx, "cross_entropy_with_grad", row_args, true, &tensors, &self.factor.kernel_args(cx))?;
        if self.gradients == HeadGradients::RowsAndWeight {
            cx.product((width, d, rows), Operand::transposed(logits), Operand::plain(x), DW, self.products)?;
        }
        cx.product((rows, d, width), Operand::plain(logits), Operand::plain(w), DX, self.products)
    }

    fn cases(precision: Precision) -> Cases {
        const TRAINED: HeadGradients = HeadGradients::RowsAndWeight;
        let ignoring = Fill::Values(vec![3.0, f64::from(u32::MAX), 39.0, 0.0, 39.0]);
        let plain = |sizes, vocab, targets: Fill, gradients, mode| {
            case(
                precision,
                ("", Objective::PLAIN),
                sizes,
                vocab,
                targets,
                (gradients, mode),
                CaseFactor::Mean,
            )
        };
        let mut cases = Vec::new();
        let modes = [(TRAINED, Mode::Write), (TRAINED, Mode::Add), (HeadGradients::None, Mode::Write)];
        for (gradients, mode) in modes {
            cases.push(plain((1, 24), (5, 5), Fill::Below(5), gradients, mode));
            cases.push(plain((17, 32), (300, 320), Fill::Below(300), gradients, mode));
            cases.push(plain((255, 16), (33, 64), Fill::Below(33), gradients, mode));
            cases.push(plain((19, 20), (40, 64), ignoring.clone(), gradients, mode));
        }
        cases.push(plain((256, 48), (50, 64), Fill::Below(50), TRAINED, Mode::Add));
        cases.push(plain((1000, 8), (10, 10), Fill::Below(10), TRAINED, Mode::Write));
        for (name, factor) in [("over a count", CaseFactor::Count(51)), ("each row", CaseFactor::Each)] {
            let (named, sizes, vocab) = ((name, Objective::PLAIN), (17, 32), (300, 320));
            let trained = (TRAINED, Mode::Write);
            cases.push(case(precision, named, sizes, vocab, Fill::Below(300), trained, factor));
        }
        let each = |gradients, mode, targets| {
            let named = ("each row", Objective::PLAIN);
            case(precision, named, (19, 20), (40, 64), targets, (gradients, mode), CaseFactor::Each)
        };
        cases.push(each(TRAINED, Mode::Add, ignoring.clone()));
        cases.push(each(HeadGradients::Rows, Mode::Write, ignoring.clone()));
        for objective in formula::OBJECTIVES {
            let case = |sizes, vocab, targets: Fill, gradients, mode| {
                case(precision, objective, sizes, vocab, targets, (gradients, mode), CaseFactor::Mean)
            };
            cases.push(case((1, 24), (5, 5), Fill::Below(5), TRAINED, Mode::Write));
            cases.push(case((17, 32), (300, 320), Fill::Below(300), HeadGradients::None, Mode::Write));
            cases.push(case((19, 20), (40, 64), ignoring.clone(), TRAINED, Mode::Write));
            cases.push(case((19, 20), (40, 64), ignoring.clone(), HeadGradients::Rows, Mode::Write));
            cases.push(case((37, 20), (300, 320), Fill::Below(300), TRAINED, Mode::Add));
        }
        Cases::Own(cases)
    }
}

/// The factors of a test case.
#[derive(Clone, Copy)]
enum CaseFactor {
    /// 1 / rows.
    Mean,
    /// 1 / this count, which is an input.
    Count(u32),
    /// Numbers of either sign, which are an input.
    Each,
}

/// Returns a forward-only test case: the generic gradient check uses arbitrary upstream gradients, but this
/// op accepts only 1.
fn case(
    precision: Precision,
    (name, objective): (&str, Objective),
    (n, d): (usize, usize),
    (vocab, pad): (usize, usize),
    targets: Fill,
    (gradients, mode): (HeadGradients, Mode),
    factor: CaseFactor,
) -> Case {
    let (factor, input) = match factor {
        CaseFactor::Mean => (RowFactor::Same(Factor::Constant(1.0 / n as f64)), None),
        CaseFactor::Count(count) => {
            let values = Fill::Values(vec![f64::from(count)]);
            (RowFactor::Same(Factor::Reciprocal), Some((Spec::new([1], DType::U32), values)))
        }
        CaseFactor::Each => {
            let spec = Spec::new([n], precision.act_dtype.accumulator());
            (RowFactor::Each, Some((spec, Fill::Normal(0.0, 0.1))))
        }
    };
    let op = HeadLoss { factor, gradients, objective, products: ProductPrecision::Native };
    let mut inputs = vec![
        (Spec::new([n, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
        (Spec::padded([vocab, d], [pad, d], precision.act_dtype), Fill::Normal(0.0, 0.5)),
        (Spec::new([n], DType::U32), targets),
    ];
    inputs.extend(input);
    let outputs = (0..DX + gradients.count()).map(|k| {
        let mode = if k == DW { mode } else { Mode::Write };
        (mode, Fill::Normal(0.0, 0.1))
    });
    let name = format!("n{n} d{d} v{vocab} gradients {gradients:?} {mode:?} {name}");
    let reference = move |inputs: &[Array]| {
        let (inputs, before, factors) = match op.factor {
            RowFactor::Same(Factor::Constant(mean)) => (inputs, inputs.get(3), vec![mean; n]),
            RowFactor::Same(Factor::Reciprocal) => (inputs, inputs.get(4), vec![1.0 / inputs[3].data[0]; n]),
            RowFactor::Each => (inputs, inputs.get(4), inputs[3].data.clone()),
        };
        reference(&inputs[..3], before, op, &factors, precision.act_dtype)
    };
    Case::new(name.trim_end(), op, inputs, reference)
        .weights(&[1])
        .outputs(outputs.collect())
        .without_gradient()
        .depth(d.max(vocab).max(n))
}

/// Computes losses and gradients by plain loops. Logits and their gradients are stored in the activation
/// format, so the reference rounds them to it.
fn reference(
    inputs: &[Array],
    before: Option<&Array>,
    op: HeadLoss,
    factors: &[f64],
    act_dtype: DType,
) -> Vec<Array> {
    let stored = |value: f64| act_dtype.round(value);
    let (x, w, targets) = (&inputs[0], &inputs[1], &inputs[2]);
    let d = x.width();
    let mut losses = [(); 3].map(|()| Array::zeros(&targets.shape));
    let (mut dx, mut dw) = (Array::zeros(&x.shape), Array::zeros(&w.shape));
    if let Some(before) = before {
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
            let gradient = stored(factors[r] * gradient);
            for (k, x) in row.iter().enumerate() {
                dx.data[r * d + k] += gradient * w.data[v * d + k];
                dw.data[v * d + k] += gradient * x;
            }
        }
    }
    let [plain, z_losses, smoothing] = losses;
    let mut outputs = vec![plain, Array::zeros(&[0])];
    outputs.extend([dx, dw].into_iter().take(op.gradients.count()));
    let [has_z_losses, has_smoothing] = op.term_outputs().map(|output| output.is_some());
    outputs.extend(has_z_losses.then_some(z_losses));
    outputs.extend(has_smoothing.then_some(smoothing));
    outputs
}
