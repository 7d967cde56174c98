//! Elementwise sum of two tensors.

use super::elementwise::{binary_cases, same_spec};
use super::lanes::{launch_elementwise, map2};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y = a + b`, any shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Add;

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
        launch_elementwise(cx, ("add", "add"), &[cx.input(0), cx.input(1), cx.output(0)], &[])
    }

    fn cases(precision: Precision) -> Cases {
        Cases::Own(binary_cases(precision, Add, |a, b| a + b))
    }
}
