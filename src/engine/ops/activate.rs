//! Applies an activation function to every element, or to its sum with a bias.

use super::activation::Activation;
use super::add_bias::{AddBias, AddBiasGrad, bias_spec};
use super::elementwise::{case_shapes, one_spec, same_spec, unary_case};
use super::formula::{Function, UNARY_ROW_WIDTH};
use super::lanes::{BLOCK, TASK, launch_over, row_matrix, vector_width};
use crate::device::cpu::ViewMut;
use crate::device::gpu::Kernel;
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::expression::erfc;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, Emission, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId,
    Vjp,
};
use std::sync::Arc;

/// `y = f(x)` of any shape. With a bias, which has the accumulator format, `(x[N, …], b[…]) → y = f(x + b)`
/// in every row.
#[derive(Clone, Debug, PartialEq)]
pub struct Activate {
    /// The function; with a bias, no formula.
    pub function: Function,
    /// True if a bias is added first.
    pub bias: bool,
}

/// `(x, dy) → dx = dy ⊙ f'(x)`, or `(dx, y)` if `emits` is set. With a bias, from `(x, b, dy)` and with
/// `f'(x + b)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivateGrad {
    /// The op whose gradient this is.
    pub of: Activate,
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

/// Adds the bias of rows to elements of them, of which the first is element `at` of all rows. An empty bias
/// is none.
fn add_bias<A: Real>(mut elements: &mut [A], bias: &[A], at: usize) {
    if bias.is_empty() {
        return;
    }
    let mut rest = &bias[at % bias.len()..];
    while !elements.is_empty() {
        let (of_row, further) = elements.split_at_mut(rest.len().min(elements.len()));
        of_row.iter_mut().zip(rest).for_each(|(x, b)| *x += *b);
        (elements, rest) = (further, bias);
    }
}

impl Activate {
    /// Creates the op of a function without a bias.
    pub fn new(function: impl Into<Function>) -> Self {
        Self { function: function.into(), bias: false }
    }

    /// Checks the inputs `x`, and the bias if there is one. Returns the spec of `x`.
    fn rows(&self, inputs: &[Spec]) -> Result<Spec, String> {
        if !self.bias {
            return Ok(one_spec(inputs)?.remove(0));
        }
        let [x, b] = inputs else { return Err("takes x and b".into()) };
        let bias = bias_spec(x)?;
        if *b != bias || matches!(self.function, Function::Formula(_)) {
            return Err(format!("b must be {bias}, and the function no formula"));
        }
        Ok(x.clone())
    }

    /// Returns the bias; empty if there is none.
    fn bias<'a, A: Elem>(&self, cx: &CpuNode<'a>) -> &'a [A] {
        if !self.bias {
            return &[];
        }
        cx.input::<A>(1).slice(0, cx.input_spec(1).elements())
    }

    /// Queues a kernel over all elements of output 0.
    fn launch(&self, cx: &GpuNode<'_>, entry: &'static str) -> Result<()> {
        let spec = cx.output_spec(0);
        let width = if self.bias { row_matrix(spec).width() } else { spec.elements() };
        let vec = vector_width(width, spec.dtype);
        let kernel = Kernel::new("activate", entry).with("T", spec.dtype).with("VEC", vec);
        // Without a bias, all widths have one kernel.
        let kernel = self.function.define(kernel.with("BIAS_WIDTH", if self.bias { width } else { 0 }));
        let mut tensors = [cx.inputs, cx.outputs].concat();
        if !self.bias {
            tensors.insert(1, 0);
        }
        launch_over(cx, kernel, (spec.elements(), vec), &tensors, &[])
    }
}

impl Op for Activate {
    fn name(&self) -> &'static str {
        self.function.names().activate
    }

    fn attributes(&self) -> String {
        let bias = if self.bias { "bias" } else { "" };
        [&self.function.attributes(), bias].join(" ").trim().to_owned()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if self.function.variables() != 1 {
            return Err("needs a formula of one variable".into());
        }
        Ok(vec![self.rows(inputs)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, dy) = (v.input(0), v.output_grad(0)?);
        let gradient = ActivateGrad { of: self.clone(), emits: false };
        if !self.bias {
            return v.backward(gradient, &[x, dy], &[0]).map(drop);
        }
        let dx = v.backward(gradient, &[x, v.input(1), dy], &[0])?[0];
        v.backward(AddBiasGrad, &[dx], &[1]).map(drop)
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        if !self.bias {
            return Ok(None);
        }
        let sum = b.emit1("biased", AddBias, inputs)?;
        Ok(Some(vec![b.emit1(self.name(), Self::new(self.function.clone()), &[sum])?]))
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let f = match &self.function {
            Function::BuiltIn(f) => *f,
            Function::Formula(f) => return f.values(cx, UNARY_ROW_WIDTH),
        };
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            let bias = self.bias(cx);
            cx.pool.chunks(x.len(), TASK, #[inline(always)] |start, len| {
                let mut block = [<E as Elem>::Acc::ZERO; BLOCK];
                for at in (start..start + len).step_by(BLOCK) {
                    let block = &mut block[..BLOCK.min(start + len - at)];
                    x.load(at, block);
                    add_bias(block, bias, at);
                    f.values(block);
                    y.store(at, block);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        self.launch(cx, "activate")
    }

    fn cases(precision: Precision) -> Cases {
        let shapes = case_shapes(precision);
        let mut cases = Vec::new();
        for (f, spec) in Activation::ALL.into_iter().flat_map(|f| shapes.iter().map(move |spec| (f, spec))) {
            let name = format!("{:?}", spec.shape);
            cases.push(unary_case(name, Self::new(f), spec, 3.0, move |x| f.plain(x)));
        }
        for (f, spec) in Activation::ALL.into_iter().flat_map(|f| shapes.iter().map(move |spec| (f, spec))) {
            if spec.shape.len() > 1 {
                cases.push(biased_case(f, spec, precision));
            }
        }
        let halves = Spec::padded([33, 2, 30], [33, 2, 64], precision.act_dtype);
        cases.push(biased_case(Activation::Gelu, &halves, precision));
        for (&(text, plain), spec) in FORMULAS.iter().zip(&shapes[shapes.len() - FORMULAS.len()..]) {
            let name = format!("{:?} {text}", spec.shape);
            cases.push(unary_case(name, Self::new(Function::from_text(text)), spec, 3.0, plain));
        }
        Cases::Own(cases)
    }
}

impl ActivateGrad {
    /// Returns the index of the input with the gradient of the output.
    fn dy(&self) -> usize {
        1 + usize::from(self.of.bias)
    }
}

/// Returns the test case of `f(x + b)`.
fn biased_case(f: Activation, rows: &Spec, precision: Precision) -> Case {
    let bias = Spec::padded(&rows.shape[1..], &rows.alloc[1..], precision.master);
    let inputs = vec![(rows.clone(), Fill::Normal(0.0, 2.0)), (bias, Fill::Normal(0.5, 1.0))];
    let op = Activate { bias: true, ..Activate::new(f) };
    Case::new(format!("{:?} with a bias", rows.shape), op, inputs, move |inputs: &[Array]| {
        let (mut y, b) = (inputs[0].clone(), &inputs[1].data);
        for row in y.data.chunks_mut(b.len()) {
            row.iter_mut().zip(b).for_each(|(y, b)| *y = f.plain(*y + b));
        }
        vec![y]
    })
    .weights(&[1])
    .depth(rows.shape[0])
}

impl Op for ActivateGrad {
    fn name(&self) -> &'static str {
        self.of.function.names().activate_grad
    }

    fn attributes(&self) -> String {
        let emits = if self.emits { "emits=y" } else { "" };
        [&self.of.attributes(), emits].join(" ").trim().to_owned()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let Some((dy, of_forward)) = inputs.split_last() else { return Err("takes x and dy".into()) };
        let dx = same_spec(&[self.of.rows(of_forward)?, dy.clone()])?;
        Ok([&dx[..], if self.emits { &dx } else { &[] }].concat())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let dy = self.dy();
        let pairs = [(0, dy), (0, 0), (1, dy), (1, 0)];
        pairs.into_iter().map(|(output, input)| MayAlias { output, input }).collect()
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true, of: self.of.clone() });
        Some(Emission { of: Arc::new(self.of.clone()), inputs: (0..self.dy()).collect(), gradient: by })
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let f = match &self.of.function {
            Function::BuiltIn(f) => *f,
            Function::Formula(f) => return f.gradients(cx, UNARY_ROW_WIDTH, self.emits),
        };
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(self.dy()), cx.output::<E>(0));
            let bias = self.of.bias(cx);
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(1));
            cx.pool.chunks(x.len(), TASK, #[inline(always)] |start, len| {
                let mut blocks = [[<E as Elem>::Acc::ZERO; BLOCK]; 3];
                for at in (start..start + len).step_by(BLOCK) {
                    let count = BLOCK.min(start + len - at);
                    let [value, slope, upstream] = blocks.each_mut().map(|block| &mut block[..count]);
                    x.load(at, value);
                    add_bias(value, bias, at);
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
        self.of.launch(cx, if self.emits { "activate_grad_emitting" } else { "activate_grad" })
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Activate>()
    }
}
