//! The table of an evaluation, for a terminal.

use super::{Evaluation, Seconds};
use crate::format::{Column, Table, decimal, percent, plural, thousands};
use crate::task_evaluation::TaskRecord;
use std::fmt;

/// Decimal places of figures.
const PLACES: usize = 4;

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Column::{Left, Right};
        let mut table = Table::new(&[Left, Right, Left, Right, Right, Right, Right, Left]);
        table.row(["task", "shots", "metric", "value", "error", "items", "chance", "note"]);
        self.record.tasks.iter().for_each(|task| row(&mut table, task));
        f.write_str(&table.render(0))?;
        match self.mean_above_chance() {
            Some(mean) => writeln!(f, "mean above chance: {mean:.PLACES$}"),
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
    table.row([
        task.key.task.clone(),
        task.key.shots.to_string(),
        task.metric.clone(),
        decimal(figure.and_then(|figure| figure.value), PLACES),
        decimal(figure.and_then(|figure| figure.error), PLACES),
        thousands(figure.map_or(0, |figure| figure.items)),
        figure.and_then(|figure| figure.chance).map_or_else(String::new, |chance| format!("{chance:.4}")),
        notes.join(", "),
    ]);
}

impl Evaluation {
    /// Returns the mean over tasks of their figures above chance, as a part of what is possible: (value −
    /// chance) / (1 − chance). Over the tasks of the set `core` it is CORE (Li et al. 2024,
    /// arXiv:2406.11794). `None` unless there are several tasks and all have a chance level.
    pub fn mean_above_chance(&self) -> Option<f64> {
        let centred = |task: &TaskRecord| {
            let figure = task.headline()?;
            let (value, chance) = (figure.value?, figure.chance?);
            Some((value - chance) / (1.0 - chance))
        };
        let centred: Vec<f64> = self.record.tasks.iter().map(centred).collect::<Option<_>>()?;
        (centred.len() > 1).then(|| centred.iter().sum::<f64>() / centred.len() as f64)
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
