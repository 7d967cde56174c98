//! Differences between two recipes by key, and their consequences for a run.

use super::key::{Class, Key, UNSET};
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
    /// The first value in TOML, or `unset`.
    pub old: String,
    /// The second.
    pub new: String,
}

impl Change {
    /// Returns true if the change leaves every bit of the loss curve as it was; see
    /// [`super::Key::same_bits`].
    pub fn keeps_bits(&self) -> bool {
        !self.class.is_hashed() || find_path(self.key).is_some_and(|key| key.same_bits)
    }
}

/// Returns the keys that differ in what figures are measured on.
pub fn measuring_changes(a: &Values, b: &Values) -> Vec<Change> {
    diff(a, b).into_iter().filter(|change| change.class == Class::Measuring).collect()
}

/// Returns the class of a change of `key`. As long as both recipes fix the same global batch
/// (`global_kept`), its parts are of the execution class; otherwise they change it.
pub(super) fn class_between(key: &Key, global_kept: bool) -> Class {
    match key.path {
        "training.local_batch_size" | "training.accumulation" | "parallelism.world_size" => {
            if global_kept {
                Class::Execution
            } else {
                Class::Training
            }
        }
        _ => key.class,
    }
}

/// Returns every key that differs between `a` and `b`, in the order of the table.
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
