//! The text of a run's model, with what each line takes in a step, planned again from its resolved recipe.

use super::planned::PlannedRun;
use crate::error::{Error, Result};
use crate::forecast::ModelLines;
use crate::view::table::TableRun;
use serde_json::Value;
use std::slice;

/// Returns the document `model` of a run: what `xrun plan RECIPE --model --json` prints. Times are predicted
/// only for a GPU whose peaks are known.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn document(run: &TableRun, of: &PlannedRun) -> Result<Value> {
    let lines = ModelLines::new(&of.planned.plan, &of.planned.programs, slice::from_ref(&of.machine));
    let mut document = serde_json::to_value(lines)
        .map_err(|e| Error::failed(format!("cannot write the model of {} as JSON: {e}", run.id)))?;
    document["id"] = run.id.as_str().into();
    Ok(document)
}
