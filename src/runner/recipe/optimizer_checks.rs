//! Checks the optimizer's keys against the chosen optimizers, and groups against the model.

use super::derived;
use super::diagnostic::Diagnostic;
use super::groups;
use super::loaded::Recipe;
use super::lookup::section_keys;
use super::optimizer;
use crate::optim::{self, GroupRole};
use crate::policy::{Position, WeightDecay};
use crate::suggest::nearest;

/// Reports keys that the chosen optimizer or the model does not have.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let groups = || std::iter::once(None).chain(GroupRole::ALL.map(Some));
    groups().for_each(|group| hyperparameters(recipe, group, found));
    groups().for_each(|group| independent_decay(recipe, group, found));
    GroupRole::ALL.iter().for_each(|role| not_updated(recipe, *role, found));
    absent_roles(recipe, found);
    vanishing_rates(recipe, found);
}

/// Reports learning rates that are 0 in fp32 at some step, though neither the peak nor the ratio is 0:
/// optimizers compute in fp32, and a rate is a product.
fn vanishing_rates(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    const RATIO: &str = "lr_scheduler.min_lr_ratio";
    let values = recipe.values();
    let (schedule, steps) = (&values.lr_scheduler, values.training.steps);
    let warmup = derived::warmup_steps(schedule, steps);
    let last = if warmup < steps { schedule.min_lr_ratio } else { 1.0 };
    let first = if warmup > 0 { 1.0 / warmup as f64 } else { 1.0 };
    let vanishes = |rate: f64| rate > 0.0 && rate < f64::from(f32::MIN_POSITIVE);
    for role in GroupRole::ALL {
        let Some(rule) = values.optimizer.rule(role) else { continue };
        let own = path(Some(role), "lr");
        let key = if recipe.locate(&own).is_some() { own.as_str() } else { "optimizer.lr" };
        let other = if vanishes(rule.lr * last) {
            RATIO
        } else if vanishes(rule.lr * first) {
            "lr_scheduler.warmup_steps"
        } else {
            continue;
        };
        let rate = if other == RATIO { rule.lr * last } else { rule.lr * first };
        found.push(recipe.diagnostic(
            &[key, other],
            format!("a learning rate of {rate:e} vanishes in fp32, whose numbers begin at 1.2e-38"),
            format!("take a larger {key}"),
        ));
        return;
    }
}

/// Returns the path of a key of `[optimizer]` or of a group.
fn path(group: Option<GroupRole>, name: &str) -> String {
    group.map_or(format!("optimizer.{name}"), |role| format!("optimizer.groups.{}.{name}", role.word()))
}

/// Returns the name of the section's or the group's optimizer, and the path of the key that chooses it.
fn chosen(recipe: &Recipe, group: Option<GroupRole>) -> (&str, String) {
    let section = &recipe.values().optimizer;
    let own = group.and_then(|role| section.groups.get(&role)?.name.as_deref());
    match own {
        Some(name) => (name, path(group, "name")),
        None => {
            let entry = group.and_then(|role| optim::find_for(role, &section.name));
            (entry.map_or(&section.name, |entry| entry.name), path(None, "name"))
        }
    }
}

/// Reports hyperparameters that the chosen optimizer does not have. If they are set in a lower layer than the
/// optimizer's choice, they belong to that layer's optimizer and are dropped from the recipe instead.
fn hyperparameters(recipe: &Recipe, group: Option<GroupRole>, found: &mut Vec<Diagnostic>) {
    let (name, choice) = chosen(recipe, group);
    let Some(entry) = optim::find(name) else { return };
    let declared = match group {
        None => optim::hyperparameters_for_all(entry),
        Some(_) => entry.hyperparameters.iter().collect(),
    };
    let chosen_by = recipe.merged.position(&choice);
    for key in section_keys("optimizer").filter(|key| optimizer::is_hyperparameter(key)) {
        let group_key = groups::role_and_name(key);
        if group_key.map(|(role, _)| role) != group {
            continue;
        }
        let own_name = group_key.map_or(key.name(), |(_, name)| name);
        let Some(at) = recipe.locate(key.path) else { continue };
        let names = || declared.iter().map(|hyperparameter| hyperparameter.name);
        if names().any(|name| name == own_name) || recipe.merged.position(key.path) < chosen_by {
            continue;
        }
        let help = match nearest(own_name, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let owners: Vec<String> =
                    optimizer::owners(key).map(|owner| format!("{:?}", owner.name)).collect();
                let names = ["lr"].into_iter().chain(names()).collect::<Vec<_>>().join(", ");
                let (choice, owners) = (path(group, "name"), owners.join(" or "));
                format!("{name} has {names}; for this one set {choice} = {owners}")
            }
        };
        let diagnostic = Diagnostic::new(format!("{name} has no {}", key.path), help);
        let diagnostic = diagnostic.key(key.path).key(choice.as_str());
        let diagnostic =
            diagnostic.mark(&at.source, at.key.clone(), "not a hyperparameter of this optimizer");
        found.push(match recipe.locate(&choice) {
            Some(chosen) => diagnostic.mark(&chosen.source, chosen.value.clone(), "chosen here"),
            None => diagnostic.note(format!("{choice} = {name:?} by default")),
        });
    }
}

/// Reports independent decay for an optimizer that adds weight decay to the gradient.
fn independent_decay(recipe: &Recipe, group: Option<GroupRole>, found: &mut Vec<Diagnostic>) {
    let section = &recipe.values().optimizer;
    let decay = match group {
        None => Some(section.decay),
        Some(role) => section.groups.get(&role).and_then(|group| group.decay),
    };
    let (name, choice) = chosen(recipe, group);
    if decay != Some(WeightDecay::Independent) || optim::find(name).is_none_or(|e| e.decoupled_decay) {
        return;
    }
    let key = path(group, "decay");
    found.push(recipe.diagnostic(
        &[&key, &choice],
        format!("{name} adds its weight decay to the gradient, which the learning rate multiplies"),
        format!("leave {key} out, or choose another optimizer"),
    ));
}

/// Reports a group of other parameters whose optimizer updates only the matrices of blocks.
fn not_updated(recipe: &Recipe, role: GroupRole, found: &mut Vec<Diagnostic>) {
    let section = &recipe.values().optimizer;
    let name = section.groups.get(&role).and_then(|group| group.name.as_deref());
    let Some(entry) = name.and_then(optim::find).filter(|entry| !entry.updates(role)) else { return };
    let (name, key) = (entry.name, path(Some(role), "name"));
    let other = entry.fallback.unwrap_or_default();
    let matrices = path(Some(GroupRole::Matrix), "name");
    found.push(recipe.diagnostic(
        &[&key],
        format!("{name} updates only the matrices of blocks, and {} has none", role.word()),
        format!("set {key} = {other:?} and {matrices} = {name:?}"),
    ));
}

/// Reports groups whose parameters the model does not have.
fn absent_roles(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let model = &recipe.values().model;
    let absent = [
        (
            GroupRole::Positions,
            model.position != Position::Learned,
            "model.position",
            "no trained vectors of positions",
            "set model.position = \"learned\"",
        ),
        (
            GroupRole::Head,
            model.tie_embeddings,
            "model.tie_embeddings",
            "no head but its embedding",
            "set model.tie_embeddings = false",
        ),
    ];
    for (role, is_absent, cause, what, remedy) in absent {
        let in_group =
            |key: &&super::key::Key| groups::role_and_name(key).is_some_and(|(own, _)| own == role);
        let set = section_keys("optimizer").filter(in_group).find(|key| recipe.locate(key.path).is_some());
        if let Some(key) = set.filter(|_| is_absent) {
            let word = role.word();
            found.push(recipe.diagnostic(
                &[key.path, cause],
                format!("optimizer.groups.{word} has no parameters: this model has {what}"),
                format!("leave the group out, or {remedy}"),
            ));
        }
    }
}
