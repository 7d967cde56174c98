//! Finds recipe keys by path, name, alias or misspelled name.

use super::key::Key;
use super::names::name_fault;
use super::schema::{KEYS, SECTIONS};
use super::sources;
use crate::suggest::{nearest, nearest_by};

/// Names in other frameworks whose values mean something different from any key here, with what to write
/// instead.
const OTHER_FRAMEWORKS: [(&[&str], &str); 2] = [
    (
        &["mlp_ratio", "ffn_ratio", "ffn_mult", "ffn_multiplier", "ffn_dim_multiplier", "expansion_factor"],
        "the feed-forward width is set in elements: model.ffn_dim = ratio · model.dim; unset, it is 3 · dim, or 4 · dim without a gate",
    ),
    (
        &["epochs", "num_epochs", "num_train_epochs", "n_epochs"],
        "training.steps counts optimizer steps; `xrun plan` shows how many passes over the corpus they are",
    ),
];

/// Names that programs use for the length of a training run in other units than steps.
const LENGTHS: [&str; 12] = [
    "tokens",
    "num_tokens",
    "max_tokens",
    "total_tokens",
    "token_budget",
    "budget",
    "flops",
    "max_flops",
    "minutes",
    "hours",
    "max_time",
    "time_limit",
];

/// Returns what to write instead of a name in a section that no key has.
pub(super) fn hint(section: &str, name: &str) -> Option<&'static str> {
    let length = "training.steps is the length of a run in optimizer steps, and training.until in tokens, FLOPs or time, such as \
                  \"300Mtokens\" or \"1e17flops\"; `xrun plan` shows the time that they take";
    match (section, name) {
        ("training", name) if LENGTHS.contains(&name) => Some(length),
        ("job", "name") => {
            Some("a run has the name of its recipe's file; job.label is what tables and pages call it")
        }
        _ => other_framework_hint(name),
    }
}

/// Returns what to write instead of a name from another framework.
pub(super) fn other_framework_hint(name: &str) -> Option<&'static str> {
    OTHER_FRAMEWORKS.iter().find(|(names, _)| names.contains(&name)).map(|(_, instead)| *instead)
}

/// Returns the keys of a section, in the order of [`KEYS`].
pub fn section_keys(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.section() == section)
}

/// Returns true if `name` is a table of keys in a section; tables may be nested.
pub(super) fn is_table(section: &str, name: &str) -> bool {
    sources::table_name(section, name).is_some_and(|source| name_fault(source).is_none())
        || section_keys(section)
            .any(|key| key.name().strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// Returns the key of `section` called `name`, by its own name or an alias. The keys of a source of data are
/// found under any name that a source may have.
pub fn find(section: &str, name: &str) -> Option<&'static Key> {
    section_keys(section).find(|key| key.is_called(name)).or_else(|| sources::find(section, name))
}

/// Returns the key at `path` (`section.name`).
pub fn find_path(path: &str) -> Option<&'static Key> {
    path.split_once('.').and_then(|(section, name)| find(section, name))
}

/// The setting of a run that saves no checkpoints. Sweeps and comparisons give this setting and the next two
/// to the runs they start, because nobody needs the weights and plots of every run.
pub const NO_CHECKPOINTS: &str = "checkpoint.keep=0";

/// The setting of a run that draws no plots.
pub const NO_PLOTS: &str = "metrics.plots=false";

/// The setting of a run that resumes no other.
pub const NO_RESUME: &str = "checkpoint.resume=never";

/// Returns settings (`section.key=value`), with `others` replacing settings of the same key. A command line
/// must set each key only once.
pub fn merged_settings(settings: &[String], others: &[String]) -> Vec<String> {
    let key = |setting: &String| {
        let written =
            setting.split('=').next().unwrap_or_default().trim().trim_start_matches("--").to_owned();
        find_path(&written).map_or(written, |known| known.path.to_owned())
    };
    let replaced = |setting: &&String| others.iter().any(|other| key(other) == key(setting));
    settings.iter().filter(|setting| !replaced(setting)).chain(others).cloned().collect()
}

/// Words for a key whose name is less similar to them than another key's name.
const OTHER_WORDS: [(&str, &str); 1] = [("batch", "training.local_batch_size")];

/// Most keys suggested at once.
const MAX_SUGGESTED: usize = 3;

/// Returns the keys that an unknown `name` in `section` probably means, each with the similar name or alias.
///
/// Prefers keys of this section whose names continue this one (`warmup_steps` and `warmup_ratio` for
/// `warmup`), then the [`nearest_key`].
pub(super) fn nearest_keys(section: &str, name: &str) -> Vec<(&'static Key, &'static str)> {
    let goes_on = |key: &&Key| key.name().strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    let is_other_word = OTHER_WORDS.iter().any(|(word, _)| *word == name);
    let longer: Vec<_> = section_keys(section)
        .filter(|key| name.len() > 2 && !is_other_word && goes_on(key))
        .take(MAX_SUGGESTED)
        .map(|key| (key, key.name()))
        .collect();
    if longer.is_empty() { nearest_key(section, name).into_iter().collect() } else { longer }
}

/// Returns the key that an unknown `name` in `section` most probably means, with the similar name or alias.
///
/// Prefers a key with exactly this name in another section, then the most similar name in this section, then
/// the most similar one in any section.
pub(super) fn nearest_key(section: &str, name: &str) -> Option<(&'static Key, &'static str)> {
    let other_word = OTHER_WORDS.iter().find(|(word, _)| *word == name);
    if let Some(key) = other_word.and_then(|(_, path)| find_path(path)) {
        return Some((key, key.name()));
    }
    // Pairs of the result and the name to compare with: one for the key's name, one for each alias.
    let spellings = |key: &'static Key| {
        std::iter::once(key.name()).chain(key.aliases.iter().copied()).map(move |name| ((key, name), name))
    };
    KEYS.iter()
        .flat_map(spellings)
        .find_map(|(found, known)| (known == name).then_some(found))
        .or_else(|| nearest_by(name, section_keys(section).flat_map(spellings)))
        .or_else(|| nearest_by(name, KEYS.iter().flat_map(spellings)))
}

/// Returns the path of the key that a `name` without a section means or most probably means.
pub fn suggested_key(name: &str) -> Option<String> {
    nearest_key("", name).map(|(key, spelling)| format!("{}.{spelling}", key.section()))
}

/// Returns the section that a misspelled `name` most probably means.
pub(super) fn nearest_section(name: &str) -> Option<&'static str> {
    nearest(name, SECTIONS.iter().map(|section| section.0))
}

#[cfg(test)]
mod tests {
    use super::merged_settings;

    #[test]
    fn later_settings_replace_earlier_ones_under_any_name() {
        let texts = |texts: &[&str]| -> Vec<String> { texts.iter().map(ToString::to_string).collect() };
        let first = texts(&["training.max_steps=3", "engine.threads=1"]);
        let merged = merged_settings(&first, &texts(&["training.steps=4"]));
        assert_eq!(merged, ["engine.threads=1", "training.steps=4"]);
    }
}
