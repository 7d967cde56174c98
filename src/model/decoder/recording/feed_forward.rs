//! The feed-forward layer of a block.

use super::{Recording, Sublayers};
use crate::error::Result;
use crate::ir::{Builder, TensorId};
use crate::ops::swiglu::Swiglu;

impl Recording<'_> {
    /// Records the feed-forward layer of block `i` on normalized rows, up to what is added to the residual
    /// stream.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    pub(super) fn feed_forward(&self, b: &mut Builder, i: usize, normed: TensorId) -> Result<TensorId> {
        let gate_up = self.product(b, i, "gate_up", "gate_up", normed)?;
        let gated = b.emit1("gated", Swiglu, &[gate_up])?;
        let down = self.product(b, i, "down", "ffn_out", gated)?;
        self.dropout(b, down, self.dropout_site(i, Sublayers::FeedForward))
    }
}
