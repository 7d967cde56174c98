//! Chooses the recompute mode that `activation_checkpoint.mode = "auto"` stands for.

use crate::format::{binary, decimal};
use crate::policy::Recompute;
use std::fmt;

/// Modes whose predicted step times differ by at most this fraction count as equally fast.
const EQUAL_TIME_TOLERANCE: f64 = 0.01;

/// The cost of a step with one mode, as planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModeCost {
    /// The mode.
    pub mode: Recompute,
    /// Bytes per rank: state, and transient tensors at their peak.
    pub peak_bytes: usize,
    /// Predicted seconds per step.
    pub seconds: f64,
}

/// The chosen mode, with the costs of all modes as the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct RecomputeChoice {
    /// Bytes that a rank may use; `None` if the amount of memory is unknown.
    pub budget_bytes: Option<u64>,
    /// Every mode, the chosen one first.
    pub modes: Vec<ModeCost>,
}

impl RecomputeChoice {
    /// Chooses among modes: the fastest that fits; of those within 1 % of it, the one with the least memory.
    /// If none fits, the one with the least memory. `None` if there are no modes.
    pub fn new(budget_bytes: Option<u64>, mut modes: Vec<ModeCost>) -> Option<Self> {
        let fits = |cost: &&ModeCost| budget_bytes.is_none_or(|budget| cost.peak_bytes as u64 <= budget);
        let fastest = modes.iter().filter(fits).map(|cost| cost.seconds).fold(f64::INFINITY, f64::min);
        let fast = |cost: &&ModeCost| fits(cost) && cost.seconds <= fastest * (1.0 + EQUAL_TIME_TOLERANCE);
        let least = |at: &(usize, &ModeCost)| (at.1.peak_bytes, at.0);
        let all = || modes.iter().enumerate();
        let chosen =
            all().filter(|(_, cost)| fast(cost)).min_by_key(least).or_else(|| all().min_by_key(least));
        let (at, _) = chosen?;
        modes[..=at].rotate_right(1);
        Some(Self { budget_bytes, modes })
    }

    /// Returns the chosen mode.
    pub fn mode(&self) -> Recompute {
        self.modes[0].mode
    }
}

/// `none by auto: 11.35 GiB of 139.15 GiB; emitted 10.04 GiB, steps 1.1 % longer, selective …`.
impl fmt::Display for RecomputeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [chosen, others @ ..] = &self.modes[..] else { return Ok(()) };
        write!(f, "{} by auto: {}", chosen.mode, binary(chosen.peak_bytes))?;
        if let Some(budget) = self.budget_bytes {
            write!(f, " of {}", binary(usize::try_from(budget).unwrap_or(usize::MAX)))?;
        }
        for (i, other) in others.iter().enumerate() {
            let change = 100.0 * (other.seconds / chosen.seconds - 1.0);
            let gap = if i == 0 { ";" } else { "," };
            let than = if change < 0.0 { "shorter" } else { "longer" };
            // Forecasts of large changes are off by more than a percent.
            let places = usize::from(change.abs() < 9.95);
            let (peak, change) = (binary(other.peak_bytes), decimal(Some(change.abs()), places));
            write!(f, "{gap} {} {peak}, steps {change} % {than}", other.mode)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Recompute::{Emitted, Full, None as Nothing, Selective};

    const GIB: usize = 1 << 30;

    fn costs(seconds: [f64; 4]) -> Vec<ModeCost> {
        let modes = [(Nothing, 12 * GIB), (Emitted, 10 * GIB), (Selective, 9 * GIB), (Full, 5 * GIB)];
        let cost = |((mode, peak_bytes), seconds)| ModeCost { mode, peak_bytes, seconds };
        modes.into_iter().zip(seconds).map(cost).collect()
    }

    fn chosen(budget: Option<usize>, seconds: [f64; 4]) -> Recompute {
        RecomputeChoice::new(budget.map(|bytes| bytes as u64), costs(seconds)).unwrap().mode()
    }

    #[test]
    fn the_fastest_that_fits_is_chosen() {
        let seconds = [1.0, 1.02, 1.05, 1.3];
        let budgets = [None, Some(12), Some(11), Some(10), Some(9), Some(8), Some(5), Some(4), Some(0)];
        let modes = [Nothing, Nothing, Emitted, Emitted, Selective, Full, Full, Full, Full];
        for (budget, mode) in budgets.into_iter().zip(modes) {
            assert_eq!(chosen(budget.map(|gib| gib * GIB), seconds), mode, "{budget:?}");
        }
    }

    #[test]
    fn among_equally_fast_ones_the_least_memory_is_chosen() {
        assert_eq!(chosen(None, [1.0, 1.0, 1.0, 1.0]), Full);
        assert_eq!(chosen(None, [1.0, 1.005, 1.0099, 1.02]), Selective);
        assert_eq!(chosen(None, [1.0, 1.0099, 1.02, 1.2]), Emitted);
        assert_eq!(chosen(None, [1.0, 1.0101, 1.02, 1.2]), Nothing);
        assert_eq!(chosen(Some(6 * GIB), [1.0, 1.0, 1.0, 2.0]), Full);
        assert!(RecomputeChoice::new(None, Vec::new()).is_none());
    }

    #[test]
    fn the_reason_names_every_mode() {
        let choice = RecomputeChoice::new(Some(10 << 30), costs([1.0, 1.02, 1.05, 1.3])).unwrap();
        assert_eq!(
            choice.to_string(),
            "emitted by auto: 10.00 GiB of 10.00 GiB; none 12.00 GiB, steps 2.0 % shorter, selective 9.00 GiB, steps 2.9 % longer, full 5.00 GiB, steps 27 % longer"
        );
    }
}
