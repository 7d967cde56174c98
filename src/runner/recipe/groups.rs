//! The tables of `[optimizer.groups]`: keys that the parameters of a role have for themselves.
//!
//! A group's key has the name `groups.ROLE.KEY` in the section `[optimizer]`, so every layer sets it like any
//! other key. It is unset by default.

use super::condition::UNSET;
use super::key::Key;
use crate::optim::{self, GroupRole, Value};
use crate::policy::WeightDecay;
use crate::suggest::nearest;
use serde::Deserialize;
use serde::de::{IntoDeserializer, value::Error};
use serde::ser::SerializeMap;
use std::collections::BTreeMap;

/// Name of the table of groups in `[optimizer]`.
const GROUPS: &str = "groups";

/// The hyperparameter that makes vectors decay too, which weight decay otherwise skips.
pub(super) const WEIGHT_DECAY: &str = "weight_decay";

/// What a recipe sets for a group. A setting that is left out comes from `[optimizer]`, if the group's
/// optimizer has such a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Name of the optimizer.
    pub name: Option<String>,
    /// Peak learning rate.
    pub lr: Option<f64>,
    /// What the decoupled weight decay is relative to.
    pub decay: Option<WeightDecay>,
    /// Hyperparameters of the optimizer.
    pub values: BTreeMap<String, Value>,
}

impl Group {
    /// Returns the weight decay that the group sets itself.
    pub(super) fn weight_decay(&self) -> Option<f64> {
        match self.values.get(WEIGHT_DECAY) {
            Some(Value::Number(decay)) => Some(*decay),
            _ => None,
        }
    }
}

/// Returns the groups that `settings` has keys for, each with the hyperparameters of its optimizer. Groups
/// that name no optimizer use the one named `inherited`.
pub(super) fn from_written(
    inherited: &str,
    settings: &BTreeMap<String, Value>,
) -> BTreeMap<GroupRole, Group> {
    let mut groups: BTreeMap<GroupRole, Group> = BTreeMap::new();
    for (path, setting) in settings {
        let Some((role, name)) = split_path(path) else { continue };
        let group = groups.entry(role).or_default();
        match (name, setting) {
            ("name", Value::Word(word)) => group.name = Some(word.to_string()),
            ("decay", Value::Word(word)) => {
                let word: Result<WeightDecay, Error> = WeightDecay::deserialize((**word).into_deserializer());
                group.decay = word.ok();
            }
            ("lr", Value::Number(lr)) => group.lr = Some(*lr),
            (name, value) => {
                group.values.insert(name.to_owned(), value.clone());
            }
        }
    }
    for (role, group) in &mut groups {
        let entry = match &group.name {
            Some(name) => optim::find(name),
            None => optim::find_for(*role, inherited),
        };
        let known = entry.map_or(&[][..], |entry| entry.hyperparameters);
        let own = known.iter().filter_map(|h| Some((h.name.to_owned(), h.value(group.values.get(h.name)?))));
        group.values = own.collect();
    }
    groups
}

/// Writes the keys of a group in table order, with null for unset ones.
pub(super) fn serialize<M: SerializeMap>(
    role: GroupRole,
    group: Option<&Group>,
    map: &mut M,
) -> Result<(), M::Error> {
    let path = |name: &str| format!("{GROUPS}.{}.{name}", role.word());
    map.serialize_entry(&path("name"), &group.and_then(|group| group.name.as_ref()))?;
    map.serialize_entry(&path("lr"), &group.and_then(|group| group.lr))?;
    map.serialize_entry(&path("decay"), &group.and_then(|group| group.decay))?;
    for name in optim::hyperparameter_names().into_iter().filter(|name| role_has_hyperparameter(role, name)) {
        map.serialize_entry(&path(name), &group.and_then(|group| group.values.get(name)))?;
    }
    Ok(())
}

/// Returns true if an optimizer that can update parameters of the role has a hyperparameter of that name.
fn role_has_hyperparameter(role: GroupRole, name: &str) -> bool {
    optim::owners(name).any(|entry| entry.updates(role))
}

/// Returns the `[optimizer]` keys in `names` that the group of a role has too.
fn names_of(role: GroupRole, names: &[&'static str]) -> Vec<&'static str> {
    let is_of_others =
        |name: &str| optim::owners(name).next().is_some() && !role_has_hyperparameter(role, name);
    names.iter().copied().filter(|name| !is_of_others(name)).collect()
}

/// Returns the keys of the group of a role: one for each key of `[optimizer]` (`section_keys`), except those
/// that no optimizer of such parameters has.
pub(super) fn keys(role: GroupRole, section_keys: &[Key]) -> Vec<Key> {
    let own = |name: &str| leak(format!("{GROUPS}.{}.{name}", role.word()));
    let key = |key: &Key| {
        let aliases: Vec<&'static str> = key.aliases.iter().map(|alias| own(alias)).collect();
        let unset = match key.name() {
            WEIGHT_DECAY if !role.decays() => "0".to_owned(),
            name => format!("`optimizer.{name}`, where the optimizer has it"),
        };
        // A group that sets a default may differ from the section, which it would inherit otherwise.
        Key { path: leak(format!("optimizer.{}", own(key.name()))), implied_default: None, ..*key }
            .aliases(aliases.leak())
            .unset(leak(unset))
            .implied(UNSET)
    };
    let names: Vec<&'static str> = section_keys.iter().map(Key::name).collect();
    let names = names_of(role, &names);
    section_keys.iter().filter(|key| names.contains(&key.name())).map(key).collect()
}

/// Returns the role of a group's key and its name within the group; `None` for other keys.
pub(super) fn role_and_name(key: &Key) -> Option<(GroupRole, &'static str)> {
    if key.section() == "optimizer" { split_path(key.name()) } else { None }
}

/// Splits `groups.ROLE.NAME` into role and name.
fn split_path(path: &str) -> Option<(GroupRole, &str)> {
    let (role, name) = path.strip_prefix(GROUPS)?.strip_prefix('.')?.split_once('.')?;
    Some((GroupRole::from_word(role)?, name))
}

/// Explains a name in `[optimizer]` that starts like a group's key but is not one: what is wrong, and what to
/// write instead. `None` for other names. `names` are the keys of `[optimizer]`.
pub(super) fn explain_unknown(name: &str, names: &[&'static str]) -> Option<(String, String)> {
    let roles = GroupRole::ALL.map(GroupRole::word);
    let mut split_path = name.splitn(3, '.');
    if split_path.next() != Some(GROUPS) {
        return None;
    }
    let below = |role: &str| format!("write [optimizer.{GROUPS}.{role}] and its keys below");
    Some(match (split_path.next(), split_path.next()) {
        (None, _) => (format!("optimizer.{GROUPS} is a table of groups, not a value"), below(roles[0])),
        (Some(role), None) if roles.contains(&role) => {
            (format!("optimizer.{name} is a table, not a value"), below(role))
        }
        (Some(role), Some(key)) if roles.contains(&role) => {
            let own = GroupRole::from_word(role).map_or(Vec::new(), |role| names_of(role, names));
            let help = match nearest(key, own.iter().copied()) {
                Some(near) => format!("did you mean optimizer.{GROUPS}.{role}.{near}?"),
                None => format!("this group has {}", own.join(", ")),
            };
            (format!("there is no key optimizer.{name}"), help)
        }
        (Some(role), _) => {
            let help = match nearest(role, roles) {
                Some(near) => format!("did you mean optimizer.{GROUPS}.{near}?"),
                None => format!("the groups are {}", roles.join(", ")),
            };
            (format!("there is no group optimizer.{GROUPS}.{role}"), help)
        }
    })
}

/// Turns text for the table of keys into text that lives as long as the program.
pub(super) fn leak(text: String) -> &'static str {
    text.leak()
}
