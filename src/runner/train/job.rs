//! What the ranks of a process train, and its preparation, which needs no run folder.

use super::device_order::DeviceOrder;
use super::initial::InitialValues;
use crate::data::{self, Dataset, Opening, TokenCache};
use crate::error::Result;
use crate::forecast::{Planned, check_fits};
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::{CorpusFacts, Plan, data_spec};
use crate::ranks::Stop;
use crate::recipe::Recipe;
use std::sync::Arc;

/// What every rank of a process trains.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub recipe: Recipe,
    /// Hash of the recipe as written, even after a resume.
    pub recipe_hash: String,
    /// The machine, as the ranks of this process share it.
    pub machine: Machine,
    pub plan: Arc<Plan>,
    pub programs: Arc<Programs>,
    pub dataset: Arc<Dataset>,
    pub stop: Stop,
    /// Step after which the run saves its state and ends; `None` for the last one.
    pub until: Option<u64>,
    pub initial_values: Arc<InitialValues>,
    pub devices: Arc<DeviceOrder>,
}

impl Job {
    /// Returns the number of steps of the run.
    pub fn steps(&self) -> u64 {
        self.plan.steps as u64
    }
}

/// Opens the corpus, plans, records the programs, and rejects what does not fit.
///
/// # Errors
/// If the corpus or the plan is invalid, or needs more memory than the machine has.
pub fn prepare(recipe: &Recipe, machine: &Machine) -> Result<(Planned, Dataset)> {
    prepare_as(recipe, machine, Opening::Tokenized)
}

/// Prepares a run like [`prepare`], but does not wait for the whole text to be tokenized if the order of the
/// corpus allows that.
///
/// # Errors
/// The same as [`prepare`].
pub fn prepare_early(recipe: &Recipe, machine: &Machine) -> Result<(Planned, Dataset)> {
    prepare_as(recipe, machine, Opening::WhileTokenized)
}

fn prepare_as(recipe: &Recipe, machine: &Machine, opening: Opening) -> Result<(Planned, Dataset)> {
    let (spec, seq_len) = (data_spec(recipe, machine), recipe.values().training.seq_len);
    let dataset = data::open_as(&spec, seq_len, None, TokenCache::user()?.as_ref(), opening)?;
    let planned = Planned::new(recipe, &CorpusFacts::from_dataset(&dataset), machine)?;
    check_fits(&planned.plan, &planned.programs, machine)?;
    Ok((planned, dataset))
}
