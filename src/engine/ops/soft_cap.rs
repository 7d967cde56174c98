//! The soft cap of attention scores and logits.

use super::add::{elementwise_shapes, same_spec};
use super::lanes::{launch_elementwise, launch_elementwise_entry, map, map2};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

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
        match inputs {
            [x] if x.dtype.is_float() => Ok(vec![x.clone()]),
            _ => Err("takes one float tensor".into()),
        }
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
        launch_elementwise(cx, "soft_cap", &[cx.input(0), cx.output(0)], &[(self.cap as f32).into()])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(spec, cap): (Spec, f64)| {
            let inputs = vec![(spec.clone(), Fill::Normal(0.0, 3.0))];
            let name = format!("{:?} cap{cap}", spec.shape);
            Case::new(name, SoftCap { cap }, inputs, move |inputs: &[Array]| {
                let mut y = inputs[0].clone();
                y.data.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
                vec![y]
            })
        };
        // The caps range from one that bends every element to one that bends none.
        let caps = [2.0, 0.75, 4.0, 50.0].into_iter().cycle();
        Cases::Own(elementwise_shapes(precision).into_iter().zip(caps).map(case).collect())
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
        launch_elementwise_entry(cx, ("soft_cap", "soft_cap_grad"), &tensors, &[(self.cap as f32).into()])
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<SoftCap>()
    }
}
