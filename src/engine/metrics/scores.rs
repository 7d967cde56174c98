//! The figures of standard tasks inside a run, and their columns in `metrics.csv`.

use super::held_out::{HeldOutColumn, TaskFigure};
use super::metric::Metric;
use super::sources::source_of_column;
use std::fmt;

/// Prefix of the figures of the moving average of the weights.
const AVERAGE: &str = "ema_";

/// A figure of a task: how it is compared, and how it is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreFigure {
    /// Name, unit, direction, and the smallest difference that matters.
    pub figure: TaskFigure,
    /// Its entry for tables and pages.
    pub metric: Metric,
}

const fn score(figure: TaskFigure, heading: &'static str, meaning: &'static str) -> ScoreFigure {
    let metric = Metric { unit: figure.unit, meaning, heading, decimals: 4, ..Metric::named(figure.name) };
    ScoreFigure { figure, metric }
}

/// A share of items: a point matters.
const fn share(name: &'static str, heading: &'static str, meaning: &'static str) -> ScoreFigure {
    score(TaskFigure { name, unit: "", higher_is_better: true, min_effect: 0.01 }, heading, meaning)
}

/// A perplexity, which is compared by its ratio: a hundredth matters, as of a speed.
const fn perplexity(name: &'static str, heading: &'static str, meaning: &'static str) -> ScoreFigure {
    let unit = PERPLEXITY;
    score(TaskFigure { name, unit, higher_is_better: false, min_effect: 0.01 }, heading, meaning)
}

/// The unit of perplexities.
pub const PERPLEXITY: &str = "equally likely choices";

/// Every figure that a task may have, under the names that `tasks` gives them.
pub static SCORE_FIGURES: &[ScoreFigure] = &[
    share("acc", "accuracy", "share of items that are answered right"),
    share("acc_norm", "accuracy", "share of items that are answered right, by likelihood per character"),
    share("acc_bytes", "accuracy", "share of items that are answered right, by likelihood per byte"),
    share("acc_tokens", "accuracy", "share of items that are answered right, by likelihood per token"),
    share("exact_match", "exact match", "share of items to which a right answer is generated"),
    score(
        TaskFigure {
            name: "bits_per_byte",
            unit: "bits per byte",
            higher_is_better: false,
            min_effect: 0.005,
        },
        "bits/byte of the answer",
        "bits per byte of the right answers",
    ),
    perplexity("perplexity", "perplexity", "perplexity of an answer"),
    perplexity("token_perplexity", "perplexity per token", "perplexity of a token"),
    perplexity("byte_perplexity", "perplexity per byte", "perplexity of a byte"),
    perplexity("word_perplexity", "perplexity per word", "perplexity of a word"),
];

/// Returns the figure with this name.
pub fn score_figure(name: &str) -> Option<&'static ScoreFigure> {
    SCORE_FIGURES.iter().find(|known| known.figure.name == name)
}

/// A column of `metrics.csv` for a figure of a task, `TASK/FIGURE`, where the figure has the prefix `ema_`
/// for the moving average of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreColumn<'a> {
    /// The name of the task.
    pub task: &'a str,
    /// The name of the figure.
    pub figure: &'static str,
    /// True if the column is about the moving average of the weights.
    pub is_average: bool,
}

impl<'a> ScoreColumn<'a> {
    /// Parses a column name; `None` for columns of other kinds.
    pub fn parse(column: &'a str) -> Option<Self> {
        let (task, named) = column.split_once('/')?;
        let is_other = HeldOutColumn::parse(column).is_some() || source_of_column(column).is_some();
        if is_other || !is_task_name(task) {
            return None;
        }
        let (name, is_average) = match named.strip_prefix(AVERAGE) {
            Some(name) => (name, true),
            None => (named, false),
        };
        Some(Self { task, figure: score_figure(name)?.figure.name, is_average })
    }

    /// Returns what is known of the figure.
    pub fn score_figure(&self) -> Option<&'static ScoreFigure> {
        score_figure(self.figure)
    }

    /// Returns a heading for it, such as `hellaswag: accuracy`.
    pub fn heading(&self) -> String {
        let heading = self.score_figure().map_or(self.figure, |score| score.metric.heading);
        let average = if self.is_average { " of the EMA" } else { "" };
        format!("{}: {heading}{average}", self.task)
    }

    /// Returns the name of the figure with its prefix.
    pub fn figure_name(&self) -> String {
        format!("{}{}", if self.is_average { AVERAGE } else { "" }, self.figure)
    }
}

/// Returns true for a text that may name a task, as definitions of tasks demand.
pub fn is_task_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b);
    !text.is_empty() && text.bytes().all(plain)
}

impl fmt::Display for ScoreColumn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.task, self.figure_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_read_as_they_are_written() {
        for column in ["hellaswag/acc_norm", "a-b_1/bits_per_byte", "lambada/ema_perplexity"] {
            assert_eq!(ScoreColumn::parse(column).unwrap().to_string(), column);
        }
        for other in [
            "acc",
            "/acc",
            "x/",
            "x/accuracy",
            "a/b/acc",
            "X/acc",
            "val_loss/acc",
            "train_loss/acc",
            "a b/acc",
        ] {
            assert_eq!(ScoreColumn::parse(other), None, "{other}");
        }
    }
}
