//! The optimizer's state of the run whose weights a recipe begins with (`model.init_optimizer`).

use super::base::BaseModel;
use super::same_model::{INIT_FROM, INIT_OPTIMIZER};
use crate::error::Result;
use crate::ir::State;
use crate::model::{is_of_average, is_of_scales};
use crate::recipe::Recipe;
use crate::train::shards::optimizer_buffers;
use std::collections::BTreeSet;

/// Checks that what a recipe begins with has the optimizer's state that it asks for: the slots of `state`,
/// and no others. Does nothing if the recipe begins with weights alone.
///
/// # Errors
/// A usage error that says what differs.
pub fn check_initial_optimizer(recipe: &Recipe, base: &BaseModel, state: &State) -> Result<()> {
    if !recipe.values().model.init_optimizer {
        return Ok(());
    }
    let refuse = |what: String, help: &str| Err(recipe.error(&[INIT_OPTIMIZER, INIT_FROM], what, help));
    let at = base.path().display();
    let Some(loaded) = base.checkpoint() else {
        return refuse(
            format!("{at} is a folder in HuggingFace's form, which has no optimizer's state"),
            "leave model.init_optimizer out, or name a run",
        );
    };
    if loaded.is_weights_only() {
        return refuse(
            format!("{at} has only weights, without the optimizer's state"),
            "leave model.init_optimizer out, or name a checkpoint with it",
        );
    }
    let wanted: BTreeSet<String> = optimizer_buffers(state)
        .iter()
        .flat_map(|buffer| buffer.params(state).map(|param| format!("{}{}", buffer.prefix, param.name)))
        .collect();
    let weights: BTreeSet<&str> = loaded.parameter_names().collect();
    let mut stored = loaded.names();
    stored.retain(|name| !weights.contains(name) && !is_of_average(name) && !is_of_scales(name));
    let lacks = wanted.iter().find(|name| !stored.contains(&name.as_str()));
    let left = stored.iter().find(|name| !wanted.contains(**name));
    let help = "use its optimizer.name and [optimizer.groups], or leave model.init_optimizer out";
    match (lacks, left) {
        (Some(name), _) => {
            refuse(format!("{at} has the state of another optimizer: there is no {name}"), help)
        }
        (None, Some(name)) => {
            refuse(format!("{at} has the state of another optimizer: {name} has no place in this one"), help)
        }
        (None, None) => Ok(()),
    }
}
