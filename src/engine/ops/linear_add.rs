//! A linear layer whose product is added to rows: `y = r + x·Wᵀ`.
//!
//! The product adds the rows before it rounds, so they cost one read and no op of their own.

use super::add::Add;
use super::lanes::map;
use super::linear::{self, Linear};
use crate::device::cpu::matmul::{Matrix, product};
use crate::device::gpu::Operand;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, Cost, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp,
};

/// `y[N, out…] = r[N, out…] + x[N, in] · W[out…, in]ᵀ`, from `(x, W, r)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearAdd(
    /// The product.
    pub Linear,
);

impl Op for LinearAdd {
    fn name(&self) -> &'static str {
        "linear_add"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [_, _, rows] = inputs else { return Err("takes x, W and r".into()) };
        let outputs = self.0.infer(&inputs[..2])?;
        if *rows != outputs[0] {
            return Err(format!("r must be {}", outputs[0]));
        }
        Ok(outputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let dy = v.output_grad(0)?;
        self.0.vjp(v)?;
        v.set_input_grad(2, dy);
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 2 }]
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(inputs, outputs).with_flops(linear::flops(linear::sizes(&inputs[0], &inputs[1])))
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let product = b.emit1("product", self.0, &inputs[..2])?;
        Ok(Some(vec![b.emit1("sum", Add, &[inputs[2], product])?]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (n, o, i) = linear::sizes(cx.input_spec(0), cx.input_spec(1));
        dispatch_float!(cx.input_spec(0).dtype, E => {
            if cx.inputs[2] != cx.outputs[0] {
                map(cx.pool, cx.input::<E>(2), cx.output::<E>(0), |r| r);
            }
            let (x, w) = (Matrix::rows(cx.input::<E>(0), i), Matrix::rows(cx.input::<E>(1), i));
            product(cx.pool, (n, o, i), x, w.t(), Matrix::rows(cx.output::<E>(0), o), true);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, o, i) = linear::sizes(cx.input_spec(0), cx.input_spec(1));
        let (a, b) = (Operand::plain(cx.input(0)), Operand::transposed(cx.input(1)));
        cx.product_plus((n, o, i), a, b, cx.input(2), self.0.products)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(n, i, o): (usize, usize, usize), pad: usize| {
            let rows = |width, pad| Spec::padded([n, width], [n, pad], precision.act_dtype);
            let inputs = vec![
                (rows(i, i), Fill::Normal(0.0, 1.0)),
                (Spec::padded([o, i], [pad, i], precision.act_dtype), Fill::Normal(0.0, 0.2)),
                (rows(o, pad), Fill::Normal(0.3, 1.0)),
            ];
            let padded = if pad == o { "" } else { " padded" };
            Case::new(format!("n{n} in{i} out{o}{padded}"), Self::default(), inputs, reference)
                .weights(&[1])
                .depth(i.max(n).max(o))
        };
        let shapes = [(1, 32, 48), (17, 96, 33), (255, 64, 128), (33, 5, 7), (256, 384, 128)];
        Cases::Own(
            shapes.into_iter().map(|shape| case(shape, shape.2)).chain([case((9, 16, 30), 64)]).collect(),
        )
    }
}

/// Computes `y = r + x·Wᵀ` by three loops.
fn reference(inputs: &[Array]) -> Vec<Array> {
    let mut y = linear::reference(&inputs[..2]).remove(0);
    y.data.iter_mut().zip(&inputs[2].data).for_each(|(y, r)| *y += r);
    vec![y]
}
