//! Differences between two recipes by key, and their consequences for a run.

use super::condition::UNSET;
use super::definition::{self, definition_label};
use super::key::{Class, Key, Type};
use super::lookup::find_path;
use super::schema::Values;
use super::toml_text::{both_values, hashed_text, parse_value, paths_in, strings_in};
use std::path::PathBuf;
use toml::Value;

/// A key with different values in two recipes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Full path.
    pub key: &'static str,
    /// Effect of the change, between these two recipes.
    pub class: Class,
    /// The first value as TOML, or `unset`.
    pub old: String,
    /// The second value as TOML, or `unset`.
    pub new: String,
}

impl Change {
    /// Returns true if both values are paths, or tables of paths with the same names: files may have moved.
    pub fn is_of_paths(&self) -> bool {
        let Some(key) = find_path(self.key) else { return false };
        let names = |text: &str| match parse_value(text) {
            Ok(Value::Table(table)) => Some(table.keys().cloned().collect::<Vec<_>>()),
            _ => None,
        };
        match key.kind {
            Type::NamedPaths => names(&self.old).is_some() && names(&self.old) == names(&self.new),
            _ => [&self.old, &self.new].into_iter().all(|value| paths_in(key, value).is_some()),
        }
    }

    /// Returns the paths of the first value.
    pub fn old_paths(&self) -> Vec<PathBuf> {
        let Some(key) = find_path(self.key) else { return Vec::new() };
        match parse_value(&self.old) {
            Ok(Value::Table(table)) if key.kind == Type::NamedPaths => {
                table.values().flat_map(strings_in).map(PathBuf::from).collect()
            }
            _ => paths_in(key, &self.old).into_iter().flatten().map(PathBuf::from).collect(),
        }
    }

    /// Returns true if the change leaves the hash of the recipe as it is.
    pub fn keeps_hash(&self) -> bool {
        let hashed = |value: &str| find_path(self.key).map(|key| hashed_text(key, value).into_owned());
        !self.class.is_hashed() || hashed(&self.old) == hashed(&self.new)
    }

    /// Returns true if the change leaves every bit of the loss curve the same; see [`super::Key::same_bits`].
    pub fn keeps_bits(&self) -> bool {
        !self.class.is_hashed() || find_path(self.key).is_some_and(|key| key.same_bits)
    }
}

/// Returns the differing keys that decide what figures are measured on.
pub fn measuring_changes(a: &Values, b: &Values) -> Vec<Change> {
    diff(a, b).into_iter().filter(|change| change.class == Class::Measuring).collect()
}

/// Returns the class of a change of `key`. If both recipes fix the same global batch size (`global_kept`),
/// the keys that divide it are execution keys; otherwise they change it and are training keys.
pub(super) fn class_between(key: &Key, global_kept: bool) -> Class {
    let divides_batch =
        matches!(key.path, "training.local_batch_size" | "training.accumulation" | "parallelism.world_size");
    match (divides_batch, global_kept) {
        (true, true) => Class::Execution,
        (true, false) => Class::Training,
        (false, _) => key.class,
    }
}

/// Returns every key that differs between `a` and `b`, in table order.
pub fn diff(a: &Values, b: &Values) -> Vec<Change> {
    let global_kept = a.training.global_batch_size.is_some()
        && a.training.global_batch_size == b.training.global_batch_size;
    let changes = both_values(a, b).filter(|(_, old, new)| old != new);
    changes
        .map(|(key, old, new)| {
            let class = class_between(key, global_kept);
            let show = |value: Option<String>| value.unwrap_or_else(|| UNSET.to_owned());
            let [old, new] = match key.path {
                definition::KEY => [a, b].map(|v| v.model.definition.as_deref().map(definition_label)),
                _ => [old, new],
            };
            Change { key: key.path, class, old: show(old), new: show(new) }
        })
        .collect()
}
