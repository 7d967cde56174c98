//! The training losses of a run on a source of its mixture.

use super::losses::{LossAt, TrainingLosses};
use crate::metrics::{MetricsRow, source_column};
use serde::{Deserialize, Serialize};

/// The training losses on a source, in nats per token. Steps without a sequence of the source have none, so
/// the smoothed loss averages those among the last steps that have one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceLosses {
    /// The losses of the run's steps.
    #[serde(flatten)]
    pub losses: TrainingLosses,
    /// The losses of the parent's last steps before a fork, as in `losses_before` of the run; `None` for a
    /// step without a sequence of the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses_before: Vec<Option<f32>>,
}

impl SourceLosses {
    /// Adds the loss in a later row of the run, where the source is called `name`.
    pub fn add_row(&mut self, name: &str, row: &MetricsRow) {
        if let Some(&loss) = row.further.get(&source_column(name)) {
            self.losses.add(LossAt { step: row.step, loss });
        }
    }

    /// Replaces the losses with those from all rows of the run, which must be in order of steps.
    pub fn measure(&mut self, name: &str, rows: &[MetricsRow]) {
        let column = source_column(name);
        // A blank is left out of every figure, as a loss that is not finite is.
        let loss = |row: &MetricsRow| row.further.get(&column).copied().unwrap_or(f32::NAN);
        let series = rows.iter().map(|row| LossAt { step: row.step, loss: loss(row) });
        self.losses = TrainingLosses::after(&self.losses_before, series);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_without_the_source_are_left_out_of_the_mean() {
        let row = |step: u64| {
            let mut row = MetricsRow { step, loss: 9.0, ..MetricsRow::default() };
            if step.is_multiple_of(2) {
                row.further.insert(source_column("web"), step as f32);
            }
            row
        };
        let rows: Vec<MetricsRow> = (1..=41).map(row).collect();
        let mut found = SourceLosses::default();
        found.measure("web", &rows);
        // The last four of 41 steps are averaged: 38 and 40 have a loss.
        let smoothed = found.losses.smoothed.unwrap();
        assert_eq!((smoothed.loss, smoothed.steps), (39.0, 2));
        assert_eq!(found.losses.last, Some(LossAt { step: 40, loss: 40.0 }));
        assert_eq!(found.losses.best, Some(LossAt { step: 2, loss: 2.0 }));
        let mut live = SourceLosses::default();
        rows.iter().for_each(|row| live.add_row("web", row));
        assert_eq!((live.losses.last, live.losses.best), (found.losses.last, found.losses.best));
        // A fork that trained one step covers the parent's last steps too.
        let mut fork = SourceLosses { losses_before: vec![Some(38.0), None, Some(40.0)], ..live };
        fork.measure("web", &rows[40..]);
        assert_eq!(fork.losses.smoothed, found.losses.smoothed);
        let none = SourceLosses::default();
        found.measure("code", &rows);
        assert_eq!(found.losses, none.losses);
        assert_eq!(serde_json::to_string(&none).unwrap(), r#"{"smoothed":null,"final":null,"best":null}"#);
    }
}
