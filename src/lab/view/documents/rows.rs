//! The rows and columns of the table of runs.

use super::number::number;
use crate::metrics::{Metric, ScoreColumn};
use crate::results::Status;
use crate::results::collection::{
    Cell, Collection, Field, Run, differing_keys, figures, score_figures, set_figures,
};
use serde_json::{Map, Value, json};

/// The figures that `xrun runs` shows.
const USUAL: [&str; 3] = ["train_loss", "val_loss", "tok_s"];

/// The figures and keys that the rows of a table have.
#[derive(Debug, Default, PartialEq)]
pub struct Layout {
    /// The figures that at least one run has.
    figures: Vec<Field>,
    /// The recipe keys that differ between the runs, in the order of recipes.
    pub keys: Vec<String>,
}

impl Layout {
    /// Returns the layout for the runs of a collection.
    pub fn new(collection: &Collection) -> Self {
        let runs: Vec<&Run> = collection.runs.iter().collect();
        let has_one = |field: &Field| runs.iter().any(|run| field.value(run) != Cell::Blank);
        let of_runs = || runs.iter().copied();
        let all = figures().chain(set_figures(of_runs())).chain(score_figures(of_runs()));
        Self { figures: all.filter(has_one).collect(), keys: differing_keys(&runs) }
    }

    /// Returns the columns of figures.
    pub fn columns(&self) -> Vec<Value> {
        let column = |field: &Field| {
            let (metric, name) = (field.metric()?, field.to_string());
            let heading = match field {
                Field::Figure { set: Some(set), .. } => format!("{} on {set}", metric.heading),
                Field::Score(_) => ScoreColumn::parse(&name)?.heading(),
                _ => metric.heading.to_owned(),
            };
            Some(json!({
                "heading": heading,
                "unit": metric.unit,
                "decimals": metric.decimals,
                "better": match field {
                    Field::Score(_) => Some(if field.is_highest_first() { "high" } else { "low" }),
                    _ => better(metric),
                },
                "meaning": metric.meaning,
                "usual": USUAL.contains(&name.as_str()),
                "name": name,
            }))
        };
        self.figures.iter().filter_map(column).collect()
    }
}

/// Returns whether low or high values of a metric are better, or `None` if neither.
pub fn better(metric: &Metric) -> Option<&'static str> {
    match metric.unit {
        "nats/token" | "bits/byte" | "ms" | "s" | "MiB" => Some("low"),
        "tokens/s" | "%" => Some("high"),
        _ => None,
    }
}

/// Returns the row of a run.
pub fn row(run: &Run, layout: &Layout, version: &str) -> Value {
    let entry = &run.entry;
    let mut figures = Map::new();
    for field in &layout.figures {
        if let Cell::Number(value) = field.value(run) {
            figures.insert(field.to_string(), number(value));
        }
    }
    let mut keys = Map::new();
    for path in &layout.keys {
        let value = match Field::Key(path.clone()).value(run) {
            Cell::Blank => continue,
            Cell::Unset => Value::Null,
            Cell::Number(value) => value.to_string().into(),
            Cell::Text(text) => text.into(),
        };
        keys.insert(path.clone(), value);
    }
    json!({
        "id": run.id,
        "name": run.name,
        "recipe": run.recipe(),
        "started": run.started(),
        "status": run.status.as_str(),
        "live": run.status == Status::Running,
        "reason": entry.reason,
        "steps": entry.steps,
        "steps_planned": entry.steps_planned,
        "version": version,
        "tags": run.annotation.tags,
        "note": run.annotation.note,
        "changed": entry.changed,
        "remarks": entry.remarks,
        "device": entry.device,
        "commit": entry.commit,
        "corpus": entry.corpus,
        "forked_from": entry.forked_from.as_ref().map(|fork| json!({"run": fork.run, "step": fork.step})),
        "part_of": run.part_of,
        "figures": figures,
        "keys": keys,
    })
}
