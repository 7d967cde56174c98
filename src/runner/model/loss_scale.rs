//! The factor of the loss sum in the objective.

use crate::error::Result;
use crate::ir::{BatchSlot, Builder, TensorId};
use crate::ops::sum::Factor;
use crate::plan::Plan;

/// Returns the factor of the sum of losses, `1 / targets per step` over all ranks, and the inputs from which
/// an op reads it. With a batch ramp or packed documents the count arrives with the batch; otherwise the
/// factor is a constant of the program.
///
/// # Errors
/// If the state has no slot for the token count.
pub(super) fn loss_scale(plan: &Plan, b: &mut Builder) -> Result<(Factor, Vec<TensorId>)> {
    if !plan.counts_targets() {
        return Ok((Factor::Constant(1.0 / plan.batch.tokens_per_step() as f64), Vec::new()));
    }
    Ok((Factor::Reciprocal, vec![b.state(BatchSlot::StepTokens)?]))
}
