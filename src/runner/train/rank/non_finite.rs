//! Finds the first tensor of a step that is not finite.

use super::Rank;
use crate::data::Batch;
use crate::device::communicator::Communicator;
use crate::error::{Error, Result};
use crate::exec::{NonFiniteOutput, NonFiniteTensor};
use std::sync::Arc;

impl Rank {
    /// Replays a step that was not finite. Every rank replays all of it, so that collectives still match, and
    /// every rank names the same tensor: the first one of the step on any rank.
    pub(super) fn find_bad(&mut self, batches: &[Batch]) -> Result<NonFiniteTensor> {
        self.restore_compute_copy()?;
        let programs = Arc::clone(&self.programs);
        let section = |at: usize| match at {
            at if at < batches.len() => programs.micro_step(at, batches.len()),
            _ => &programs.step_end,
        };
        let mut found = None;
        for at in 0..=batches.len() {
            if let Some(batch) = batches.get(at) {
                self.upload(batch)?;
            }
            let bad = self.engine.find_non_finite(section(at))?;
            found = found.or(bad.map(|bad| BadLocation { section: at, bad }));
        }
        let earliest = self.comm.all_reduce_max(
            "the search for the bad tensor",
            found.map_or(0, |location| location.priority()),
        )?;
        let location = BadLocation::from_priority(earliest).ok_or_else(|| {
            Error::failed(
                "a step was not finite, but its replay was: this machine does not compute deterministically",
            )
        })?;
        Ok(location.bad.describe(section(location.section)))
    }
}

/// Where in a step a value is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BadLocation {
    /// Index of the micro-step; the number of micro-steps means the end of the step.
    section: usize,
    /// The output within that program.
    bad: NonFiniteOutput,
}

impl BadLocation {
    const VALUES: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

    /// Encodes the location as a positive number. Earlier locations have larger numbers, so that ranks can
    /// agree on the maximum.
    fn priority(&self) -> u64 {
        let NonFiniteOutput { node, output, value } = self.bad;
        let value = Self::VALUES.iter().position(|v| v.to_bits() == value.to_bits()).unwrap_or(0);
        !((self.section as u64) << 42 | (node as u64) << 14 | (output as u64) << 2 | value as u64)
    }

    /// Decodes a location; `None` for zero, which means that nothing was found.
    fn from_priority(priority: u64) -> Option<Self> {
        let bits = |from: u32, count: u32| (!priority >> from & ((1 << count) - 1)) as usize;
        let bad =
            NonFiniteOutput { node: bits(14, 28), output: bits(2, 12), value: Self::VALUES[bits(0, 2) % 3] };
        (priority > 0).then_some(Self { section: bits(42, 22), bad })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_location_has_the_highest_priority() {
        let location = |section, node, output, value| BadLocation {
            section,
            bad: NonFiniteOutput { node, output, value },
        };
        let in_order = [
            location(0, 0, 0, f64::INFINITY),
            location(0, 0, 1, f64::NEG_INFINITY),
            location(0, 7, 0, f64::INFINITY),
            location(1, 0, 0, f64::INFINITY),
            location(1 << 20, 99_999, 3, f64::NEG_INFINITY),
        ];
        assert!(in_order.windows(2).all(|w| w[0].priority() > w[1].priority()));
        for location in in_order {
            assert_eq!(BadLocation::from_priority(location.priority()), Some(location));
        }
        let nan = BadLocation::from_priority(location(2, 3, 4, -f64::NAN).priority()).unwrap();
        assert!(nan.bad.value.is_nan() && (nan.section, nan.bad.node, nan.bad.output) == (2, 3, 4));
        assert_eq!(BadLocation::from_priority(0), None);
    }
}
