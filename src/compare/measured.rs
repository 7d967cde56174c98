//! The columns of a comparison: what the runs of a side measured, one median per column.

use crate::results::quantiles::median;
use std::collections::BTreeMap;

/// Named columns, with units in the names; what was not measured is not there.
pub type Columns = BTreeMap<String, f64>;

/// The median of every column over the turns that have it.
pub fn medians(turns: &[Columns]) -> Columns {
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in turns.iter().flatten() {
        all.entry(name).or_default().push(*value);
    }
    all.into_iter().filter_map(|(name, values)| Some((name.clone(), median(values)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_those_that_measured() {
        let turn = |values: &[(&str, f64)]| values.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let found = medians(&[turn(&[("a", 3.0), ("b", 1.0)]), turn(&[("a", 1.0)]), turn(&[("a", 2.0)])]);
        assert_eq!(found, turn(&[("a", 2.0), ("b", 1.0)]));
    }
}
