//! The seeds of a training run.

use crate::recipe::Values;

/// Seeds: one of the whole run, and those of its parts, which follow it unless they are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// `training.seed`, which checkpoints record.
    pub training: u64,
    /// Of the initial values of parameters.
    pub init: u64,
    /// Of the order in which windows of the corpus are read.
    pub order: u64,
    /// Of dropout's masks.
    pub dropout: u64,
}

impl Seeds {
    pub(super) fn from_values(values: &Values) -> Self {
        let training = values.training.seed;
        let parts = &values.seeds;
        let of_part = |part: Option<u64>| part.unwrap_or(training);
        Self {
            training,
            init: of_part(parts.init),
            order: of_part(parts.order),
            dropout: of_part(parts.dropout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_the_seed_of_the_run_unless_they_are_set() {
        let mut values = Values::default();
        values.training.seed = 7;
        let alike = Seeds { training: 7, init: 7, order: 7, dropout: 7 };
        assert_eq!(Seeds::from_values(&values), alike);
        values.seeds.init = Some(1);
        assert_eq!(Seeds::from_values(&values), Seeds { init: 1, ..alike });
        values.seeds.order = Some(2);
        values.seeds.dropout = Some(0);
        assert_eq!(Seeds::from_values(&values), Seeds { training: 7, init: 1, order: 2, dropout: 0 });
    }
}
