//! Whether programs that score tokens fit a machine.

use super::Budget;
use crate::error::{Error, Result};
use crate::format::binary;
use crate::machine::Machine;
use crate::model::ScoringPrograms;
use crate::plan::Plan;

/// Rejects programs that cannot fit a machine, before anything is allocated.
///
/// # Errors
/// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit), with what they need and what to change.
pub fn check_scoring_fits(plan: &Plan, programs: &ScoringPrograms, machine: &Machine) -> Result<()> {
    let budget = Budget::new(plan, machine);
    let (needed, state) = (programs.bytes(), programs.state.bytes());
    let Some(limit) = budget.bytes.filter(|_| !budget.holds(needed)) else { return Ok(()) };
    Err(Error::does_not_fit(format!(
        "the model does not fit: scoring batches of {} tokens needs {} (weights and batch {}, activations {}), and {} is \
         {}. Smaller: training.dtype=bf16, a shorter context, or another device (engine.device)",
        programs.shape.rows(),
        binary(needed),
        binary(state),
        binary(needed - state),
        budget.name,
        binary(limit as usize)
    )))
}
