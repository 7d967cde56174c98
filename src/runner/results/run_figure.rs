//! A figure of a run by which runs are compared: one from the table of metrics, or one of a task.

use super::columns::Figures;
use crate::metrics::{self, Metric, ScoreColumn, ScoreFigure};
use crate::statistics::Direction;

/// A figure of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunFigure {
    /// A figure in the table of metrics.
    Metric(&'static Metric),
    /// A figure of a task.
    Score {
        /// Its column in `metrics.csv`, `TASK/FIGURE`.
        column: String,
        /// What is known of it.
        score: &'static ScoreFigure,
    },
}

impl RunFigure {
    /// Returns the figure with this name; `None` if runs have none.
    pub fn find(name: &str) -> Option<Self> {
        match metrics::find(name) {
            Some(metric) => Some(Self::Metric(metric)),
            None => Self::score(name),
        }
    }

    /// Returns the figure of a task with this name, `TASK/FIGURE`.
    pub fn score(name: &str) -> Option<Self> {
        let score = ScoreColumn::parse(name)?.score_figure()?;
        Some(Self::Score { column: name.to_owned(), score })
    }

    /// Returns the name of the figure.
    pub fn name(&self) -> &str {
        match self {
            Self::Metric(metric) => metric.name,
            Self::Score { column, .. } => column,
        }
    }

    /// Returns its entry in a table of metrics, which has its unit and decimals.
    pub fn metric(&self) -> &'static Metric {
        match self {
            Self::Metric(metric) => metric,
            Self::Score { score, .. } => &score.metric,
        }
    }

    /// Returns which values are better.
    pub fn direction(&self) -> Direction {
        match self {
            Self::Metric(metric) => direction(metric),
            Self::Score { score, .. } if score.figure.higher_is_better => Direction::HigherIsBetter,
            Self::Score { .. } => Direction::LowerIsBetter,
        }
    }

    /// Returns the figure in its stored unit; `None` if it is unknown.
    pub fn value(&self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Metric(metric) => figures.get(metric),
            Self::Score { column, .. } => figures.score(column),
        }
    }
}

/// Returns which values of a metric are better: high speeds and utilizations, low losses, times and sizes.
pub fn direction(metric: &Metric) -> Direction {
    let is_speed = metric.name.starts_with("tok_s") || metric.name.starts_with("tflops");
    let is_utilization = ["mfu_pct", "hfu_pct", "gpu_util_pct"].contains(&metric.name);
    if is_speed || is_utilization { Direction::HigherIsBetter } else { Direction::LowerIsBetter }
}
