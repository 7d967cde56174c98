//! Checks the keys that scale a model with its width.

use super::diagnostic::Diagnostic;
use super::loaded::Recipe;
use crate::optim::{Entry, GroupRole, OPTIMIZERS, Values};
use crate::policy::{HeadInit, Parametrization};

const PARAMETRIZATION: &str = "model.parametrization";

/// Reports contradictions among these keys.
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
            "muP scales a model relative to a base width, and none is set",
            "set model.base_dim to the width at which the learning rate was tuned",
        ));
    }
    for role in GroupRole::ALL {
        let Some(rule) = values.optimizer.rule(role) else { continue };
        let (name, word) = (rule.entry.name, role.word());
        let own = format!("optimizer.groups.{word}.name");
        let choice = if recipe.locate(&own).is_some() { own.as_str() } else { "optimizer.name" };
        if (rule.entry.width_rule)(&rule.values, role).is_none() {
            let has_rule = |entry: &&Entry| (entry.width_rule)(&Values::default(), role).is_some();
            let others: Vec<&str> = OPTIMIZERS.iter().filter(has_rule).map(|entry| entry.name).collect();
            found.push(recipe.diagnostic(
                &[choice, PARAMETRIZATION],
                format!(
                    "{name} has no rule for how its updates of parameters of {word} scale with the width"
                ),
                format!("take one of {}, or parametrization = \"standard\"", others.join(", ")),
            ));
        }
        if name == "sgd" && role == GroupRole::Vector && model.qk_norm && model.qk_norm_weight {
            found.push(recipe.diagnostic(
                &["model.qk_norm_weight", choice],
                "all heads share the weights of the norms of queries and keys, and how their gradients add up over more \
                 heads is not a power of the width: sgd has no rule for them",
                "set model.qk_norm_weight = false, or take another optimizer for vectors",
            ));
        }
    }
}
