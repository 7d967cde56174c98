//! Elementwise product of two tensors.

use super::add::{elementwise_shapes, same_spec};
use super::lanes::{launch_elementwise, map2};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y = a ⊙ b`, any shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mul;

impl Op for Mul {
    fn name(&self) -> &'static str {
        "mul"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        same_spec(inputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (a, b, dy) = (v.input(0), v.input(1), v.output_grad(0)?);
        if v.needs_grad(0) {
            v.backward(Mul, &[dy, b], &[0])?;
        }
        if v.needs_grad(1) {
            v.backward(Mul, &[dy, a], &[1])?;
        }
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }, MayAlias { output: 0, input: 1 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            map2(cx.pool, cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0), #[inline(always)] |a, b| a * b);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_elementwise(cx, "mul", &[cx.input(0), cx.input(1), cx.output(0)], &[])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |spec: Spec| {
            let inputs = vec![(spec.clone(), Fill::Normal(0.0, 1.0)), (spec.clone(), Fill::Normal(0.5, 2.0))];
            Case::new(format!("{:?}", spec.shape), Mul, inputs, |inputs: &[Array]| {
                let mut y = inputs[0].clone();
                y.data.iter_mut().zip(&inputs[1].data).for_each(|(a, b)| *a *= b);
                vec![y]
            })
        };
        Cases::Own(elementwise_shapes(precision).into_iter().map(case).collect())
    }
}
