//! Applies an activation function to every element.

use super::activation::Activation;
use super::elementwise::{case_shapes, one_spec, same_spec, unary_case};
use super::formula::{Function, UNARY_ROW_WIDTH};
use super::lanes::{BLOCK, TASK, launch_over, vector_width};
use crate::device::cpu::ViewMut;
use crate::device::gpu::{DevicePtr, Kernel};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::expression::erfc;
use crate::ir::{Cases, CpuNode, Emission, GpuNode, MayAlias, Op, Precision, Spec, Vjp};
use std::sync::Arc;

/// `y = f(x)`, any shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Activate(pub Function);

/// `(x, dy) → dx = dy ⊙ f'(x)`, or `(dx, y)` if `emits` is set.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivateGrad {
    /// The function.
    pub of: Function,
    /// True if the op also writes the output of [`Activate`].
    pub emits: bool,
}

/// A formula and the same function written in f64.
type TestFormula = (&'static str, fn(f64) -> f64);

/// Formulas for the test cases, each with the same function in plain arithmetic. Together they use every kind
/// of step; the last one runs on padded rows.
const FORMULAS: [TestFormula; 4] = [
    ("x / (1 + abs(x)) + x * erf(x) + sqrt(1 + x^2) * sign(x)", |x| {
        x / (1.0 + x.abs()) + x * (1.0 - erfc(x)) + (1.0 + x * x).sqrt() * if x > 0.0 { 1.0 } else { -1.0 }
    }),
    ("max(0.1 * x, x) - min(x, 0.5)^3 + sin(2 * x)^2 / 2 - cos(x)", |x| {
        x.max(0.1 * x) - x.min(0.5).powi(3) + (2.0 * x).sin().powi(2) / 2.0 - x.cos()
    }),
    ("log(1 + exp(-abs(x))) + 1.5^x / (2 + abs(x))^1.7", |x: f64| {
        (1.0 + (-x.abs()).exp()).ln() + 1.5f64.powf(x) / (2.0 + x.abs()).powf(1.7)
    }),
    ("x * tanh(softplus(x)) - gelu(x) * sigmoid(x)", |x| {
        x * x.exp().ln_1p().tanh() - x * 0.5 * erfc(-x / 2f64.sqrt()) / (1.0 + (-x).exp())
    }),
];

/// Queues a kernel over all elements of output 0.
fn launch(cx: &GpuNode<'_>, entry: &'static str, f: &Function) -> Result<()> {
    let spec = cx.output_spec(0);
    let vec = vector_width(spec.elements(), spec.dtype);
    let kernel = f.define(Kernel::new("activate", entry).with("T", spec.dtype).with("VEC", vec));
    let tensors: Vec<DevicePtr> = cx.inputs.iter().chain(cx.outputs).copied().collect();
    launch_over(cx, kernel, (spec.elements(), vec), &tensors, &[])
}

impl Op for Activate {
    fn name(&self) -> &'static str {
        self.0.names().activate
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if self.0.variables() != 1 {
            return Err("needs a formula of one variable".into());
        }
        one_spec(inputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, dy) = (v.input(0), v.output_grad(0)?);
        v.backward(ActivateGrad { of: self.0.clone(), emits: false }, &[x, dy], &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let f = match &self.0 {
            Function::BuiltIn(f) => *f,
            Function::Formula(f) => return f.values(cx, UNARY_ROW_WIDTH),
        };
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(x.len(), TASK, #[inline(always)] |start, len| {
                let mut block = [<E as Elem>::Acc::ZERO; BLOCK];
                for at in (start..start + len).step_by(BLOCK) {
                    let block = &mut block[..BLOCK.min(start + len - at)];
                    x.load(at, block);
                    f.values(block);
                    y.store(at, block);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, "activate", &self.0)
    }

    fn cases(precision: Precision) -> Cases {
        let shapes = case_shapes(precision);
        let mut cases = Vec::new();
        for (f, spec) in Activation::ALL.into_iter().flat_map(|f| shapes.iter().map(move |spec| (f, spec))) {
            let name = format!("{:?}", spec.shape);
            cases.push(unary_case(name, Self(f.into()), spec, 3.0, move |x| f.plain(x)));
        }
        for (&(text, plain), spec) in FORMULAS.iter().zip(&shapes[shapes.len() - FORMULAS.len()..]) {
            let name = format!("{:?} {text}", spec.shape);
            cases.push(unary_case(name, Self(Function::from_text(text)), spec, 3.0, plain));
        }
        Cases::Own(cases)
    }
}

impl Op for ActivateGrad {
    fn name(&self) -> &'static str {
        self.of.names().activate_grad
    }

    fn attributes(&self) -> String {
        let emits = if self.emits { "emits=y" } else { "" };
        [&self.of.attributes(), emits].join(" ").trim().to_owned()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let dx = same_spec(inputs)?;
        Ok([&dx[..], if self.emits { &dx } else { &[] }].concat())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let pairs = [(0, 1), (0, 0), (1, 1), (1, 0)];
        pairs.into_iter().map(|(output, input)| MayAlias { output, input }).collect()
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true, of: self.of.clone() });
        Some(Emission { of: Arc::new(Activate(self.of.clone())), inputs: vec![0], gradient: by })
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let f = match &self.of {
            Function::BuiltIn(f) => *f,
            Function::Formula(f) => return f.gradients(cx, UNARY_ROW_WIDTH, self.emits),
        };
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(1));
            cx.pool.chunks(x.len(), TASK, #[inline(always)] |start, len| {
                let mut blocks = [[<E as Elem>::Acc::ZERO; BLOCK]; 3];
                for at in (start..start + len).step_by(BLOCK) {
                    let count = BLOCK.min(start + len - at);
                    let [value, slope, upstream] = blocks.each_mut().map(|block| &mut block[..count]);
                    x.load(at, value);
                    dy.load(at, upstream);
                    f.values_and_slopes(value, slope);
                    for (d, slope) in upstream.iter_mut().zip(&*slope) {
                        *d *= *slope;
                    }
                    dx.store(at, upstream);
                    if let Some(y) = y {
                        y.store(at, value);
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, if self.emits { "activate_grad_emitting" } else { "activate_grad" }, &self.of)
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Activate>()
    }
}
