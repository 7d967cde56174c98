//! Checks of what follows the width of a model.

use super::diagnostic::Diagnostic;
use super::loaded::Recipe;
use crate::optim::{OPTIMIZERS, has_width_rules};
use crate::policy::{HeadInit, Parametrization};

const PARAMETRIZATION: &str = "model.parametrization";

/// Finds contradictions among these keys.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let values = recipe.values();
    let model = &values.model;
    if model.tie_embeddings && model.head_init != HeadInit::Normal {
        found.push(recipe.diagnostic(
            &["model.head_init", "model.tie_embeddings"],
            "the head is the embedding, whose initial values are not zero",
            "leave head_init or tie_embeddings unset",
        ));
    }
    if model.parametrization == Parametrization::Standard {
        return;
    }
    if model.base_dim.is_none() {
        found.push(recipe.diagnostic(
            &[PARAMETRIZATION, "model.base_dim"],
            "muP says how a model differs from one of the base width, and there is none",
            "set model.base_dim to the width at which the learning rate was tuned",
        ));
    }
    let name = &values.optimizer.name;
    if !has_width_rules(name) {
        let others = OPTIMIZERS.iter().map(|entry| entry.name).filter(|name| has_width_rules(name));
        found.push(recipe.diagnostic(
            &[PARAMETRIZATION, "optimizer.name"],
            format!("there is no rule of how the updates of {name} follow the width"),
            format!(
                "take one of {}, or parametrization = \"standard\"",
                others.collect::<Vec<_>>().join(", ")
            ),
        ));
    }
}
