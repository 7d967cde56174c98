//! The figures that evaluation tasks report, and their columns in `metrics.csv`.

use std::fmt;

/// Prefix of the columns for the moving average of the weights.
const AVERAGE: &str = "ema_";

/// A figure that an evaluation task reports for every held-out set. What a run shows of it is an entry in the
/// table of metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskFigure {
    /// Name of the figure and of its column.
    pub name: &'static str,
    /// Unit in words; empty for shares.
    pub unit: &'static str,
    /// True if a higher value is better.
    pub higher_is_better: bool,
    /// The smallest difference that matters in comparisons, unless the user sets another.
    pub min_effect: f64,
}

impl TaskFigure {
    /// Returns true for a figure of pairs of answers alone.
    pub fn is_of_pairs(&self) -> bool {
        OF_PAIRS.contains(&self.name)
    }
}

/// The figures of pairs of answers alone.
const OF_PAIRS: [&str; 2] = ["val_preference_accuracy", "val_margin"];

/// Every figure.
pub const TASK_FIGURES: &[TaskFigure] = &[
    TaskFigure { name: "val_loss", unit: "nats per token", higher_is_better: false, min_effect: 0.01 },
    TaskFigure { name: "val_accuracy", unit: "", higher_is_better: true, min_effect: 0.002 },
    TaskFigure { name: "val_preference_accuracy", unit: "", higher_is_better: true, min_effect: 0.01 },
    TaskFigure { name: "val_margin", unit: "nats", higher_is_better: true, min_effect: 0.01 },
];

/// Returns the figure with this name.
pub fn task_figure(name: &str) -> Option<&'static TaskFigure> {
    TASK_FIGURES.iter().find(|figure| figure.name == name)
}

/// A column of `metrics.csv` for a figure of a held-out set: `FIGURE` for the set of `data.validation`,
/// `FIGURE/SET` for the others, with the prefix `ema_` for the moving average of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOutColumn<'a> {
    /// The name of the figure.
    pub figure: &'static str,
    /// The name of the set; empty for the set of `data.validation`.
    pub set: &'a str,
    /// True if the column is about the moving average of the weights.
    pub is_average: bool,
}

impl<'a> HeldOutColumn<'a> {
    /// Parses a column name; `None` for columns of other kinds.
    pub fn parse(column: &'a str) -> Option<Self> {
        let (weights, is_average) = match column.strip_prefix(AVERAGE) {
            Some(weights) => (weights, true),
            None => (column, false),
        };
        let (figure, set) = match weights.split_once('/') {
            Some((_, "")) => return None,
            Some((figure, set)) => (figure, set),
            None => (weights, ""),
        };
        Some(Self { figure: task_figure(figure)?.name, set, is_average })
    }
}

impl fmt::Display for HeldOutColumn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { figure, set, is_average } = self;
        let (average, slash) =
            (if *is_average { AVERAGE } else { "" }, if set.is_empty() { "" } else { "/" });
        write!(f, "{average}{figure}{slash}{set}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_read_as_they_are_written() {
        for column in ["val_loss", "val_loss/news", "ema_val_loss", "ema_val_loss/a-b_c"] {
            assert_eq!(HeldOutColumn::parse(column).unwrap().to_string(), column);
        }
        for other in ["loss", "val_loss/", "ema_loss", "val_loss2/news", "/news", ""] {
            assert_eq!(HeldOutColumn::parse(other), None, "{other}");
        }
    }
}
