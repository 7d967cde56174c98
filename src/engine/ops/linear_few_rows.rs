//! A linear layer on a few rows, fused with the bias and activation that follow it, for generation. It takes
//! as long as reading its weights.

use super::activate::Activate;
use super::activation::Activation;
use super::linear::Linear;
use crate::device::cpu::ViewMut;
use crate::device::cpu::matmul::{Matrix, product};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// `(x[N, in], W[out…, in], b[out…]) → y`: [`Linear`] on at most [`MAX_ROWS`] rows, with an optional bias
/// and activation, and without a gradient. The bias has the accumulator format, and `y` is rounded once.
///
/// On a GPU in bf16 one kernel reads the weights once, at full memory bandwidth. The bits of a row do not
/// depend on the other rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearFewRows {
    /// The linear layer.
    pub linear: Linear,
    /// True if a bias is added to the product.
    pub bias: bool,
    /// What the layer computes from the sums.
    pub output: Output,
}

/// What a layer of a few rows computes from its sums, the products plus bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// The sums themselves: `[N, out…]`.
    #[default]
    Sum,
    /// A function of each sum: `[N, out…]`.
    Activated(Activation),
    /// `f(gate) ⊙ up` for sums `[N, 2, f]`: `[N, f]`.
    Gated(Activation),
}

impl Output {
    /// Returns the activation, if there is one.
    fn activation(self) -> Option<Activation> {
        match self {
            Self::Sum => None,
            Self::Activated(f) | Self::Gated(f) => Some(f),
        }
    }

    /// Returns the number of sums behind one element of the output.
    fn sums(self) -> usize {
        if matches!(self, Self::Gated(_)) { 2 } else { 1 }
    }
}

/// The most rows: a tensor core takes 16 in one product.
pub const MAX_ROWS: usize = 16;

/// Outputs per block, and inputs that a warp takes at a time: 16 bytes in each of four lanes.
const OUTPUTS: usize = 8;
const INPUTS: usize = 32;

/// Blocks of inputs that a warp loads at once, to keep memory busy.
const UNROLL: usize = 4;

/// The most warps in a block; they divide the inputs among themselves.
const MAX_WARPS: usize = 8;

impl LinearFewRows {
    /// Returns a layer without bias and activation.
    pub fn new(linear: Linear) -> Self {
        Self { linear, ..Self::default() }
    }

    /// Returns true if the bf16 kernel serves rows `x` and weights `w`.
    pub fn serves(x: &Spec, w: &Spec) -> bool {
        x.dtype == DType::Bf16 && Self::takes(x, w)
    }

    /// Returns true if the kernel takes these shapes: few rows, and whole blocks of outputs and inputs.
    fn takes(x: &Spec, w: &Spec) -> bool {
        let (outputs, inputs) = (w.alloc[w.alloc.len() - 2], w.width());
        x.rows() <= MAX_ROWS && inputs > 0 && outputs % OUTPUTS == 0 && inputs % INPUTS == 0
    }

    /// Returns the kernel of a layer and the number of threads in a block.
    fn kernel(&self, rows: usize, inputs: usize) -> (Kernel, u32) {
        let wanted = (inputs / INPUTS).div_ceil(UNROLL);
        // A power of two, so that few kernels are compiled.
        let warps = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let warps = warps.clamp(1, MAX_WARPS);
        let kernel = Kernel::new("linear_few_rows", "linear_few_rows")
            .with("WARPS", warps)
            .with("UNROLL", UNROLL)
            .with("UPPER", u32::from(rows > MAX_ROWS / 2))
            .with("THREADS", 32 * warps)
            .with("BIAS", u32::from(self.bias))
            .with("SUMS", self.output.sums())
            .overlapping();
        let kernel = match self.output.activation() {
            Some(f) => kernel.with("ACTIVATION", f.names().functor),
            None => kernel,
        };
        (kernel, 32 * warps as u32)
    }
}

impl Op for LinearFewRows {
    fn name(&self) -> &'static str {
        "linear_few_rows"
    }

    fn attributes(&self) -> String {
        let output = match self.output {
            Output::Sum => String::new(),
            Output::Activated(f) => format!("activation={}", Activate::new(f).name()),
            Output::Gated(f) => format!("gate={}", Activate::new(f).name()),
        };
        let parts = [self.linear.attributes(), String::from(if self.bias { "bias" } else { "" }), output];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, w, rest @ ..] = inputs else { return Err("takes x and W, and b if it has one".into()) };
        let sums = self.linear.infer(&inputs[..2])?.remove(0);
        if !Self::takes(x, w) {
            return Err(format!(
                "x must have at most {MAX_ROWS} rows, W multiples of {OUTPUTS} outputs and {INPUTS} inputs"
            ));
        }
        if x.dtype == DType::F32 && (self.bias || self.output != Output::Sum) {
            return Err("takes neither bias nor activation in fp32".into());
        }
        let bias = Spec::padded(&sums.shape[1..], &sums.alloc[1..], x.dtype.accumulator());
        let expected = if self.bias { std::slice::from_ref(&bias) } else { &[] };
        if rest != expected {
            return Err(format!("b must be {bias}, or absent without a bias"));
        }
        match (self.output, &*sums.shape) {
            (Output::Gated(_), &[rows, 2, f]) => {
                Ok(vec![Spec::padded([rows, f], [sums.alloc[0], sums.width()], x.dtype)])
            }
            (Output::Gated(_), _) => Err("W must be [2, f, in] with a gate".into()),
            _ => Ok(vec![sums]),
        }
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let flops = self.linear.cost(&inputs[..2], outputs).product_flops;
        Cost::streaming(inputs, outputs).with_flops(flops)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (x, w) = (cx.input_spec(0), cx.input_spec(1));
        let (n, o, i) = (x.rows(), w.rows(), w.width());
        let width = o / self.output.sums();
        dispatch_float!(x.dtype, E => {
            type Acc = <E as Elem>::Acc;
            let mut sums = vec![Acc::ZERO; n * o];
            let (x, w) = (Matrix::rows(cx.input::<E>(0), i), Matrix::rows(cx.input::<E>(1), i));
            let to = Matrix::rows(ViewMut::from_slice(&mut sums), o);
            product(cx.pool, (n, o, i), x, w.t(), to, false);
            let bias = self.bias.then(|| cx.input::<Acc>(2));
            let y = cx.output::<E>(0);
            for (row, sums) in sums.chunks_mut(o).enumerate() {
                if let Some(bias) = bias {
                    sums.iter_mut().zip(bias.slice(0, o)).for_each(|(sum, bias)| *sum += *bias);
                }
                let (first, up) = sums.split_at_mut(width);
                if let Some(f) = self.output.activation() {
                    f.values(first);
                }
                first.iter_mut().zip(up).for_each(|(value, up)| *value *= *up);
                y.store(row * width, first);
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (x, w) = (cx.input_spec(0), cx.input_spec(1));
        // In fp32 the layer has neither bias nor activation.
        if x.dtype != DType::Bf16 {
            return self.linear.gpu(cx);
        }
        if x.rows() == 0 {
            return Ok(());
        }
        let width = w.rows() / self.output.sums();
        let (kernel, threads) = self.kernel(x.rows(), w.width());
        let bias = if self.bias { cx.input(2) } else { 0 };
        let mut args: Vec<Arg> = [cx.input(0), cx.input(1), bias, cx.output(0)].map(Arg::Ptr).to_vec();
        args.extend([x.rows(), width, w.width()].map(Arg::from));
        cx.queue.launch(kernel, Grid::new(width / OUTPUTS, threads), &args)
    }

    /// Covers every number of warps, and leftover blocks of inputs.
    fn cases(precision: Precision) -> Cases {
        let plain = [(1, 32, 8), (3, 96, 24), (8, 160, 40), (9, 256, 64), (16, 768, 128), (2, 1056, 16)];
        let mut cases: Vec<Case> =
            plain.map(|shape| case(Self::default(), precision, shape)).into_iter().collect();
        if precision.act_dtype == DType::F32 {
            return Cases::Own(cases);
        }
        let layers = [
            (true, Output::Sum, (1, 768, 64)),
            (true, Output::Activated(Activation::GeluTanh), (3, 768, 64)),
            (false, Output::Activated(Activation::Relu2), (16, 3072, 64)),
            (true, Output::Gated(Activation::Gelu), (9, 160, 24)),
            (false, Output::Gated(Activation::Silu), (1, 768, 128)),
        ];
        for (bias, output, shape) in layers {
            cases.push(case(Self { bias, output, ..Self::default() }, precision, shape));
        }
        Cases::Own(cases)
    }
}

/// Returns the test case for `n` rows, `i` inputs and `o` outputs.
fn case(op: LinearFewRows, precision: Precision, (n, i, o): (usize, usize, usize)) -> Case {
    let outs = if op.output.sums() == 2 { vec![2, o] } else { vec![o] };
    let weights = Spec::new([&outs[..], &[i]].concat(), precision.act_dtype);
    let mut inputs = vec![
        (Spec::new([n, i], precision.act_dtype), Fill::Normal(0.0, 1.0)),
        (weights, Fill::Normal(0.0, 0.2)),
    ];
    if op.bias {
        inputs.push((Spec::new(outs, precision.master), Fill::Normal(0.0, 1.0)));
    }
    let name = format!("n{n} in{i} out{o} {}", op.attributes());
    Case::new(name.trim_end(), op, inputs, move |inputs| vec![reference(&op, inputs, o)])
        .without_gradient()
        .depth(i)
}

/// Computes the layer, with `width` outputs, by plain loops.
fn reference(op: &LinearFewRows, inputs: &[Array], width: usize) -> Array {
    let (x, w) = (&inputs[0], &inputs[1]);
    let (rows, count) = (x.shape[0], x.width());
    let mut y = Array::zeros(&[rows, width]);
    for r in 0..rows {
        for o in 0..width {
            let sum = |o: usize| {
                let terms = (0..count).map(|k| x.data[r * count + k] * w.data[o * count + k]);
                terms.sum::<f64>() + if op.bias { inputs[2].data[o] } else { 0.0 }
            };
            y.data[r * width + o] = match op.output {
                Output::Sum => sum(o),
                Output::Activated(f) => f.plain(sum(o)),
                Output::Gated(f) => f.plain(sum(o)) * sum(width + o),
            };
        }
    }
    y
}
