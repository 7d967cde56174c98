//! The plan of a run, made again from its resolved recipe.

use crate::error::{Error, Result};
use crate::forecast::Planned;
use crate::machine::{Machine, hardware};
use crate::plan::CorpusFacts;
use crate::recipe::{self, Recipe};
use crate::results::folder::read_summary;
use crate::results::names::{ENVIRONMENT, RESOLVED};
use crate::results::summary::Summary;
use crate::view::folder::{read_text, read_valid_json};
use crate::view::table::TableRun;

/// Token counts to plan with. Plans of a step only need to know that there are enough tokens.
const TRAIN_TOKENS: usize = 1 << 40;
const HELD_OUT_TOKENS: usize = 1 << 30;

/// A run with its plan.
#[derive(Debug)]
pub struct PlannedRun {
    /// The plan and its programs.
    pub planned: Planned,
    /// The run's summary.
    pub summary: Summary,
    /// The machine whose peaks predict times: the run's GPU, if they are known.
    pub machine: Machine,
}

impl PlannedRun {
    /// Plans a run again. Does not read the corpus: the vocabulary size follows from the loss of a uniform
    /// guess.
    ///
    /// # Errors
    /// If the run has no resolved recipe, or this version cannot plan it.
    pub fn new(run: &TableRun) -> Result<Self> {
        let path = run.path.join(RESOLVED);
        let text = read_text(&run.path, RESOLVED)?.ok_or_else(|| {
            Error::failed(format!("{} is missing, and the run is planned from it", path.display()))
        })?;
        let summary = read_summary(&run.path)?;
        // If the recipe leaves the device to the machine, the environment tells which one it was.
        let environment = read_valid_json(&run.path, ENVIRONMENT)?.unwrap_or_default();
        let gpu = &environment["gpu"];
        let device = if gpu.is_object() { "engine.device=cuda" } else { "engine.device=cpu" };
        let recipe = recipe::load_resolved(&path, &text, &[device.to_owned()], &Machine::none())?;
        let corpus = corpus(&recipe, &summary)?;
        let planned = Planned::new(&recipe, &corpus, &Machine::none())?;
        let known = gpu["name"].as_str().and_then(hardware::by_driver_name);
        let machine = Machine { hardware: known, ..Machine::none() };
        Ok(Self { planned, summary, machine })
    }
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
