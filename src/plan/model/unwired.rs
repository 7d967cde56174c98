//! Keys of the model that no program acts on yet: they are refused.

use crate::error::Result;
use crate::recipe::Recipe;

/// Refuses a key that has another value than the one that programs are made for.
pub(super) fn check(recipe: &Recipe) -> Result<()> {
    let m = &recipe.values().model;
    let unwired = [
        ("model.window", m.window.is_some()),
        ("model.global_interval", m.global_interval.is_some()),
        ("model.score_cap", m.score_cap.is_some()),
    ];
    match unwired.iter().find(|(_, set)| *set) {
        Some((key, _)) => Err(recipe.error(&[key], "this key has no effect yet", "leave it unset")),
        None => Ok(()),
    }
}
