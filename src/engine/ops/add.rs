//! Elementwise sum of two tensors.

use super::lanes::{launch_elementwise, map2};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y = a + b`, any shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add;

/// Returns the spec that two elementwise operands share.
pub(super) fn same_spec(inputs: &[Spec]) -> Result<Vec<Spec>, String> {
    match inputs {
        [a, b] if a == b && a.dtype.is_float() => Ok(vec![a.clone()]),
        _ => Err("takes two float tensors of the same shape and format".into()),
    }
}

/// Shapes on both sides of the borders of blocks, tasks and padding.
pub(super) fn elementwise_shapes(precision: Precision) -> Vec<Spec> {
    let plain = [vec![1], vec![17, 3], vec![255], vec![256, 2], vec![40, 1000]];
    let mut specs: Vec<Spec> = plain.into_iter().map(|shape| Spec::new(shape, precision.act_dtype)).collect();
    specs.push(Spec::padded([5, 30], [5, 64], precision.act_dtype));
    specs
}

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        same_spec(inputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let dy = v.output_grad(0)?;
        v.set_input_grad(0, dy);
        v.set_input_grad(1, dy);
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
            map2(cx.pool, cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0), #[inline(always)] |a, b| a + b);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_elementwise(cx, "add", &[cx.input(0), cx.input(1), cx.output(0)], &[])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |spec: Spec| {
            let inputs = vec![(spec.clone(), Fill::Normal(0.0, 1.0)), (spec.clone(), Fill::Normal(0.5, 2.0))];
            Case::new(format!("{:?}", spec.shape), Add, inputs, |inputs: &[Array]| {
                let mut y = inputs[0].clone();
                y.data.iter_mut().zip(&inputs[1].data).for_each(|(a, b)| *a += b);
                vec![y]
            })
        };
        Cases::Own(elementwise_shapes(precision).into_iter().map(case).collect())
    }
}
