//! Decides whether a plan fits a budget; nothing else does.

use super::fit::{self, Advice};
use super::fp8_gain::Fp8Gain;
use super::memory::peak_bytes;
use super::time::StepTime;
use super::{Budget, Saving};
use crate::error::{Error, ErrorKind, Result};
use crate::format::binary;
use crate::machine::{Hardware, Machine};
use crate::model::Programs;
use crate::plan::Plan;
use crate::policy::Recompute;
use serde::Serialize;

/// Returns the advice for a plan that does not fit, leaving out changes that it already has.
pub fn smaller(plan: &Plan) -> String {
    let mut keys = Vec::new();
    // With looped batching, one sequence determines the memory, whatever the batch.
    if plan.batch.local > 1 && plan.batch.micro == plan.batch.local {
        keys.push("training.local_batch_size with more training.accumulation");
    }
    if plan.execution.recompute != Recompute::Full {
        keys.push("activation_checkpoint.mode=full");
    }
    if keys.is_empty() {
        keys.push("training.seq_len, or the model");
    }
    format!("Smaller: {}", keys.join(", or "))
}

/// Returns the advice for a plan whose state alone, of `state` bytes, exceeds the memory.
pub(super) fn advice_for_large_state(state: u64) -> String {
    format!("nothing fits: the state alone takes {}; make the model smaller", binary(state as usize))
}

/// How a plan fits a budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceFit {
    /// The device's name, or `engine.memory_limit_gib`.
    pub on: &'static str,
    /// The device.
    pub hardware: Option<Hardware>,
    /// Bytes for state and transient tensors.
    pub budget_bytes: Option<u64>,
    /// Bytes set aside: for driver and libraries of a GPU, or for the corpus in this machine's memory.
    pub reserve_bytes: u64,
    /// True if the plan fits; `None` if the memory is unknown.
    pub fits: Option<bool>,
    /// Bytes that stay free; if negative, bytes that are missing.
    pub spare_bytes: Option<i64>,
    /// Changes that would make the plan fit, if it does not.
    pub advice: Vec<Advice>,
    /// Predicted time, if the device's limits are known.
    pub step: Option<StepTime>,
    /// What 8-bit floats would change, if the device has them.
    pub fp8: Option<Fp8Gain>,
}

impl DeviceFit {
    pub(super) fn new(plan: &Plan, programs: &Programs, peak: usize, budget: &Budget) -> Result<Self> {
        let fits = budget.bytes.map(|_| budget.holds(peak));
        let limits = budget.hardware.and_then(|h| h.limits);
        let step = limits.map(|limits| StepTime::new(plan, programs, &limits));
        let fp8 = step.as_ref().zip(budget.hardware).and_then(|(step, on)| Fp8Gain::new(plan, step, on));
        Ok(Self {
            on: budget.name,
            hardware: budget.hardware.copied(),
            budget_bytes: budget.bytes,
            reserve_bytes: budget.reserve,
            fits,
            spare_bytes: budget.bytes.map(|b| b as i64 - peak as i64),
            advice: if fits == Some(false) { fit::advise(plan, budget)? } else { Vec::new() },
            step,
            fp8,
        })
    }
}

/// Whether the plan would fit the machine that makes the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FitHere {
    /// True if a run would begin.
    pub fits: bool,
    /// The figures or, if the plan does not fit, the error that a run would report.
    pub says: String,
}

impl FitHere {
    /// Checks what a run checks before it begins. `None` if the memory is unknown, or if the recipe sets its
    /// own limit, which has its own [`DeviceFit`].
    ///
    /// # Errors
    /// If the check fails for a reason other than memory.
    pub(super) fn new(plan: &Plan, programs: &Programs, machine: &Machine) -> Result<Option<Self>> {
        let budget = Budget::new(plan, machine);
        let Some(limit) = budget.bytes.filter(|_| plan.execution.memory_limit.is_none()) else {
            return Ok(None);
        };
        let (fits, says) = match check_fits(plan, programs, machine) {
            Ok(()) => (true, format!("fits: {}", figures(plan, programs, &budget, limit))),
            Err(e) if e.kind() == ErrorKind::DoesNotFit => (false, e.message().to_owned()),
            Err(e) => return Err(e),
        };
        Ok(Some(Self { fits, says }))
    }
}

/// Describes what a plan needs, and the limit of its budget.
fn figures(plan: &Plan, programs: &Programs, budget: &Budget, limit: u64) -> String {
    let (per_rank, state) = (peak_bytes(plan, programs), programs.state_bytes());
    let corpus = match budget.reserve {
        0 => String::new(),
        corpus => format!(", besides {} for the tokens of the corpus", binary(corpus as usize)),
    };
    format!(
        "the plan needs {} (state {}, activations {}), and {} is {}{corpus}",
        binary(budget.needed(per_rank) as usize),
        binary(state),
        binary(per_rank - state),
        budget.name,
        binary(limit as usize),
    )
}

/// Rejects a plan that cannot fit a machine, before anything is allocated.
///
/// # Errors
/// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit), with the largest tensor and what to
/// change.
pub fn check_fits(plan: &Plan, programs: &Programs, machine: &Machine) -> Result<()> {
    let budget = Budget::new(plan, machine);
    let per_rank = peak_bytes(plan, programs);
    let Some(limit) = budget.bytes.filter(|_| !budget.holds(per_rank)) else {
        return Saving::check(plan, programs, machine);
    };
    let section = programs.sections().into_iter().max_by_key(|s| s.memory.arena_bytes);
    let largest = section.and_then(|s| {
        let block = *s.memory.blocks_at_peak().first()?;
        let tensor = s.program.tensor(*block.tensors.first()?);
        Some(format!(
            "; the largest tensor at the peak is {} {} ({})",
            tensor.name,
            tensor.spec,
            binary(block.bytes)
        ))
    });
    let state = programs.state_bytes();
    Err(Error::does_not_fit(format!(
        "does not fit: {}{}. {}",
        figures(plan, programs, &budget, limit),
        largest.unwrap_or_default(),
        if budget.holds(state) { smaller(plan) } else { advice_for_large_state(budget.needed(state)) }
    )))
}
