//! Multiplies a tensor by a constant.

use super::elementwise::{case_shapes, one_spec, unary_case};
use super::lanes::{launch_elementwise, map};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y = factor·x`, any shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The constant, rounded to the accumulator format.
    pub factor: f64,
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn attributes(&self) -> String {
        format!("factor={}", self.factor)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        one_spec(inputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let dy = v.output_grad(0)?;
        v.backward(*self, &[dy], &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let factor = <E as Elem>::Acc::from_f64(self.factor);
            map(cx.pool, cx.input::<E>(0), cx.output::<E>(0), #[inline(always)] |x| factor * x);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_elementwise(
            cx,
            ("scale", "scale"),
            &[cx.input(0), cx.output(0)],
            &[(self.factor as f32).into()],
        )
    }

    fn cases(precision: Precision) -> Cases {
        // Exact in every format, so that the reference needs no rounding of its own.
        const FACTOR: f64 = -0.375;
        let op = Scale { factor: FACTOR };
        let case = |spec: &Spec| unary_case(format!("{:?}", spec.shape), op, spec, 1.0, |x| x * FACTOR);
        Cases::Own(case_shapes(precision).iter().map(case).collect())
    }
}
