//! Whether a plan fits: the memory that it may use, and the verdict. The only place that judges this.

use super::fit::{self, Advice};
use super::memory::peak_bytes;
use super::time::StepTime;
use crate::error::{Error, Result};
use crate::format::binary;
use crate::machine::{Hardware, Machine};
use crate::model::Programs;
use crate::plan::Plan;
use serde::Serialize;

/// Bytes of a named GPU's memory that stay free besides the plan: the CUDA context and its modules and what
/// the driver keeps of the total that it reports (together about 1 GiB on Hopper and Blackwell), and
/// workspaces of cuBLASLt (32 MiB per stream on Hopper).
pub const RESERVE_BYTES: u64 = 5 << 28;

/// Advice for a plan that does not fit.
pub const SMALLER: &str = "Smaller: training.local_batch_size with more training.accumulation, or \
                           activation_checkpoint.mode=full";

/// The name of the recipe's own limit.
const LIMIT: &str = "engine.memory_limit_gib";

/// Memory that a plan must stay within.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The named device, if it is the budget of one.
    pub hardware: Option<&'static Hardware>,
    /// Where the budget comes from.
    pub name: &'static str,
    /// Bytes for state and transient tensors; `None` where nothing is known.
    pub bytes: Option<u64>,
    /// Bytes that were set aside.
    pub reserve: u64,
    /// Ranks that share it.
    pub ranks: usize,
}

impl Budget {
    /// Returns what a machine leaves to a plan. The recipe's own limit is per rank; a named device has it as
    /// a second bound, and this machine has it instead of its own. On the CPU, ranks share the memory of the
    /// host.
    pub fn new(plan: &Plan, machine: &Machine) -> Self {
        if let Some(hardware) = machine.hardware {
            let device = hardware.memory_bytes.map(|total| total.saturating_sub(RESERVE_BYTES));
            let limit = plan.execution.memory_limit.map(|bytes| bytes as u64);
            let bytes = [device, limit].into_iter().flatten().min();
            let reserve = if hardware.memory_bytes.is_some() { RESERVE_BYTES } else { 0 };
            return Self { hardware: Some(hardware), name: hardware.name, bytes, reserve, ranks: 1 };
        }
        let gpu = plan.execution.gpu.and_then(|gpu| machine.gpu(gpu));
        Self::from_limit(plan).unwrap_or_else(|| {
            let (name, bytes, ranks) = match gpu {
                Some(gpu) => ("the GPU's memory", Some(gpu.memory_bytes), 1),
                None => {
                    let ranks = machine.local_ranks.unwrap_or(plan.batch.world);
                    ("this machine's memory", machine.memory_bytes, ranks)
                }
            };
            Self { hardware: None, name, bytes, reserve: 0, ranks }
        })
    }

    /// Returns the recipe's own limit, where it has one.
    pub fn from_limit(plan: &Plan) -> Option<Self> {
        let bytes = plan.execution.memory_limit? as u64;
        Some(Self { hardware: None, name: LIMIT, bytes: Some(bytes), reserve: 0, ranks: 1 })
    }

    /// Bytes that all ranks of the budget need together, at `per_rank` bytes each.
    pub fn needed(&self, per_rank: usize) -> u64 {
        (per_rank as u64).saturating_mul(self.ranks as u64)
    }

    /// Returns true if so many bytes per rank fit, or nothing is known of the memory.
    pub fn holds(&self, per_rank: usize) -> bool {
        self.bytes.is_none_or(|budget| self.needed(per_rank) <= budget)
    }
}

/// A plan against a budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceFit {
    /// The device's name, or `engine.memory_limit_gib`.
    pub on: &'static str,
    /// The device.
    pub hardware: Option<Hardware>,
    /// Bytes for state and transient tensors.
    pub budget_bytes: Option<u64>,
    /// Bytes set aside for driver and libraries.
    pub reserve_bytes: u64,
    /// True if the plan fits; `None` where the memory is unknown.
    pub fits: Option<bool>,
    /// Bytes that stay free; negative: bytes missing.
    pub spare_bytes: Option<i64>,
    /// Changes that would make it fit, when it does not.
    pub advice: Vec<Advice>,
    /// Predicted time, where the device's limits are known.
    pub step: Option<StepTime>,
}

impl DeviceFit {
    pub(super) fn new(plan: &Plan, programs: &Programs, peak: usize, budget: &Budget) -> Result<Self> {
        let fits = budget.bytes.map(|_| budget.holds(peak));
        let limits = budget.hardware.and_then(|h| h.limits);
        Ok(Self {
            on: budget.name,
            hardware: budget.hardware.copied(),
            budget_bytes: budget.bytes,
            reserve_bytes: budget.reserve,
            fits,
            spare_bytes: budget.bytes.map(|b| b as i64 - peak as i64),
            advice: if fits == Some(false) { fit::advise(plan, budget)? } else { Vec::new() },
            step: limits.map(|limits| StepTime::new(plan, programs, &limits)),
        })
    }
}

/// Refuses a plan that cannot fit a machine, before anything is allocated.
///
/// # Errors
/// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit), with the largest tensor and what to change.
pub fn check_fits(plan: &Plan, programs: &Programs, machine: &Machine) -> Result<()> {
    let budget = Budget::new(plan, machine);
    let per_rank = peak_bytes(plan, programs);
    let Some(limit) = budget.bytes.filter(|_| !budget.holds(per_rank)) else { return Ok(()) };
    let section = programs.sections().into_iter().max_by_key(|s| s.memory.arena_bytes);
    let largest = section.and_then(|s| {
        let block = *s.memory.holders_of_peak().first()?;
        let tensor = s.program.tensor(*block.tensors.first()?);
        Some(format!(
            "; the largest tensor at the peak is {} {} ({})",
            tensor.name,
            tensor.spec,
            binary(block.bytes)
        ))
    });
    Err(Error::does_not_fit(format!(
        "does not fit: the plan needs {} (state {}, activations {}), and {} is {}{}. {SMALLER}",
        binary(budget.needed(per_rank) as usize),
        binary(programs.state.bytes()),
        binary(per_rank - programs.state.bytes()),
        budget.name,
        binary(limit as usize),
        largest.unwrap_or_default()
    )))
}
