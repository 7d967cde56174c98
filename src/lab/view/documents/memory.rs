//! The memory of a run over a step, planned again from its resolved recipe.

use crate::error::{Error, Result};
use crate::forecast::{MemoryTimeline, Planned};
use crate::format::binary;
use crate::machine::Machine;
use crate::plan::CorpusFacts;
use crate::recipe::{self, Recipe};
use crate::results::folder::read_summary;
use crate::results::names::{ENVIRONMENT, RESOLVED};
use crate::results::summary::Summary;
use crate::view::folder::{read_text, read_valid_json};
use crate::view::table::TableRun;
use serde_json::{Value, json};

/// Token counts to plan with. Memory plans only need to know that there are enough tokens.
const TRAIN_TOKENS: usize = 1 << 40;
const HELD_OUT_TOKENS: usize = 1 << 30;

/// Returns the document `memory` of a run. Does not read the corpus: the vocabulary size follows from the
/// loss of a uniform guess.
///
/// # Errors
/// If the run has no resolved recipe, or this version cannot plan it.
pub fn document(run: &TableRun) -> Result<Value> {
    let path = run.path.join(RESOLVED);
    let text = read_text(&run.path, RESOLVED)?.ok_or_else(|| {
        Error::failed(format!("{} is missing, and memory is planned from it", path.display()))
    })?;
    let summary = read_summary(&run.path)?;
    // If the recipe leaves the device to the machine, the environment tells which one it was.
    let environment = read_valid_json(&run.path, ENVIRONMENT)?;
    let on_gpu = environment.is_some_and(|environment| environment["gpu"].is_object());
    let device = if on_gpu { "engine.device=cuda" } else { "engine.device=cpu" };
    let machine = Machine::none();
    let recipe = recipe::load_resolved(&path, &text, &[device.to_owned()], &machine)?;
    let corpus = corpus(&recipe, &summary)?;
    let Planned { plan, programs, .. } = Planned::new(&recipe, &corpus, &machine)?;
    let timeline = MemoryTimeline::new(&plan, &programs);
    let planned = summary.memory.planned_bytes.filter(|bytes| *bytes != timeline.peak_bytes as u64);
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

/// Returns what plans need to know about the corpus of a run.
fn corpus(recipe: &Recipe, summary: &Summary) -> Result<CorpusFacts> {
    let vocab_size = summary.uniform_loss.map(|loss| loss.exp().round() as usize).ok_or_else(|| {
        Error::failed(
            "its summary lacks the size of the vocabulary, as of runs that were imported or stored by earlier versions of xrun",
        )
    })?;
    let sets = recipe.held_out_sets();
    Ok(CorpusFacts {
        vocab_size,
        train_tokens: TRAIN_TOKENS,
        validation_tokens: HELD_OUT_TOKENS,
        set_tokens: sets.into_iter().map(|name| (name.to_owned(), HELD_OUT_TOKENS)).collect(),
        ..CorpusFacts::default()
    })
}
