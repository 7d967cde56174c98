//! What the ranks of a process train, and its preparation, which needs no run folder.

use super::device_order::DeviceOrder;
use super::initial::InitialValues;
use crate::data::{self, Dataset, Opening, TokenCache};
use crate::error::Result;
use crate::forecast::{Planned, check_fits};
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::{CorpusFacts, Plan, data_spec, read_tasks, task_facts};
use crate::ranks::Stop;
use crate::recipe::Recipe;
use crate::tasks::Prepared;
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
    /// The tasks on which the model is scored.
    pub tasks: Arc<Vec<Prepared>>,
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

/// What a run reads before its first step.
#[derive(Debug)]
pub struct RunData {
    /// Its corpus.
    pub dataset: Dataset,
    /// The tasks on which its model is scored.
    pub tasks: Vec<Prepared>,
}

/// Opens the corpus, plans, records the programs, and rejects what does not fit. Reads no tasks.
///
/// # Errors
/// If the corpus or the plan is invalid, or needs more memory than the machine has.
pub fn prepare(recipe: &Recipe, machine: &Machine) -> Result<(Planned, Dataset)> {
    let dataset = open(recipe, machine, Opening::Tokenized)?;
    let planned = plan(recipe, CorpusFacts::from_dataset(&dataset), machine)?;
    Ok((planned, dataset))
}

/// Prepares a run like [`prepare`], and reads its tasks. Does not wait for the whole text to be tokenized if
/// the order of the corpus allows that.
///
/// # Errors
/// The same as [`prepare`], or if a task or its files are wrong.
pub fn prepare_early(recipe: &Recipe, machine: &Machine) -> Result<(Planned, RunData)> {
    let dataset = open(recipe, machine, Opening::WhileTokenized)?;
    let tasks = read_tasks(recipe, &dataset.tokenizer)?;
    let facts = CorpusFacts { tasks: task_facts(&tasks), ..CorpusFacts::from_dataset(&dataset) };
    Ok((plan(recipe, facts, machine)?, RunData { dataset, tasks }))
}

fn open(recipe: &Recipe, machine: &Machine, opening: Opening) -> Result<Dataset> {
    let (spec, seq_len) = (data_spec(recipe, machine), recipe.values().training.seq_len);
    data::open_as(&spec, seq_len, None, TokenCache::user()?.as_ref(), opening)
}

fn plan(recipe: &Recipe, facts: CorpusFacts, machine: &Machine) -> Result<Planned> {
    let planned = Planned::new(recipe, &facts, machine)?;
    check_fits(&planned.plan, &planned.programs, machine)?;
    Ok(planned)
}
