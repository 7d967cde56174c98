//! The gated activation of a feed-forward layer and its gradient, rounded to 8-bit floats as they are
//! computed: the values themselves are never stored.
//!
//! Both have the bits of the separate ops, so it does not matter which of them a program has: values are
//! rounded to the format of activations before they are rounded to 8 bits.

use super::activation::Activation;
use super::formula::Function;
use super::gated::{Gated, GatedGrad};
use super::parts::run_parts;
use super::quantize::{self, Layouts, Quantize};
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::error::Result;
use crate::ir::{
    Array, Case, Cases, Cost, CpuNode, Destination, Fill, GpuNode, Mode, Op, Precision, Spec, TensorId,
};
use crate::policy::Fp8Scaling;
use std::sync::Arc;

/// [`Gated`], followed by [`Quantize`] with delayed scaling.
///
/// Inputs: gate_up `[N, 2, f]`, scales. Outputs: those of [`Quantize`].
#[derive(Clone, Debug, PartialEq)]
pub struct GatedQuantize {
    /// The function.
    pub of: Function,
    /// How the output is rounded.
    pub rounding: Quantize,
}

/// [`GatedGrad`], followed by [`Quantize`] of the gradient and, if the op emits the output of [`Gated`], by
/// that of the output, both with delayed scaling.
///
/// Inputs: gate_up `[N, 2, f]`, dy `[N, f]`, the gradient's scales and, if it emits, the output's. Outputs:
/// those of [`Quantize`] of the gradient, then the transpose of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedGradQuantize {
    /// The function.
    pub of: Function,
    /// How the gradient is rounded.
    pub gradient: Quantize,
    /// How the output is rounded if it is emitted: to its transpose alone, which does not count again.
    pub emitted: Option<Quantize>,
}

/// Rows and columns of the tile of a block, and its threads (kernels/gated_quantize.cu).
const TILE: [usize; 2] = [64, 128];
const THREADS: u32 = 256;

/// Returns the launch of a kernel over an activation of `width` columns: the kernel with what both have in
/// common, and its grid.
fn launch(cx: &GpuNode<'_>, entry: &'static str, of: &Function, rounding: &Quantize) -> (Kernel, Grid) {
    let [rows, width] = sizes(cx.input_spec(0));
    let kernel = Kernel::new("gated_quantize", entry)
        .with("T", cx.input_spec(0).dtype)
        .with("WIDTH", width)
        .with("FORMAT", rounding.format)
        .with("ROWS", u8::from(rounding.layouts.rows))
        .with("TRANSPOSED", u8::from(rounding.layouts.transposed))
        .with("OBSERVES", u8::from(rounding.observes));
    let blocks = [width.div_ceil(TILE[1]) as u32, rows.div_ceil(TILE[0]) as u32, 1];
    (of.define(kernel), Grid { blocks, threads: THREADS, shared: 0 })
}

/// Returns the rows and the width of the activation for gates and ups.
fn sizes(gate_up: &Spec) -> [usize; 2] {
    let [.., rows, _, width] = gate_up.alloc[..] else { return [0, 0] };
    [rows, width]
}

/// Returns the arguments of a rounding that is the first of a node's: the matrices or null, the scales, then
/// the maximum and the counts or null.
fn rounding_args(cx: &GpuNode<'_>, rounding: &Quantize, scales: usize) -> Vec<Arg> {
    let Layouts { rows, transposed } = rounding.layouts;
    let by_rows = if rows { cx.output(0) } else { 0 };
    let transposed = if transposed { cx.output(usize::from(rows)) } else { 0 };
    let site = rounding.site_outputs().map_or([0; 2], |site| site.map(|at| cx.output(at)));
    [by_rows, transposed, cx.input(scales), site[0], site[1]].map(Arg::from).to_vec()
}

/// Returns the destinations of a node's outputs, which accumulate as `rounding` does.
fn destinations(rounding: &Quantize, outputs: &[TensorId]) -> Vec<Destination> {
    let mode = |at: usize| if rounding.accumulates(at) { Mode::Add } else { Mode::Write };
    outputs.iter().enumerate().map(|(at, &id)| Destination::Into(id, mode(at))).collect()
}

impl Op for GatedQuantize {
    fn name(&self) -> &'static str {
        "gated_quantize"
    }

    fn attributes(&self) -> String {
        let gated = Gated(self.of.clone());
        [gated.name(), &gated.attributes(), &self.rounding.attributes()].join(" ").replace("  ", " ")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [gate_up, scales] = inputs else { return Err("takes gate_up and scales".into()) };
        let y = Gated(self.of.clone()).infer(std::slice::from_ref(gate_up))?;
        if self.rounding.scaling != Fp8Scaling::Delayed {
            return Err("needs delayed scaling".into());
        }
        self.rounding.infer(&[y[0].clone(), scales.clone()])
    }

    fn accumulates(&self, output: usize) -> bool {
        self.rounding.accumulates(output)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        run_parts(cx, |b, inputs, outputs| {
            let y = b.emit1("y", Gated(self.of.clone()), &inputs[..1])?;
            let outs = destinations(&self.rounding, outputs);
            b.emit_into("q", Arc::new(self.rounding), &[y, inputs[1]], &outs).map(drop)
        })
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (kernel, grid) = launch(cx, "gated_quantize", &self.of, &self.rounding);
        let mut args = vec![Arg::from(cx.input(0))];
        args.extend(rounding_args(cx, &self.rounding, 1));
        args.push(sizes(cx.input_spec(0))[0].into());
        cx.queue.launch(kernel.with("EMITTED", DType::E4m3).with("EMITS", 0), grid, &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case =
            |(of, plain): TestFunction, [rows, width]: [usize; 2], layouts: Layouts, observes: bool| {
                let rounding = rounding(DType::E4m3, layouts, width, observes);
                let op = Self { of, rounding };
                let inputs = vec![gate_up([rows, width], precision), quantize::case_scales(DType::E4m3)];
                let reference = move |inputs: &[Array]| {
                    let data = values(&plain_all(plain, &inputs[0]), precision);
                    let y = Array { shape: vec![rows, width], data };
                    quantize::reference(rounding, &[&[y], &inputs[1..]].concat())
                };
                Case::new(case_name(&op.of, [rows, width], layouts, observes), op, inputs, reference)
                    .without_gradient()
                    .outputs(quantize::case_outputs(rounding))
            };
        Cases::Own(vec![
            case(silu(), [16, 16], BOTH, true),
            case(silu(), [144, 272], BOTH, true),
            case(silu(), [144, 272], BOTH, false),
            case(silu(), [80, 144], Layouts { transposed: false, ..BOTH }, true),
            case(silu(), [80, 144], Layouts { rows: false, ..BOTH }, false),
            case(relu(), [64, 128], BOTH, true),
            case(formula(), [48, 32], BOTH, true),
        ])
    }
}

impl Op for GatedGradQuantize {
    fn name(&self) -> &'static str {
        "gated_grad_quantize"
    }

    fn attributes(&self) -> String {
        let gradient = GatedGrad { of: self.of.clone(), emits: false };
        let emitted = self.emitted.map_or(String::new(), |emitted| format!("y: {}", emitted.attributes()));
        let parts = [gradient.name(), &gradient.attributes(), &self.gradient.attributes(), &emitted];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [gate_up, dy, scales, y_scales @ ..] = inputs else {
            return Err("takes gate_up, dy and scales".into());
        };
        let gradient = GatedGrad { of: self.of.clone(), emits: true };
        let gradients = gradient.infer(&[gate_up.clone(), dy.clone()])?;
        let roundings = [Some(self.gradient), self.emitted];
        if roundings.iter().flatten().any(|rounding| rounding.scaling != Fp8Scaling::Delayed) {
            return Err("needs delayed scaling".into());
        }
        let mut outputs = self.gradient.infer(&[gradients[0].clone(), scales.clone()])?;
        let transpose = Layouts { rows: false, transposed: true };
        match (self.emitted, y_scales) {
            (None, []) => {}
            (Some(emitted), [y_scales]) if emitted.layouts == transpose && !emitted.observes => {
                outputs.extend(emitted.infer(&[gradients[1].clone(), y_scales.clone()])?);
            }
            _ => return Err("takes the output's scales if it emits the output's transpose".into()),
        }
        Ok(outputs)
    }

    fn accumulates(&self, output: usize) -> bool {
        self.gradient.accumulates(output)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        run_parts(cx, |b, inputs, outputs| {
            let gradient = GatedGrad { of: self.of.clone(), emits: self.emitted.is_some() };
            let values = b.emit("d_gate_up", gradient, &inputs[..2])?;
            let (own, emitted) = outputs.split_at(outputs.len() - usize::from(self.emitted.is_some()));
            let outs = destinations(&self.gradient, own);
            b.emit_into("q", Arc::new(self.gradient), &[values[0], inputs[2]], &outs)?;
            if let Some(rounding) = self.emitted {
                let outs = destinations(&rounding, emitted);
                b.emit_into("y", Arc::new(rounding), &[values[1], inputs[3]], &outs)?;
            }
            Ok(())
        })
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (kernel, grid) = launch(cx, "gated_grad_quantize", &self.of, &self.gradient);
        let kernel = kernel
            .with("EMITTED", self.emitted.map_or(DType::E4m3, |emitted| emitted.format))
            .with("EMITS", u8::from(self.emitted.is_some()));
        let mut args = vec![cx.input(0).into(), cx.input(1).into()];
        args.extend(rounding_args(cx, &self.gradient, 2));
        let emitted = match self.emitted {
            Some(_) => [cx.output(cx.outputs.len() - 1), cx.input(3)],
            None => [0; 2],
        };
        args.extend(emitted.map(Arg::from));
        args.push(sizes(cx.input_spec(0))[0].into());
        cx.queue.launch(kernel, grid, &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(of, plain): TestFunction,
                    format: DType,
                    [rows, width]: [usize; 2],
                    layouts: Layouts,
                    emits: bool| {
            let gradient = rounding(format, layouts, 2 * width, true);
            let transpose = Layouts { rows: false, transposed: true };
            let emitted = emits.then(|| rounding(DType::E4m3, transpose, width, false));
            let op = Self { of, gradient, emitted };
            let mut inputs = vec![gate_up([rows, width], precision)];
            inputs.push((Spec::new([rows, width], precision.act_dtype), Fill::Normal(0.0, 1.0)));
            inputs.push(quantize::case_scales(format));
            inputs.extend(emits.then(|| quantize::case_scales(DType::E4m3)));
            let reference = move |inputs: &[Array]| {
                let all = plain_all(plain, &inputs[0]);
                let data = gradients(&all, &inputs[1], precision);
                let d = Array { shape: vec![rows, 2 * width], data };
                let initial = &inputs[inputs.len() - 2..];
                let mut outputs = quantize::reference(gradient, &[&[d, inputs[2].clone()], initial].concat());
                if let Some(emitted) = emitted {
                    let y = Array { shape: vec![rows, width], data: values(&all, precision) };
                    outputs.extend(quantize::reference(emitted, &[y, inputs[3].clone()]));
                }
                outputs
            };
            let name = format!("{format} {}", case_name(&op.of, [rows, width], layouts, emits));
            Case::new(name, op, inputs, reference)
                .without_gradient()
                .outputs(quantize::case_outputs(gradient))
        };
        Cases::Own(vec![
            case(silu(), DType::E5m2, [16, 16], BOTH, true),
            case(silu(), DType::E5m2, [144, 272], BOTH, true),
            case(silu(), DType::E5m2, [144, 272], BOTH, false),
            case(silu(), DType::E4m3, [144, 272], BOTH, false),
            case(silu(), DType::E5m2, [80, 144], Layouts { rows: false, ..BOTH }, false),
            case(relu(), DType::E5m2, [64, 128], BOTH, true),
            case(formula(), DType::E5m2, [48, 32], BOTH, true),
        ])
    }
}

const BOTH: Layouts = Layouts { rows: true, transposed: true };

/// A function of a case, and in f64 its value and its slopes by gate and up.
type TestFunction = (Function, fn(f64, f64) -> [f64; 3]);

fn silu() -> TestFunction {
    let plain = |gate: f64, up: f64| {
        let sigmoid = 1.0 / (1.0 + (-gate).exp());
        [gate * sigmoid * up, up * sigmoid * (1.0 + gate * (1.0 - sigmoid)), gate * sigmoid]
    };
    (Activation::Silu.into(), plain)
}

fn relu() -> TestFunction {
    let plain = |gate: f64, up: f64| [gate.max(0.0) * up, if gate > 0.0 { up } else { 0.0 }, gate.max(0.0)];
    (Activation::Relu.into(), plain)
}

fn formula() -> TestFunction {
    let plain = |a: f64, b: f64| [a * b.tanh(), b.tanh(), a * (1.0 - b.tanh().powi(2))];
    (Function::from_text("a * tanh(b)"), plain)
}

fn rounding(format: DType, layouts: Layouts, columns: usize, observes: bool) -> Quantize {
    Quantize { format, layouts, scaling: Fp8Scaling::Delayed, columns, observes }
}

fn case_name(of: &Function, [rows, width]: [usize; 2], layouts: Layouts, flag: bool) -> String {
    let Layouts { rows: by_rows, transposed } = layouts;
    format!("{} n{rows} f{width} {by_rows} {transposed} {flag}", of.names().gated)
}

fn gate_up([rows, width]: [usize; 2], precision: Precision) -> (Spec, Fill) {
    (Spec::new([rows, 2, width], precision.act_dtype), Fill::Normal(0.0, 1.0))
}

/// Computes values and slopes for all gates and ups of a case.
fn plain_all(plain: fn(f64, f64) -> [f64; 3], gate_up: &Array) -> Vec<[f64; 3]> {
    let width = gate_up.width();
    let rows = gate_up.data.chunks(2 * width).map(|row| row.split_at(width));
    rows.flat_map(|(gates, ups)| gates.iter().zip(ups).map(move |(gate, up)| plain(*gate, *up))).collect()
}

/// Returns the activation rounded to the format of activations.
fn values(all: &[[f64; 3]], precision: Precision) -> Vec<f64> {
    all.iter().map(|[value, ..]| precision.act_dtype.round(*value)).collect()
}

/// Returns the gradients of gates and ups, rounded to the format of activations.
fn gradients(all: &[[f64; 3]], dy: &Array, precision: Precision) -> Vec<f64> {
    let of_row = |(slopes, dy): (&[[f64; 3]], &[f64])| {
        let half = |which: usize| {
            let products = slopes.iter().zip(dy).map(move |(slope, dy)| slope[which] * dy);
            products.map(|d| precision.act_dtype.round(d)).collect::<Vec<_>>()
        };
        [half(1), half(2)].concat()
    };
    all.chunks(dy.width()).zip(dy.data.chunks(dy.width())).flat_map(of_row).collect()
}
