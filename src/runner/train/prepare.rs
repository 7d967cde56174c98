//! Everything between a recipe and its first step that needs no run folder.

use crate::data::{self, Dataset};
use crate::error::Result;
use crate::forecast::{Planned, check_fits};
use crate::machine::Machine;
use crate::plan::{CorpusFacts, data_spec};
use crate::recipe::Recipe;

/// Opens the corpus, plans, records the programs, and refuses what does not fit.
///
/// # Errors
/// When the corpus or the plan is invalid, or needs more memory than there is.
pub fn prepare(recipe: &Recipe, machine: &Machine) -> Result<(Planned, Dataset)> {
    let dataset =
        data::open(&data_spec(recipe, machine), recipe.values().training.seq_len, &data::Options::default())?;
    let planned = Planned::new(recipe, &CorpusFacts::from_dataset(&dataset), machine)?;
    check_fits(&planned.plan, &planned.programs, machine)?;
    Ok((planned, dataset))
}
