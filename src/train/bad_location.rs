//! Where in a step a value is not finite, as a number that ranks agree on.

use crate::exec::NonFiniteOutput;

/// Location in a step of a value that is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BadLocation {
    /// The micro-step; for the end of the step, the number of micro-steps.
    pub(super) section: usize,
    /// What its program found.
    pub(super) bad: NonFiniteOutput,
}

impl BadLocation {
    const VALUES: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

    /// Encodes the location as a positive number that is larger for earlier locations, so that ranks can
    /// agree on the maximum.
    pub(super) fn priority(&self) -> u64 {
        let NonFiniteOutput { node, output, value } = self.bad;
        let value = Self::VALUES.iter().position(|v| v.to_bits() == value.to_bits()).unwrap_or(0);
        !((self.section as u64) << 42 | (node as u64) << 14 | (output as u64) << 2 | value as u64)
    }

    /// Decodes a location; `None` for zero.
    pub(super) fn from_priority(priority: u64) -> Option<Self> {
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
    fn the_earliest_place_is_the_most_urgent() {
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
