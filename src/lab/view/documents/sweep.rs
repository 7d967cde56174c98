//! Sweeps: their cells, and what a map of them needs.

use super::number::number;
use super::rows::better;
use crate::error::Result;
use crate::metrics;
use crate::regular;
use crate::results::configurations::CONFIGURATIONS;
use crate::results::ledger::{Attempt, Ledger};
use crate::sweep::{SweepCell, cells};
use crate::view::folder::{SWEEP_FILES, read_json, version};
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The status of a cell that has not begun.
const OPEN: &str = "open";

/// Returns the document `sweeps` of these ids and folders.
pub fn list(found: &[(String, PathBuf)], ledger: Option<&Ledger>) -> Value {
    json!({"sweeps": found.iter().map(|(id, folder)| line(id, folder, ledger)).collect::<Vec<_>>()})
}

/// Returns the line of a sweep in the document `sweeps`, or the reason if it cannot be read.
fn line(id: &str, folder: &Path, ledger: Option<&Ledger>) -> Value {
    let version = version(folder, SWEEP_FILES);
    let cells = match cells(folder) {
        Ok(cells) => cells,
        Err(e) => return json!({"id": id, "version": version, "damaged": e.message()}),
    };
    let last: Vec<&Attempt> = cells.iter().filter_map(|cell| ledger?.row(&cell.key)).collect();
    json!({
        "id": id,
        "recipe": last.first().map_or(recipe_of(id), |attempt| attempt.recipe.as_str()),
        "cells": cells.len(),
        "done": last.iter().filter(|attempt| attempt.status.is_final()).count(),
        "version": version,
    })
}

/// Returns the document `sweep` of a folder.
///
/// # Errors
/// If the list of its cells cannot be read.
pub fn document(id: &str, folder: &Path, ledger: Option<&Ledger>) -> Result<Value> {
    let cells = cells(folder)?;
    let keys: BTreeSet<&String> = cells.iter().flat_map(|cell| cell.settings.keys()).collect();
    let values: BTreeMap<&String, Vec<&str>> =
        keys.iter().map(|key| (*key, distinct_values(key, &cells))).collect();
    let attempts: Vec<Option<&Attempt>> = cells.iter().map(|cell| ledger?.row(&cell.key)).collect();
    let has_figure = |key: &str| attempts.iter().flatten().any(|at| at.measured.get(key).is_some());
    let figures: Vec<(&str, &metrics::Metric)> =
        metrics::ledger_metrics().into_iter().filter(|(key, _)| has_figure(key)).collect();
    let cell_json = |(cell, attempt): (&SweepCell, &Option<&Attempt>)| {
        let figure = |(key, metric): &(&str, &metrics::Metric)| {
            let value = (*attempt)?.measured.get(key)? / metric.divisor;
            Some((metric.name.to_owned(), number(value)))
        };
        json!({
            "settings": cell.settings,
            "status": attempt.map_or(OPEN, |attempt| attempt.status.as_str()),
            "done": attempt.is_some_and(|attempt| attempt.status.is_final()),
            "reason": attempt.and_then(|attempt| attempt.reason.as_deref()),
            "run": attempt.and_then(|attempt| attempt.run.as_deref()),
            "figures": figures.iter().filter_map(figure).collect::<Map<String, Value>>(),
        })
    };
    let column = |(_, metric): &(&str, &metrics::Metric)| {
        json!({
            "name": metric.name,
            "heading": metric.heading,
            "unit": metric.unit,
            "decimals": metric.decimals,
            "better": better(metric),
        })
    };
    let has_configurations = regular::is_file(&folder.join(CONFIGURATIONS));
    let configurations: Option<Value> =
        has_configurations.then(|| read_json(folder, CONFIGURATIONS)).transpose()?;
    Ok(json!({
        "id": id,
        "version": version(folder, SWEEP_FILES),
        "keys": keys,
        "values": values,
        "figures": figures.iter().map(column).collect::<Vec<_>>(),
        "cells": cells.iter().zip(&attempts).map(cell_json).collect::<Vec<_>>(),
        "configurations": configurations,
    }))
}

/// Returns the recipe in the name `RECIPE-HASH` of a sweep.
fn recipe_of(id: &str) -> &str {
    id.rsplit_once('-').map_or(id, |(recipe, _)| recipe)
}

/// Returns the distinct values of a key: numbers in order, then texts in order.
fn distinct_values<'a>(key: &str, cells: &'a [SweepCell]) -> Vec<&'a str> {
    let mut values: Vec<&str> =
        cells.iter().filter_map(|cell| Some(cell.settings.get(key)?.as_str())).collect();
    let number = |text: &str| text.replace('_', "").parse::<f64>().ok();
    values.sort_by(|a, b| match (number(a), number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    });
    values.dedup();
    values
}
