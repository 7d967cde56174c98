//! Everything before the first step, for what has no run folder.

use crate::data::{self, Dataset};
use crate::error::Result;
use crate::forecast::check_fits;
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::{Corpus, Plan, data_spec};
use crate::recipe::Recipe;

/// Opens the corpus, plans, records the programs, and refuses what does not fit.
///
/// # Errors
/// When the corpus or the plan is invalid, or needs more memory than there is.
pub fn prepare(recipe: &Recipe, machine: &Machine) -> Result<(Plan, Programs, Dataset)> {
    let dataset = data::open(&data_spec(recipe, machine), recipe.values().training.seq_len)?;
    let plan = Plan::new(recipe, &Corpus::from_dataset(&dataset), machine)?;
    let programs = Programs::new(&plan)?;
    check_fits(&plan, &programs, machine)?;
    Ok((plan, programs, dataset))
}
