//! The factor of losses in the objective.

use crate::error::Result;
use crate::ir::{BatchSlot, Builder, TensorId};
use crate::ops::sum::Factor;
use crate::plan::Plan;

/// Returns `1 / tokens of a step` over all ranks, the factor of the sum of losses, and the inputs that an op
/// reads it from. With a ramp of the batch the tokens come with the batch; else the factor is a constant of
/// the program.
///
/// # Errors
/// When the state has no such tensor.
pub(super) fn loss_scale(plan: &Plan, b: &mut Builder) -> Result<(Factor, Vec<TensorId>)> {
    if plan.batch.ramp.is_empty() {
        return Ok((Factor::Constant(1.0 / plan.batch.tokens_per_step() as f64), Vec::new()));
    }
    Ok((Factor::Reciprocal, vec![b.state(BatchSlot::StepTokens)?]))
}
