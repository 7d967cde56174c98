//! The figures of an arm: the median of every column over its trials.

use crate::results::quantiles::median;
use std::collections::BTreeMap;

/// The column that the ratio, the verdict and predictions of speed are about.
pub const SPEED: &str = "tok_s";

/// The column of the smoothed training loss.
pub const TRAIN_LOSS: &str = "train_loss";

/// The column of the validation loss, which keys of the measuring class are about.
pub const VAL_LOSS: &str = "val_loss";

/// Figures by name, units in the names. Figures that were not measured are absent.
pub type Columns = BTreeMap<String, f64>;

/// Returns the median of every column over the trials that have it.
pub fn medians(trials: &[Columns]) -> Columns {
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in trials.iter().flatten() {
        all.entry(name).or_default().push(*value);
    }
    all.into_iter().filter_map(|(name, values)| Some((name.clone(), median(values)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_those_that_measured() {
        let trial = |values: &[(&str, f64)]| values.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let found = medians(&[trial(&[("a", 3.0), ("b", 1.0)]), trial(&[("a", 1.0)]), trial(&[("a", 2.0)])]);
        assert_eq!(found, trial(&[("a", 2.0), ("b", 1.0)]));
    }
}
