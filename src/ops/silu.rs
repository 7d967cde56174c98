//! The sigmoid linear unit.

use super::add::{elementwise_shapes, same_spec};
use super::lanes::{launch_elementwise, launch_elementwise_entry, map, map2};
use crate::device::Real;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y = x·σ(x)` with `σ(x) = 1 / (1 + e^-x)`, any shape (Elfwing, Uchibe, Doya, 2017).
#[derive(Clone, Copy, Debug)]
pub struct Silu;

/// `dx = dy·σ(x)·(1 + x·(1 - σ(x)))` from `(x, dy)`.
#[derive(Clone, Copy, Debug)]
pub struct SiluGrad;

/// `1 / (1 + e^-x)`: 0 and 1 far out, never NaN for a number.
#[inline(always)]
pub(super) fn sigmoid<A: Real>(x: A) -> A {
    A::ONE / (A::ONE + (-x).exp())
}

/// Returns the derivative of `x·σ(x)`, given `s = σ(x)`.
#[inline(always)]
pub(super) fn silu_slope<A: Real>(x: A, s: A) -> A {
    s * x.fma(A::ONE - s, A::ONE)
}

impl Op for Silu {
    fn name(&self) -> &'static str {
        "silu"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] if x.dtype.is_float() => Ok(vec![x.clone()]),
            _ => Err("takes one float tensor".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, dy) = (v.input(0), v.output_grad(0)?);
        v.backward(SiluGrad, &[x, dy], &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            map(cx.pool, cx.input::<E>(0), cx.output::<E>(0), #[inline(always)] |x| x * sigmoid(x));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_elementwise(cx, "silu", &[cx.input(0), cx.output(0)], &[])
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |spec: Spec| {
            let inputs = vec![(spec.clone(), Fill::Normal(0.0, 3.0))];
            Case::new(format!("{:?}", spec.shape), Silu, inputs, |inputs: &[Array]| {
                let mut y = inputs[0].clone();
                y.data.iter_mut().for_each(|x| *x /= 1.0 + (-*x).exp());
                vec![y]
            })
        };
        Cases::Own(elementwise_shapes(precision).into_iter().map(case).collect())
    }
}

impl Op for SiluGrad {
    fn name(&self) -> &'static str {
        "silu_grad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        same_spec(inputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 1 }, MayAlias { output: 0, input: 0 }]
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let slope = |x, dy| dy * silu_slope(x, sigmoid(x));
            map2(cx.pool, cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0), slope);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let tensors = [cx.input(0), cx.input(1), cx.output(0)];
        launch_elementwise_entry(cx, ("silu", "silu_grad"), &tensors, &[])
    }

    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("silu")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_finite_far_out() {
        for x in [-1e4f32, -120.0, -89.0, 89.0, 1e4] {
            let s = sigmoid(x);
            assert!((0.0..=1.0).contains(&s), "σ({x}) = {s}");
            assert!((x * s).is_finite() && silu_slope(x, s).is_finite(), "{x}");
        }
        assert_eq!(sigmoid(0.0f64), 0.5);
        assert_eq!(silu_slope(0.0f64, 0.5), 0.5);
    }
}
