//! The feed-forward layer of a block.

use super::{DropoutPlace, Recording};
use crate::error::Result;
use crate::ir::{Builder, TensorId};
use crate::ops::activate::Activate;
use crate::ops::activation::Activation;
use crate::ops::formula::Function;
use crate::ops::gated::Gated;
use crate::policy::{self, OrFormula};

/// Returns the function of a layer's activation.
fn function(activation: &OrFormula<policy::Activation>) -> Function {
    use policy::Activation::{Geglu, GegluTanh, Gelu, GeluTanh, Reglu, Relu2, Silu, Swiglu};
    match activation {
        OrFormula::Word(Swiglu | Silu) => Activation::Silu.into(),
        OrFormula::Word(Geglu | Gelu) => Activation::Gelu.into(),
        OrFormula::Word(GegluTanh | GeluTanh) => Activation::GeluTanh.into(),
        OrFormula::Word(Reglu) => Activation::Relu.into(),
        OrFormula::Word(Relu2) => Activation::Relu2.into(),
        OrFormula::Formula(formula) => formula.into(),
    }
}

impl Recording<'_> {
    /// Records the feed-forward layer of block `i` on normalized rows, up to the output that is added to the
    /// residual stream.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn feed_forward(&self, b: &mut Builder, i: usize, normed: TensorId) -> Result<TensorId> {
        let activation = &self.plan.model.activation;
        let hidden = if activation.is_gated() {
            let gate_up = self.product(b, i, "gate_up", "gate_up", normed)?;
            b.emit1("gated", Gated(function(activation)), &[gate_up])?
        } else {
            let up = self.product(b, i, "up", "up", normed)?;
            b.emit1("activated", Activate(function(activation)), &[up])?
        };
        let down = self.product(b, i, "down", "ffn_out", hidden)?;
        self.dropout(b, down, self.dropout_site(i, DropoutPlace::FeedForward))
    }
}
