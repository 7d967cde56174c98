//! A run: its summary, recipe, environments and samples.

use super::curves;
use crate::error::Result;
use crate::recipe::StoredKeys;
use crate::results::names::{PROFILE, RECIPE, RESOLVED, SUMMARY, environment_file};
use crate::results::quantiles::median;
use crate::view::folder::{read, read_text, read_valid_json};
use crate::view::known_rows::RunRows;
use crate::view::table::TableRun;
use serde_json::{Value, json};
use std::path::Path;

/// The most processes of a run whose environments are shown.
const MAX_PROCESSES: usize = 100;

/// The pace of a run is the median time of this many last steps.
const PACE_STEPS: usize = 100;

/// Returns the document `run` of a run.
///
/// # Errors
/// If one of its existing files cannot be read.
pub fn document(run: &TableRun, rows: &RunRows) -> Result<Value> {
    let path = run.path.as_path();
    let summary = read_valid_json(path, SUMMARY)?.unwrap_or_default();
    let resolved = read_text(path, RESOLVED)?;
    let keys = resolved.as_deref().and_then(|text| StoredKeys::parse(text).ok());
    let settings: Vec<(&str, Option<&str>)> = keys.as_ref().map_or(Vec::new(), |keys| keys.iter().collect());
    Ok(json!({
        "id": run.id,
        "name": run.row["name"],
        "version": run.version,
        "row": run.row,
        "floor": summary["floor"],
        "uniform_loss": summary["uniform_loss"],
        "samples": summary["samples"],
        "left_s": seconds_left(run, &summary, rows),
        "metrics": curves::metrics(rows),
        "recipe": read_text(path, RECIPE)?,
        "settings": settings,
        "environments": environments(path)?,
        "has": {"memory": resolved.is_some(), "profile": read(path, PROFILE)?.is_some()},
        "resolved": resolved,
        "summary": summary,
    }))
}

/// Estimates the seconds that a running run still trains, at the pace of its last steps.
fn seconds_left(run: &TableRun, summary: &Value, rows: &RunRows) -> Option<f64> {
    let last = rows.metrics.last().filter(|_| run.row["live"] == true)?;
    let steps = summary["steps_planned"].as_u64()?.saturating_sub(last.step);
    let times: Vec<f64> = rows.steps().map(|row| row.step_ms).collect();
    let pace = median(times.iter().rev().take(PACE_STEPS).copied())?;
    Some(steps as f64 * pace / 1e3)
}

/// Returns the environments of the processes of a run, in order.
fn environments(run: &Path) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for process in 1..=MAX_PROCESSES {
        let file = environment_file(process);
        match read_valid_json(run, &file)? {
            Some(value) => found.push(json!({"file": file, "value": value})),
            None => break,
        }
    }
    Ok(found)
}
