//! Determines how much memory a plan may use.

use crate::machine::{Hardware, Machine};
use crate::plan::Plan;

/// Bytes of a named GPU's memory that the plan leaves free. The CUDA context, its modules, and what the
/// driver keeps of the total that it reports take about 1 GiB on Hopper and Blackwell, and the workspaces of
/// cuBLASLt 32 MiB per stream on Hopper.
pub const RESERVE_BYTES: u64 = 5 << 28;

/// Whatever is decided by `"auto"` uses at most half of host memory; the corpus, other programs and the page
/// cache need the rest.
pub(super) const HOST_MEMORY_DIVISOR: u64 = 2;

/// The name of the recipe's own limit.
const LIMIT: &str = "engine.memory_limit_gib";

/// The memory that a plan must stay within.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The named device that the budget is for, if any.
    pub hardware: Option<&'static Hardware>,
    /// Where the budget comes from.
    pub name: &'static str,
    /// Bytes for state and transient tensors; `None` if unknown.
    pub bytes: Option<u64>,
    /// Bytes set aside: for the driver and libraries of a GPU, or for the corpus in this machine's memory.
    pub reserve: u64,
    /// Number of ranks that share the budget.
    pub ranks: usize,
}

impl Budget {
    /// Returns the memory that a machine leaves to a plan. The recipe's own limit applies per rank: to a
    /// named device as a second bound, on this machine instead of its memory. On the CPU, the ranks share
    /// host memory.
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
                    let ranks = machine.local_ranks.unwrap_or(plan.batch.world_size);
                    ("this machine's memory", machine.memory_bytes, ranks)
                }
            };
            // Every process holds the corpus once, however many ranks it has, and always on the host.
            let corpus =
                if gpu.is_none() { plan.corpus.memory_bytes.saturating_mul(machine.processes) } else { 0 };
            let bytes = bytes.map(|bytes| bytes.saturating_sub(corpus as u64));
            Self { hardware: None, name, bytes, reserve: corpus as u64, ranks }
        })
    }

    /// Returns the recipe's own limit, if it has one.
    pub fn from_limit(plan: &Plan) -> Option<Self> {
        let bytes = plan.execution.memory_limit? as u64;
        Some(Self { hardware: None, name: LIMIT, bytes: Some(bytes), reserve: 0, ranks: 1 })
    }

    /// Returns the bytes that all ranks of the budget need together, at `per_rank` bytes each.
    pub fn needed(&self, per_rank: usize) -> u64 {
        (per_rank as u64).saturating_mul(self.ranks as u64)
    }

    /// Returns true if `per_rank` bytes per rank fit, or if the amount of memory is unknown.
    pub fn holds(&self, per_rank: usize) -> bool {
        self.bytes.is_none_or(|budget| self.needed(per_rank) <= budget)
    }
}
