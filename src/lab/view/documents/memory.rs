//! The memory of a run over a step, planned again from its resolved recipe.

use super::planned::PlannedRun;
use crate::error::{Error, Result};
use crate::forecast::MemoryTimeline;
use crate::format::binary;
use crate::view::table::TableRun;
use serde_json::{Value, json};

/// Returns the document `memory` of a run.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn document(run: &TableRun, of: &PlannedRun) -> Result<Value> {
    let timeline = MemoryTimeline::new(&of.planned.plan, &of.planned.programs);
    let planned = of.summary.memory.planned_bytes.filter(|bytes| *bytes != timeline.peak_bytes as u64);
    let note = planned.map(|bytes| {
        let [now, then] = [timeline.peak_bytes, usize::try_from(bytes).unwrap_or(usize::MAX)].map(binary);
        format!("this version of xrun plans {now}, but the run was planned with {then}")
    });
    let mut document = serde_json::to_value(timeline)
        .map_err(|e| Error::failed(format!("cannot write the memory of {} as JSON: {e}", run.id)))?;
    document["id"] = run.id.as_str().into();
    document["note"] = json!(note);
    Ok(document)
}
