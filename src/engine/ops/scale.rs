//! Multiplies a tensor by a constant.

use super::add::elementwise_shapes;
use super::lanes::{launch_elementwise, map};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

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
        match inputs {
            [x] if x.dtype.is_float() => Ok(vec![x.clone()]),
            _ => Err("takes one float tensor".into()),
        }
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
        launch_elementwise(cx, "scale", &[cx.input(0), cx.output(0)], &[(self.factor as f32).into()])
    }

    fn cases(precision: Precision) -> Cases {
        // Exact in every format, so that the reference needs no rounding of its own.
        const FACTOR: f64 = -0.375;
        let case = |spec: Spec| {
            let inputs = vec![(spec.clone(), Fill::Normal(0.0, 1.0))];
            Case::new(format!("{:?}", spec.shape), Scale { factor: FACTOR }, inputs, |inputs: &[Array]| {
                let mut y = inputs[0].clone();
                y.data.iter_mut().for_each(|x| *x *= FACTOR);
                vec![y]
            })
        };
        Cases::Own(elementwise_shapes(precision).into_iter().map(case).collect())
    }
}
