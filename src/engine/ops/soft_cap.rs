//! The soft cap of attention scores and logits.

use super::elementwise::{case_shapes, one_spec, same_spec, unary_case};
use super::lanes::{launch_elementwise, map, map2};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y = cap·tanh(x / cap)`, any shape: close to x near zero, and never beyond ±cap (Gemma 2; Gemma Team
/// 2024).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftCap {
    /// The cap, positive.
    pub cap: f64,
}

/// `dx = dy·(1 − tanh²(x / cap))` from `(x, dy)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftCapGrad {
    /// The cap, positive.
    pub cap: f64,
}

impl Op for SoftCap {
    fn name(&self) -> &'static str {
        "soft_cap"
    }

    fn attributes(&self) -> String {
        format!("cap={}", self.cap)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        one_spec(inputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, dy) = (v.input(0), v.output_grad(0)?);
        v.backward(SoftCapGrad { cap: self.cap }, &[x, dy], &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let cap = <E as Elem>::Acc::from_f64(self.cap);
            map(cx.pool, cx.input::<E>(0), cx.output::<E>(0), #[inline(always)] |x| cap * (x / cap).tanh());
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let tensors = [cx.input(0), cx.output(0)];
        launch_elementwise(cx, ("soft_cap", "soft_cap"), &tensors, &[(self.cap as f32).into()])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(spec, cap): (&Spec, f64)| {
            let name = format!("{:?} cap{cap}", spec.shape);
            unary_case(name, SoftCap { cap }, spec, 3.0, move |x| cap * (x / cap).tanh())
        };
        // The caps range from one that bends every element to one that bends none.
        let caps = [2.0, 0.75, 4.0, 50.0].into_iter().cycle();
        Cases::Own(case_shapes(precision).iter().zip(caps).map(case).collect())
    }
}

impl Op for SoftCapGrad {
    fn name(&self) -> &'static str {
        "soft_cap_grad"
    }

    fn attributes(&self) -> String {
        format!("cap={}", self.cap)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        same_spec(inputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 1 }, MayAlias { output: 0, input: 0 }]
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            type Acc = <E as Elem>::Acc;
            let cap = Acc::from_f64(self.cap);
            map2(
                cx.pool,
                cx.input::<E>(0),
                cx.input::<E>(1),
                cx.output::<E>(0),
                #[inline(always)]
                |x, dy| {
                    let t = (x / cap).tanh();
                    dy * t.fma(-t, Acc::ONE)
                },
            );
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let tensors = [cx.input(0), cx.input(1), cx.output(0)];
        launch_elementwise(cx, ("soft_cap", "soft_cap_grad"), &tensors, &[(self.cap as f32).into()])
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<SoftCap>()
    }
}
