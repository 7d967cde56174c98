//! Differences between two recipes by key, and their consequences for a run.

use super::condition::UNSET;
use super::key::{Class, Key};
use super::lookup::find_path;
use super::schema::Values;
use super::toml_text::values;

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
    let changes = values(a).into_iter().zip(values(b)).filter(|((_, old), (_, new))| old != new);
    changes
        .map(|((key, old), (_, new))| {
            let class = class_between(key, global_kept);
            let show = |value: Option<String>| value.unwrap_or_else(|| UNSET.to_owned());
            Change { key: key.path, class, old: show(old), new: show(new) }
        })
        .collect()
}
