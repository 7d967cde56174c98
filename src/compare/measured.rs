//! The columns of a comparison: what the runs of a side measured, one median per column.

use super::statistics::median;
use crate::results::Summary;
use crate::results::steady::SteadyState;
use std::collections::BTreeMap;

/// Named columns, with units in the names; what was not measured is not there.
pub type Columns = BTreeMap<String, f64>;

/// What a run's summary says, under the names that predictions use.
pub fn of(summary: &Summary) -> Columns {
    let steady = summary.steady_state.iter().flat_map(SteadyState::medians);
    let startup = &summary.startup;
    let parts = [startup.corpus_s, startup.device_s, startup.kernels_s, startup.state_s];
    let started = parts.iter().any(Option::is_some);
    let bytes = |bytes: Option<u64>| bytes.map(|b| b as f64);
    let columns = [
        ("tok_s", summary.tok_s),
        ("mfu_pct", summary.mfu_pct),
        ("hfu_pct", summary.hfu_pct),
        ("planned_bytes", bytes(summary.memory.planned_bytes)),
        ("allocated_bytes", bytes(summary.memory.allocated_bytes)),
        ("peak_rss_bytes", bytes(summary.memory.peak_rss_bytes)),
        ("startup_s", started.then(|| parts.iter().flatten().sum())),
        ("wall_s", summary.wall_s),
        ("train_loss", summary.train_loss.last.map(|at| f64::from(at.loss))),
        ("val_loss", summary.val_loss.last.map(|at| f64::from(at.loss))),
    ];
    columns.into_iter().chain(steady).filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The median of every column over the turns that have it.
pub fn medians(turns: &[Columns]) -> Columns {
    let mut all: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in turns.iter().flatten() {
        all.entry(name).or_default().push(*value);
    }
    all.into_iter().map(|(name, values)| (name.clone(), median(values))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::PREDICTABLE;
    use crate::results::summary::{LossAt, Losses, Startup};
    use crate::results::{Phase, TimingRow};

    #[test]
    fn every_column_that_can_be_predicted_is_measured() {
        let mut summary = Summary::begin("r", "x", "0", 1);
        let row = TimingRow {
            tok_s: Some(10.0),
            data_wait_ms: Some(0.1),
            communication_ms: Some(1.0),
            exposed_communication_ms: Some(0.2),
            gpu_util_pct: Some(90.0),
            driver_allocations: Some(3),
            ..TimingRow::of(1, Phase::Train, 1.0, 100.0)
        };
        summary.measure(&[], &[row], 0);
        (summary.mfu_pct, summary.hfu_pct) = (Some(40.0), Some(50.0));
        summary.memory.planned_bytes = Some(1);
        summary.memory.allocated_bytes = Some(1);
        summary.memory.peak_rss_bytes = Some(1);
        summary.startup = Startup { corpus_s: Some(0.5), state_s: Some(0.25), ..Startup::default() };
        let losses = Losses::of([LossAt { step: 1, loss: 2.0 }]);
        (summary.train_loss, summary.val_loss) = (losses, losses);
        let columns = of(&summary);
        let mut predictable: Vec<&str> = PREDICTABLE.to_vec();
        predictable.sort_unstable();
        assert_eq!(columns.keys().map(String::as_str).collect::<Vec<_>>(), predictable);
        assert_eq!(columns["startup_s"], 0.75);
    }

    #[test]
    fn medians_are_of_those_that_measured() {
        let turn = |values: &[(&str, f64)]| values.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let found = medians(&[turn(&[("a", 3.0), ("b", 1.0)]), turn(&[("a", 1.0)]), turn(&[("a", 2.0)])]);
        assert_eq!(found, turn(&[("a", 2.0), ("b", 1.0)]));
    }
}
