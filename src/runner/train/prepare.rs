//! Prepares a recipe up to its first step, without a run folder.

use crate::data::{self, Dataset, TokenCache};
use crate::error::Result;
use crate::forecast::{Planned, check_fits};
use crate::machine::Machine;
use crate::plan::{CorpusFacts, data_spec};
use crate::recipe::Recipe;

/// Opens the corpus, plans, records the programs, and rejects what does not fit.
///
/// # Errors
/// If the corpus or the plan is invalid, or needs more memory than the machine has.
pub fn prepare(recipe: &Recipe, machine: &Machine) -> Result<(Planned, Dataset)> {
    let (spec, seq_len) = (data_spec(recipe, machine), recipe.values().training.seq_len);
    let dataset = data::open(&spec, seq_len, None, TokenCache::user()?.as_ref())?;
    let planned = Planned::new(recipe, &CorpusFacts::from_dataset(&dataset), machine)?;
    check_fits(&planned.plan, &planned.programs, machine)?;
    Ok((planned, dataset))
}
