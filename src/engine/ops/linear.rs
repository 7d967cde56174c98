//! Linear layers without bias: `y = x·Wᵀ`, and the two products of its gradient.
//!
//! Weights are row-major `[out…, in]`; several leading dimensions (gate and up projections side by side)
//! carry over to the output. Products run over the allocated sizes: padding is zero on both sides, so it
//! stays zero.

use super::lanes::map;
use crate::device::cpu::matmul::{Matrix, product};
use crate::device::gpu::Operand;
use crate::device::{Elem, ProductPrecision};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y[N, out…] = x[N, in] · W[out…, in]ᵀ`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Linear {
    /// Precision of the product.
    pub products: ProductPrecision,
}

/// `dx[N, in] = dy[N, out…] · W[out…, in]`, plus a third input like dx if it adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearInputGrad {
    /// Precision of the product.
    pub products: ProductPrecision,
    /// True if it adds to the gradients that other ops have recorded.
    pub adds: bool,
}

/// `dW[out…, in] (+)= dy[N, out…]ᵀ · x[N, in]`, in the accumulator format.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearWeightGrad {
    /// Precision of the product.
    pub products: ProductPrecision,
}

/// Returns (rows, outputs, inputs) of a layer as allocated.
pub(super) fn sizes(x: &Spec, w: &Spec) -> (usize, usize, usize) {
    (x.rows(), w.rows(), w.width())
}

pub(super) fn flops((n, o, i): (usize, usize, usize)) -> f64 {
    2.0 * n as f64 * o as f64 * i as f64
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn attributes(&self) -> String {
        self.products.attribute().to_string()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, w] = inputs else { return Err("takes x and W".into()) };
        if x.shape.len() != 2 || w.shape.len() < 2 || x.width() != w.width() || x.dtype != w.dtype {
            return Err("x must be [N, in] and W [out…, in], both in one format".into());
        }
        let outs = w.shape.len() - 1;
        let shape = [&x.shape[..1], &w.shape[..outs]].concat();
        let alloc = [&x.alloc[..1], &w.alloc[..outs]].concat();
        Ok(vec![Spec::padded(shape, alloc, x.dtype)])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, w, dy) = (v.input(0), v.input(1), v.output_grad(0)?);
        if v.needs_grad(1) {
            v.backward(LinearWeightGrad { products: self.products }, &[x, dy, w], &[1])?;
        }
        if v.needs_grad(0) {
            let sum = v.sum_to_add_to(0);
            let inputs = [[dy, w].as_slice(), sum.as_slice()].concat();
            v.backward(LinearInputGrad { products: self.products, adds: sum.is_some() }, &inputs, &[0])?;
            v.includes_sum(0);
        }
        Ok(())
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(flops(sizes(&inputs[0], &inputs[1])))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (n, o, i) = sizes(cx.input_spec(0), cx.input_spec(1));
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, w) = (Matrix::rows(cx.input::<E>(0), i), Matrix::rows(cx.input::<E>(1), i));
            let y = Matrix::rows(cx.output::<E>(0), o);
            product(cx.pool, (n, o, i), x, w.t(), y, false);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, o, i) = sizes(cx.input_spec(0), cx.input_spec(1));
        let (a, b) = (Operand::plain(cx.input(0)), Operand::transposed(cx.input(1)));
        cx.product((n, o, i), a, b, 0, self.products)
    }

    fn cases(precision: Precision) -> Cases {
        let shapes = [(1, 32, 48), (17, 96, 33), (255, 64, 128), (33, 5, 7), (256, 384, 128), (1000, 40, 24)];
        let case = |(n, i, o): (usize, usize, usize)| {
            let inputs = vec![
                (Spec::new([n, i], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([o, i], precision.act_dtype), Fill::Normal(0.0, 0.2)),
            ];
            Case::new(format!("n{n} in{i} out{o}"), Linear::default(), inputs, reference)
                .weights(&[1])
                .depth(i.max(n).max(o))
        };
        let mut cases: Vec<Case> = shapes.into_iter().map(case).collect();
        let mut padded = case((9, 16, 30));
        padded.name = "padded outputs in two halves".into();
        padded.inputs[1].0 = Spec::padded([2, 15, 16], [2, 64, 16], precision.act_dtype);
        cases.push(padded);
        Cases::Own(cases)
    }
}

/// Computes `y = x·Wᵀ` by three loops.
pub(super) fn reference(inputs: &[Array]) -> Vec<Array> {
    let (x, w) = (&inputs[0], &inputs[1]);
    let (n, width) = (x.shape[0], x.width());
    let outs = w.data.len() / width;
    let mut y = Array::zeros(&[&[n], &w.shape[..w.shape.len() - 1]].concat());
    for r in 0..n {
        for o in 0..outs {
            y.data[r * outs + o] = (0..width).map(|k| x.data[r * width + k] * w.data[o * width + k]).sum();
        }
    }
    vec![y]
}

impl Op for LinearInputGrad {
    fn name(&self) -> &'static str {
        "linear_input_grad"
    }

    fn attributes(&self) -> String {
        let adds = self.adds.then_some("adds");
        [Some(self.products.attribute()).filter(|text| !text.is_empty()), adds]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [dy, w, sums @ ..] = inputs else { return Err("takes dy and W".into()) };
        if dy.alloc[1..] != w.alloc[..w.alloc.len() - 1] || dy.dtype != w.dtype {
            return Err("dy must be [N, out…] and W [out…, in], both in one format".into());
        }
        let shape = [dy.shape[0], w.shape[w.shape.len() - 1]];
        let dx = Spec::padded(shape, [dy.alloc[0], w.width()], dy.dtype);
        let fits = |sum: &Spec| sum.alloc == dx.alloc && sum.dtype == dx.dtype;
        if sums.len() != usize::from(self.adds) || !sums.iter().all(fits) {
            return Err(format!("the sum to add to must be {dx}"));
        }
        Ok(vec![dx])
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        if self.adds { vec![MayAlias { output: 0, input: 2 }] } else { Vec::new() }
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(flops(sizes(&outputs[0], &inputs[1])))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (n, o, i) = sizes(cx.output_spec(0), cx.input_spec(1));
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (dy, w) = (Matrix::rows(cx.input::<E>(0), o), Matrix::rows(cx.input::<E>(1), i));
            let dx = Matrix::rows(cx.output::<E>(0), i);
            if self.adds && cx.inputs[2] != cx.outputs[0] {
                map(cx.pool, cx.input::<E>(2), cx.output::<E>(0), |sum| sum);
            }
            product(cx.pool, (n, i, o), dy, w, dx, self.adds);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, o, i) = sizes(cx.output_spec(0), cx.input_spec(1));
        let (a, b) = (Operand::plain(cx.input(0)), Operand::plain(cx.input(1)));
        if self.adds {
            cx.product_plus((n, i, o), a, b, cx.input(2), self.products)
        } else {
            cx.product((n, i, o), a, b, 0, self.products)
        }
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Linear>()
    }
}

impl Op for LinearWeightGrad {
    fn name(&self) -> &'static str {
        "linear_weight_grad"
    }

    fn attributes(&self) -> String {
        self.products.attribute().to_string()
    }

    /// Uses only the shape of the weight input.
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, dy, w] = inputs else { return Err("takes x, dy and W".into()) };
        if x.alloc[0] != dy.alloc[0] || x.dtype != dy.dtype {
            return Err("x and dy must have the same number of rows and the same format".into());
        }
        Ok(vec![w.with_dtype(w.dtype.accumulator())])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(&inputs[..2], outputs).with_flops(flops(sizes(&inputs[0], &outputs[0])))
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (n, o, i) = sizes(cx.input_spec(0), cx.output_spec(0));
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, dy) = (Matrix::rows(cx.input::<E>(0), i), Matrix::rows(cx.input::<E>(1), o));
            let dw = Matrix::rows(cx.output::<<E as Elem>::Acc>(0), i);
            product(cx.pool, (o, i, n), dy.t(), x, dw, cx.adds(0));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, o, i) = sizes(cx.input_spec(0), cx.output_spec(0));
        let (a, b) = (Operand::transposed(cx.input(1)), Operand::plain(cx.input(0)));
        cx.product((o, i, n), a, b, 0, self.products)
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Linear>()
    }
}
