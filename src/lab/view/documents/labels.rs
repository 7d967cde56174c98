//! The labels of runs that are shown together.

use crate::results::labels::{Labeled, labels};
use crate::view::table::TableRun;
use serde_json::{Map, Value, json};

/// Returns the document `labels` of runs: for each, its label among them, and the part of it that repetitions
/// with other seeds share.
pub fn document(runs: &[&TableRun]) -> Value {
    let shown: Vec<Labeled<'_>> = runs.iter().map(|run| run.labeled()).collect();
    let entries = runs
        .iter()
        .zip(labels(&shown))
        .map(|(run, label)| (run.id.clone(), json!({"text": label.text, "group": label.group})));
    json!({"labels": entries.collect::<Map<String, Value>>()})
}
