//! The table of an evaluation, for a terminal.

use super::{Evaluation, Seconds};
use crate::format::{Column, Table, decimal, percent, plural, thousands};
use crate::statistics::{PlannedScores, USUAL_CORRELATION};
use crate::task_evaluation::{FigureRecord, MarkedItems, TaskRecord};
use std::fmt;

/// Decimal places of figures.
const PLACES: usize = 4;

/// The confidence with which a difference is to be found.
const CONFIDENCE: f64 = 0.95;

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Column::{Left, Right};
        let mut table = Table::new(&[Left, Right, Left, Right, Right, Right, Right, Right, Left]);
        table.row(["task", "shots", "metric", "value", "error", "sees", "items", "chance", "note"]);
        self.record.tasks.iter().for_each(|task| row(&mut table, task));
        f.write_str(&table.render(0))?;
        match self.mean_above_chance() {
            Some((mean, Some(error))) => writeln!(f, "mean above chance: {mean:.PLACES$} ± {error:.PLACES$}"),
            Some((mean, None)) => writeln!(f, "mean above chance: {mean:.PLACES$}"),
            None => Ok(()),
        }
    }
}

fn row(table: &mut Table, task: &TaskRecord) {
    let mut notes = Vec::new();
    let figure = task.headline();
    if figure.is_some_and(|figure| figure.within_chance == Some(true)) {
        notes.push("within chance".to_owned());
    }
    if task.cut_items > 0 {
        let cut = task.cut_items;
        notes.push(format!("{} prompt{} cut to the model's context", thousands(cut), plural(cut)));
    }
    if let Some(MarkedItems { found, clean, .. }) =
        task.contamination.as_ref().filter(|marked| marked.found > 0)
    {
        let value = clean.as_ref().and_then(|figure| figure.value);
        notes.push(format!(
            "{} item{} in training text; {} without them",
            thousands(*found),
            plural(*found),
            decimal(value, PLACES)
        ));
    }
    table.row([
        task.key.task.clone(),
        task.key.shots.to_string(),
        task.metric.clone(),
        decimal(figure.and_then(|figure| figure.value), PLACES),
        decimal(figure.and_then(|figure| figure.error), PLACES),
        decimal(figure.and_then(sees), PLACES),
        thousands(figure.map_or(0, |figure| figure.items)),
        figure.and_then(|figure| figure.chance).map_or_else(String::new, |chance| format!("{chance:.4}")),
        notes.join(", "),
    ]);
}

/// Returns the smallest true difference of two checkpoints that the task finds in 80 % of cases at 95 %, if
/// their answers are as alike as usual.
fn sees(figure: &FigureRecord) -> Option<f64> {
    let plan = PlannedScores {
        error: figure.error?,
        clusters: figure.clusters,
        correlation: USUAL_CORRELATION,
        seeds: None,
    };
    plan.smallest_seen(CONFIDENCE)
}

impl Evaluation {
    /// Returns the mean over tasks of their figures above chance, as a part of what is possible: (value −
    /// chance) / (1 − chance), and its standard error over items. Over the tasks of the set `core` it is CORE
    /// (Li et al. 2024, arXiv:2406.11794). `None` unless there are several tasks and all have a chance level.
    ///
    /// The tasks are these ones, and their items are independent, so variances add up.
    pub fn mean_above_chance(&self) -> Option<(f64, Option<f64>)> {
        let centred = |task: &TaskRecord| {
            let figure = task.headline()?;
            let (value, chance) = (figure.value?, figure.chance?);
            Some(((value - chance) / (1.0 - chance), figure.error.map(|error| error / (1.0 - chance))))
        };
        let centred: Vec<(f64, Option<f64>)> =
            self.record.tasks.iter().map(centred).collect::<Option<_>>()?;
        let count = centred.len() as f64;
        let variance = centred.iter().map(|(_, error)| error.map(|error| error * error)).sum::<Option<f64>>();
        let mean = centred.iter().map(|(value, _)| value).sum::<f64>() / count;
        (centred.len() > 1).then(|| (mean, variance.map(|variance| variance.sqrt() / count)))
    }

    /// Describes how much was read, how much of the batches was padding, and where the time went.
    pub fn usage_in_words(&self) -> Option<String> {
        let tasks = || self.record.tasks.iter();
        let (requests, tokens): (usize, usize) =
            tasks().fold((0, 0), |(requests, tokens), task| (requests + task.requests, tokens + task.tokens));
        let Seconds { open, items, load, score } = self.seconds;
        let room: f64 = tasks().map(|task| task.tokens as f64 / (1.0 - task.padding)).sum();
        (tokens > 0).then(|| {
            format!(
                "{} requests, {} tokens; {} of the batches was padding\nseconds: {open:.2} model, {items:.2} items, {load:.2} \
                 device and weights, {score:.2} scores",
                thousands(requests),
                thousands(tokens),
                percent(1.0 - tokens as f64 / room)
            )
        })
    }
}
