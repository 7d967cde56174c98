//! Columns of tables: measured quantities with their units, and keys of recipes.

use super::kept::KeptRun;
use super::text::did_you_mean;
use super::text::{code, plain};
use crate::format::{BLANK, decimal};
use crate::metrics::{self, Metric, ScoreColumn};
use crate::recipe::{KEYS, find_path};
use crate::results::columns::Figures;
use crate::results::ledger::Measured;

/// Columns of runs that are words.
const WORDS: [&str; 2] = ["status", "contended"];

/// Columns of a sweep that are words.
const SWEEP_WORDS: [&str; 3] = ["status", "reason", "contended"];

/// The column of the training loss of the last batch.
pub const LAST_BATCH: &str = "loss";

/// The columns that are measured on the held-out text.
const VALIDATED: [&str; 4] = ["val_loss", "ema_val_loss", "val_loss_over_floor", "bits_per_byte"];

/// Decimals of the figures of tasks.
const SCORE_DECIMALS: usize = 4;

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// A quantity, or a word about the row.
    Named(&'static str),
    /// A quantity measured on one held-out set of a run, or on one source of its mixture.
    HeldOut {
        /// The name of the quantity.
        metric: &'static str,
        /// The name of the set or source.
        set: String,
    },
    /// A figure of a task of a run, by its column in `metrics.csv`, `TASK/FIGURE`.
    Score(String),
    /// A key of the resolved recipe.
    Key(String),
}

/// The form of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberForm {
    /// With commas between thousands and this many decimals; `None` uses the column's own.
    Decimal(Option<usize>),
    /// About three digits with a metric suffix, such as `45.2k`.
    Short,
}

impl Column {
    /// Returns the heading. A leading `>` aligns the column to the right, as for numbers.
    pub fn heading(&self) -> String {
        match self {
            Column::Named(name) => heading(name),
            Column::HeldOut { metric, set } => format!("{} on {}", heading(metric), code(set)),
            Column::Score(column) => format!(">{}", code(column)),
            Column::Key(key) => code(key),
        }
    }
}

/// Returns the heading of a figure, with its unit. An unknown name is its own heading.
pub fn heading(name: &str) -> String {
    match metrics::find(name) {
        Some(metric) => format!(">{}", metric.heading),
        None if SWEEP_WORDS.contains(&name) => name.to_owned(),
        None => format!(">{}", code(name)),
    }
}

/// Formats a figure that is given in its stored unit.
pub fn value(name: &str, value: Option<f64>) -> String {
    match metrics::find(name) {
        Some(metric) => decimal(value.map(|value| value / metric.divisor), metric.decimals),
        None => decimal(value, 3),
    }
}

/// Parses the columns of a table of runs, or returns the default ones.
pub fn runs(asked: Option<&str>) -> Result<Vec<Column>, String> {
    let names: Vec<&'static str> = metrics::run_metrics().map(|metric| metric.name).chain(WORDS).collect();
    choose(asked.unwrap_or("tok_s,train_loss,val_loss"), &names, true)
}

/// Parses the column of a value in a sentence.
pub fn parse_single(asked: &str) -> Result<Column, String> {
    if asked.contains(',') {
        return Err(format!("a value has one column, not `{asked}`"));
    }
    Ok(runs(Some(asked))?.remove(0))
}

/// Parses the columns of a sweep's table, besides the settings of its cells.
pub fn sweep(asked: Option<&str>) -> Result<Vec<Column>, String> {
    let figures = metrics::ledger_metrics().into_iter().map(|(_, metric)| metric.name);
    let names: Vec<&'static str> = figures.chain(SWEEP_WORDS).collect();
    choose(asked.unwrap_or("status,tok_s,val_loss,allocated_mib"), &names, false)
}

fn choose(asked: &str, names: &[&'static str], with_keys: bool) -> Result<Vec<Column>, String> {
    let column = |word: &str| match names.iter().find(|name| **name == word) {
        Some(name) => Ok(Column::Named(name)),
        None => match metrics::find_set_metric(word) {
            Some((metric, set)) if with_keys => {
                Ok(Column::HeldOut { metric: metric.name, set: set.to_owned() })
            }
            _ if with_keys && ScoreColumn::parse(word).is_some() => Ok(Column::Score(word.to_owned())),
            _ if with_keys && word.contains('.') => Ok(Column::Key(known_key(word)?.to_owned())),
            _ => {
                let near = did_you_mean(word, names.iter().copied());
                Err(format!("no column `{word}`; there are {}{near}", names.join(", ")))
            }
        },
    };
    asked.split(',').map(|word| column(word.trim())).collect()
}

/// Returns the canonical path of a recipe key.
pub fn known_key(path: &str) -> Result<&'static str, String> {
    find_path(path).map(|key| key.path).ok_or_else(|| {
        format!("recipes have no key `{path}`{}", did_you_mean(path, KEYS.iter().map(|key| key.path)))
    })
}

/// Formats a run's cell.
pub fn run_cell(run: &KeptRun, column: &Column) -> String {
    let summary = &run.summary;
    match column {
        Column::Named("status") => summary.status.as_str().to_owned(),
        Column::Named("contended") => yes_or_no(summary.gpu.as_ref().and_then(|gpu| gpu.contended)),
        Column::Named(name) => {
            let figure = run_figure(run, name);
            let remark = figure.map(|_| remark_on(run, name));
            value(name, figure) + &remark.unwrap_or_default()
        }
        Column::HeldOut { metric, set } => {
            let figure = held_out_figure(run, metric, set);
            let is_held_out = figure.is_some() && metrics::find(metric).is_some_and(Metric::is_held_out);
            let part = run.summary.held_out.get(set).and_then(|set| set.part).filter(|_| is_held_out);
            value(metric, figure) + &part.map(|part| format!(" ({part})")).unwrap_or_default()
        }
        Column::Score(column) => decimal(score(run, column), SCORE_DECIMALS),
        Column::Key(key) => run.recipe_values.get(key).map_or(BLANK.to_owned(), |value| plain(value)),
    }
}

/// Returns a figure of a run, in its stored unit.
pub fn run_figure(run: &KeptRun, name: &str) -> Option<f64> {
    Figures::from_summary(&run.summary).get(metrics::find(name)?)
}

/// Returns a figure of a held-out set of a run, in its stored unit.
pub fn held_out_figure(run: &KeptRun, metric: &str, set: &str) -> Option<f64> {
    Figures::from_summary(&run.summary).get_for_set(metrics::find(metric)?, set)
}

/// Returns a figure of a task of a run.
pub fn score(run: &KeptRun, column: &str) -> Option<f64> {
    Figures::from_summary(&run.summary).score(column)
}

/// Returns the remark after a figure. For a validation loss, it tells what part of the held-out text was
/// used.
pub fn remark_on(run: &KeptRun, name: &str) -> String {
    let over = run.validated_over().filter(|_| VALIDATED.contains(&name));
    over.map(|over| format!(" ({over})")).unwrap_or_default()
}

/// Returns a figure that a sweep measured; `None` for words.
pub fn ledger_figure(measured: &Measured, name: &str) -> Option<f64> {
    let (key, _) = metrics::ledger_metrics().into_iter().find(|(_, metric)| metric.name == name)?;
    measured.get(key)
}

/// Formats a fact that may be unknown.
pub fn yes_or_no(value: Option<bool>) -> String {
    value.map_or(BLANK, |value| if value { "yes" } else { "no" }).to_owned()
}
