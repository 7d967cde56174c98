//! Attaches a known gradient to a loss.

use super::lanes::{launch_copy, map};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::Upstream;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `(losses[n], x, dx) → losses`: a copy whose gradient with respect to `x` is `dx`, for an upstream gradient
/// of 1.
///
/// The unfused form of `head_loss` ends in this op. `head_loss` computes its gradients in the forward pass,
/// so the small ops that computed the losses must not be differentiated again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WithGradient;

/// Fails unless the upstream gradient of output 0 is exactly 1: gradients computed in the forward pass cannot
/// be scaled afterwards.
pub(super) fn require_unit_upstream(v: &Vjp<'_>, op: &dyn Op) -> Result<()> {
    if v.upstream(0) == Some(Upstream::One) {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{} in {}: its gradients are computed in the forward pass, so its losses must end the program \
         (upstream 1); put factors into its scale instead",
        op.name(),
        v.scope()
    )))
}

impl Op for WithGradient {
    fn name(&self) -> &'static str {
        "with_gradient"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [losses, x, dx] if x.alloc == dx.alloc && x.dtype == dx.dtype && losses.dtype.is_float() => {
                Ok(vec![losses.clone()])
            }
            _ => Err("takes losses, x and dx; x and dx must have the same shape and format".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        require_unit_upstream(v, self)?;
        v.set_input_grad(1, v.input(2));
        Ok(())
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(&inputs[..1], outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            map(cx.pool, cx.input::<E>(0), cx.output::<E>(0), |loss| loss);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_copy(cx, 0)
    }

    /// The gradient needs an upstream of 1; the tests of `head_loss` cover it.
    fn cases(precision: Precision) -> Cases {
        let x = Spec::new([17, 8], precision.act_dtype);
        let inputs = vec![
            (Spec::new([17], precision.master), Fill::Normal(3.0, 1.0)),
            (x.clone(), Fill::Normal(0.0, 1.0)),
            (x, Fill::Normal(0.0, 1.0)),
        ];
        let case = Case::new("n17", WithGradient, inputs, |inputs: &[Array]| vec![inputs[0].clone()]);
        Cases::Own(vec![case.without_gradient()])
    }
}
