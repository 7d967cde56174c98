//! The gated activation of a feed-forward layer (Shazeer, 2020), `f(gate) ⊙ up`: SwiGLU, GEGLU, ReGLU. It may
//! also be any formula of both halves.

use super::activate::Activate;
use super::activation::Activation;
use super::formula::Function;
use super::half::Half;
use super::lanes::{BLOCK, launch_over, rows_per_task, vector_width};
use super::mul::Mul;
use crate::device::cpu::ViewMut;
use crate::device::gpu::{DevicePtr, Kernel};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, Emission, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId,
    Vjp,
};
use std::sync::Arc;

/// `y[N, f] = f(gate) ⊙ up` with `gate_up[N, 2, f]`; a formula g of two variables gives `y = g(gate, up)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated(pub Function);

/// `(gate_up[N, 2, f], dy[N, f]) → d_gate_up[N, 2, f]`, or `(d_gate_up, y[N, f])` if `emits` is set.
///
/// `d_gate = dy ⊙ up ⊙ f'(gate)` and `d_up = dy ⊙ f(gate)`; for a formula, `dy` times its slopes.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedGrad {
    /// The function.
    pub of: Function,
    /// True if the op also writes the output of [`Gated`].
    pub emits: bool,
}

/// A gated activation in f64, for the reference of a test case.
type ReferenceFn = Box<dyn Fn(f64, f64) -> f64 + Send + Sync>;

/// A formula, the same function in f64, and the shape of its case: rows, width, and width with padding.
type TestFormula = (&'static str, fn(f64, f64) -> f64, (usize, usize, usize));

/// Formulas for the test cases.
const FORMULAS: [TestFormula; 2] = [
    ("silu(a) * b", |a, b| a / (1.0 + (-a).exp()) * b, (17, 65, 65)),
    (
        "a * tanh(b) + cos(a) * relu(b)^2 * exp(-b^2)",
        |a, b| a * b.tanh() + a.cos() * b.max(0.0).powi(2) * (-b * b).exp(),
        (9, 30, 64),
    ),
];

/// Queues a kernel over all elements of `y`, which has the shape of `rows`.
fn launch(cx: &GpuNode<'_>, entry: &'static str, f: &Function, rows: &Spec) -> Result<()> {
    let vec = vector_width(rows.width(), rows.dtype);
    let kernel =
        Kernel::new("gated", entry).with("T", rows.dtype).with("WIDTH", rows.width()).with("VEC", vec);
    let kernel = f.define(kernel);
    let tensors: Vec<DevicePtr> = cx.inputs.iter().chain(cx.outputs).copied().collect();
    launch_over(cx, kernel, (rows.elements(), vec), &tensors, &[])
}

impl Op for Gated {
    fn name(&self) -> &'static str {
        self.0.names().gated
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match &self.0 {
            Function::Formula(_) if self.0.variables() != 2 => Err("needs a formula of two variables".into()),
            _ => Half { index: 0 }.infer(inputs),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (gate_up, dy) = (v.input(0), v.output_grad(0)?);
        v.backward(GatedGrad { of: self.0.clone(), emits: false }, &[gate_up, dy], &[0]).map(drop)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        // A formula need not be a product, so it has no unfused form.
        if matches!(self.0, Function::Formula(_)) {
            return Ok(None);
        }
        let gate = b.emit1("gate", Half { index: 0 }, inputs)?;
        let activate = Activate::new(self.0.clone());
        let value = b.emit1(activate.name(), activate, &[gate])?;
        let up = b.emit1("up", Half { index: 1 }, inputs)?;
        let y = b.emit1(self.name(), Mul, &[value, up])?;
        Ok(Some(vec![y]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, f) = (cx.output_spec(0).rows(), cx.output_spec(0).width());
        let activation = match &self.0 {
            Function::BuiltIn(activation) => *activation,
            Function::Formula(formula) => return formula.values(cx, f),
        };
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(rows, rows_per_task(f), #[inline(always)] |start, len| {
                let mut block = [<E as Elem>::Acc::ZERO; BLOCK];
                for r in start..start + len {
                    x.prefetch(2 * (r + 1) * f, 2 * f);
                    for at in (0..f).step_by(BLOCK) {
                        let values = &mut block[..BLOCK.min(f - at)];
                        x.load(2 * r * f + at, values);
                        activation.values(values);
                        let up = x.slice((2 * r + 1) * f + at, values.len());
                        let y = y.slice(r * f + at, values.len());
                        for ((y, value), up) in y.iter_mut().zip(&*values).zip(up) {
                            *y = E::down(*value * up.up());
                        }
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, "gated", &self.0, cx.output_spec(0))
    }

    fn cases(precision: Precision) -> Cases {
        let case =
            |rows: usize, f: usize, pad: usize, (name, function, plain): (&str, Function, ReferenceFn)| {
                let spec = Spec::padded([rows, 2, f], [rows, 2, pad], precision.act_dtype);
                let reference = move |inputs: &[Array]| {
                    let mut y = Array::zeros(&[rows, f]);
                    for (y, x) in y.data.chunks_mut(f).zip(inputs[0].data.chunks(2 * f)) {
                        for c in 0..f {
                            y[c] = plain(x[c], x[f + c]);
                        }
                    }
                    vec![y]
                };
                let inputs = vec![(spec, Fill::Normal(0.0, 2.0))];
                Case::new(format!("n{rows} f{f}{name}"), Self(function), inputs, reference)
            };
        let shapes = [
            (1, 96, 96),
            (17, 65, 65),
            (255, 32, 32),
            (256, 24, 24),
            (1000, 40, 40),
            (9, 30, 64),
            (3, 700, 704),
        ];
        let mut cases = Vec::new();
        for (f, (rows, width, pad)) in
            Activation::ALL.into_iter().flat_map(|f| shapes.map(|shape| (f, shape)))
        {
            let plain = Box::new(move |gate, up| f.plain(gate) * up);
            cases.push(case(rows, width, pad, ("", f.into(), plain)));
        }
        for (text, plain, (rows, width, pad)) in FORMULAS {
            let name = format!(" {text}");
            cases.push(case(rows, width, pad, (&name, Function::from_text(text), Box::new(plain))));
        }
        Cases::Own(cases)
    }
}

impl Op for GatedGrad {
    fn name(&self) -> &'static str {
        self.of.names().gated_grad
    }

    fn attributes(&self) -> String {
        let emits = if self.emits { "emits=y" } else { "" };
        [&self.of.attributes(), emits].join(" ").trim().to_owned()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [gate_up, dy] = inputs else { return Err("takes gate_up and dy".into()) };
        let y = Gated(self.of.clone()).infer(&inputs[..1])?;
        if y[0].alloc != dy.alloc || y[0].dtype != dy.dtype {
            return Err("dy must be [N, f] in the format of gate_up [N, 2, f]".into());
        }
        let mut outputs = vec![gate_up.clone()];
        outputs.extend(y.into_iter().filter(|_| self.emits));
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }, MayAlias { output: 1, input: 1 }]
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true, of: self.of.clone() });
        Some(Emission { of: Arc::new(Gated(self.of.clone())), inputs: vec![0], gradient: by })
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, f) = (cx.input_spec(1).rows(), cx.input_spec(1).width());
        let activation = match &self.of {
            Function::BuiltIn(activation) => *activation,
            Function::Formula(formula) => return formula.gradients(cx, f, self.emits),
        };
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(1));
            cx.pool.chunks(rows, rows_per_task(2 * f), #[inline(always)] |start, len| {
                let mut blocks = [[<E as Elem>::Acc::ZERO; BLOCK]; 4];
                for r in start..start + len {
                    x.prefetch(2 * (r + 1) * f, 2 * f);
                    dy.prefetch((r + 1) * f, f);
                    for at in (0..f).step_by(BLOCK) {
                        let count = BLOCK.min(f - at);
                        let [value, slope, up, upstream] = blocks.each_mut().map(|block| &mut block[..count]);
                        let (to_gate, to_up) = (2 * r * f + at, (2 * r + 1) * f + at);
                        x.load(to_gate, value);
                        x.load(to_up, up);
                        dy.load(r * f + at, upstream);
                        activation.values_and_slopes(value, slope);
                        let from = value.iter_mut().zip(&*slope).zip(&*up).zip(&*upstream);
                        let to = dx.slice(to_gate, count).iter_mut().zip(dx.slice(to_up, count));
                        for ((d_gate, d_up), (((value, slope), up), dy)) in to.zip(from) {
                            *d_gate = E::down(*dy * *up * *slope);
                            *d_up = E::down(*dy * *value);
                            *value *= *up;
                        }
                        if let Some(y) = y {
                            y.store(r * f + at, value);
                        }
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let entry = if self.emits { "gated_grad_emitting" } else { "gated_grad" };
        launch(cx, entry, &self.of, cx.input_spec(1))
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Gated>()
    }
}
