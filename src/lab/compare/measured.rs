//! Averages every column over the trials of an arm, such that the ratio of two arms is the ratio of the
//! figures shown.

use std::collections::BTreeMap;

/// The speed column, which ratios, verdicts and predictions of speed use.
pub const SPEED: &str = "tok_s";

/// The step time column.
pub const STEP_TIME: &str = "step_ms";

/// The smoothed training loss column.
pub const TRAIN_LOSS: &str = "train_loss";

/// The validation loss column, which keys of the measuring class affect.
pub const VAL_LOSS: &str = "val_loss";

/// Figures by name, with units in the names. Figures that were not measured are absent.
pub type Columns = BTreeMap<String, f64>;

/// The columns of speeds and step times. Their means are geometric, so that the ratio of the mean times is
/// the inverse of the ratio of the mean speeds.
pub const RATES: [&str; 2] = [SPEED, STEP_TIME];

/// Returns the mean of every column over the trials that have it.
pub fn means<'a>(trials: impl IntoIterator<Item = &'a Columns>) -> Columns {
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in trials.into_iter().flatten() {
        all.entry(name).or_default().push(*value);
    }
    all.into_iter().filter_map(|(name, values)| Some((name.clone(), mean(name, &values)?))).collect()
}

/// Returns the mean of a column; equal values give that value to the bit.
fn mean(name: &str, values: &[f64]) -> Option<f64> {
    let first = *values.first()?;
    let n = values.len() as f64;
    let is_positive = values.iter().all(|value| *value > 0.0);
    Some(match RATES.contains(&name) && is_positive {
        true => first * (values.iter().map(|value| (value / first).ln()).sum::<f64>() / n).exp(),
        false => first + values.iter().map(|value| value - first).sum::<f64>() / n,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_are_skipped_and_means_of_rates_are_geometric() {
        let trial = |values: &[(&str, f64)]| values.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let found = means(&[
            trial(&[("a", 3.0), ("b", 1.0), ("tok_s", 100.0), ("step_ms", 40.0)]),
            trial(&[("a", 1.0), ("tok_s", 400.0), ("step_ms", 10.0)]),
        ]);
        let near = |name: &str, value: f64| (found[name] - value).abs() < 1e-12 * value;
        assert!(near("a", 2.0) && near("b", 1.0), "{found:?}");
        assert!(near("tok_s", 200.0) && near("step_ms", 20.0), "{found:?}");
        let same: Columns = trial(&[("a", 0.1), ("tok_s", 0.3)]);
        assert_eq!(means(&[same.clone(), same.clone(), same.clone()]), same, "to the bit");
    }
}
