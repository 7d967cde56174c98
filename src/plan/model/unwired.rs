//! Keys of the model that no program acts on yet: they are refused.

use crate::error::Result;
use crate::policy::Activation;
use crate::recipe::Recipe;

/// Refuses a key that has another value than the one that programs are made for.
pub(super) fn check(recipe: &Recipe) -> Result<()> {
    let m = &recipe.values().model;
    let unwired = [
        ("model.norm_weight", !m.norm_weight),
        ("model.norm_bias", m.norm_bias.is_some()),
        ("model.activation", m.activation != Activation::Swiglu),
        ("model.bias", m.bias),
    ];
    match unwired.iter().find(|(_, set)| *set) {
        Some((key, _)) => Err(recipe.error(&[key], "this key has no effect yet", "leave it unset")),
        None => Ok(()),
    }
}
