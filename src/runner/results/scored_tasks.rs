//! The tasks that a run scored its model on.

use super::losses::{FigureAt, FigureSeries};
use crate::metrics::{MetricsRow, ScoreColumn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A task of a run, with its figures. Runs whose definition, files, shots and limit are equal were scored on
/// the same items with the same prompts, if their tokenizers are equal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoredTask {
    /// Hash of the task's definition, in hexadecimal.
    pub definition: String,
    /// BLAKE3 over the names and hashes of its files, in hexadecimal.
    pub files: String,
    /// Examples in front of each item.
    pub shots: usize,
    /// The most items of each configuration; `None` for all.
    pub limit: Option<usize>,
    /// Number of items.
    pub items: usize,
    /// The figure that stands for the task.
    pub metric: String,
    /// The value of that figure for a model that knows nothing.
    pub chance: Option<f64>,
    /// The standard error of that figure over items, or over groups of items that share a text, at the last
    /// evaluation.
    pub error: Option<f64>,
    /// Figures by name. Those of the moving average of the weights begin with `ema_`.
    pub figures: BTreeMap<String, FigureSeries>,
}

impl ScoredTask {
    /// Returns true if two runs asked the same items in the same way.
    pub fn asks_like(&self, other: &Self) -> bool {
        (&self.definition, &self.files, self.shots, self.limit)
            == (&other.definition, &other.files, other.shots, other.limit)
    }

    /// Adds the figures from a later row of the run, where the task is called `name`.
    pub fn add_row(&mut self, name: &str, row: &MetricsRow) {
        for (column, &value) in &row.further {
            let Some(column) = ScoreColumn::parse(column).filter(|column| column.task == name) else {
                continue;
            };
            let higher_is_better = column.score_figure().is_some_and(|score| score.figure.higher_is_better);
            let series = self.figures.entry(column.figure_name()).or_default();
            series.add(FigureAt { step: row.step, value }, higher_is_better);
        }
    }

    /// Replaces the figures with those from all rows of the run, which must be in order of steps.
    pub fn measure(&mut self, name: &str, rows: &[MetricsRow]) {
        self.figures.values_mut().for_each(|series| *series = FigureSeries::default());
        rows.iter().for_each(|row| self.add_row(name, row));
    }

    /// Returns the last value of the figure that stands for the task.
    pub fn last(&self) -> Option<FigureAt> {
        self.figures.get(&self.metric)?.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_tasks_own_columns() {
        let row = |step, values: &[(&str, f32)]| {
            let further = values.iter().map(|&(column, value)| (column.to_owned(), value)).collect();
            MetricsRow { step, further, ..MetricsRow::default() }
        };
        let rows = [
            row(
                1,
                &[
                    ("mine/acc", 0.5),
                    ("mine/bits_per_byte", 2.0),
                    ("mine/ema_acc", 0.25),
                    ("other/acc", 0.75),
                ],
            ),
            row(2, &[("mine/acc", 0.25), ("mine/bits_per_byte", 1.0), ("val_loss/mine", 3.0)]),
            row(3, &[("mine/acc", f32::NAN)]),
        ];
        let mut task = ScoredTask { metric: "acc".to_owned(), ..ScoredTask::default() };
        task.measure("mine", &rows);
        let at = |step, value| Some(FigureAt { step, value });
        assert_eq!((task.last(), task.figures["acc"].best), (at(2, 0.25), at(1, 0.5)));
        assert_eq!(task.figures["bits_per_byte"].best, at(2, 1.0));
        assert_eq!(task.figures["ema_acc"].last, at(1, 0.25));
        assert_eq!(task.figures.len(), 3);
        task.measure("mine", &[]);
        assert_eq!((task.last(), task.figures.len()), (None, 3));
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<ScoredTask>(&text).unwrap(), task);
    }
}
