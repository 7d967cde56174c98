//! Short labels of runs and arms that are shown together, made from what differs between them.
//!
//! Lists, curves, comparisons and the legends of figures all take their labels from here:
//!
//! 1. the name: `job.label` of the recipe or, without it, the recipe's name;
//! 2. the keys that differ, words such as `optimizer.name` before numbers, and keys that change what is
//!    trained before the others. A key is used only if it tells apart runs that the parts before it do not;
//! 3. the seed, where runs differ in nothing else;
//! 4. the name of the run, if even the seed is the same.

use crate::format::shortened;
use crate::recipe::{Class, Type, UNSET, definition_label, find_path, plain_text};
use std::collections::{HashMap, HashSet};

/// The key with the label that a recipe gives itself.
pub const LABEL: &str = "job.label";

/// The key that sets repetitions of a run apart.
const SEED: &str = "training.seed";

/// The longest part of a label, in characters. Longer values keep their beginning if that still sets them
/// apart.
const MAX_PART: usize = 28;

/// The keys of a stored recipe in its order, each with its value as TOML; `None` for an unset key.
pub type Settings = [(String, Option<String>)];

/// A run or an arm to label.
#[derive(Clone, Copy, Debug)]
pub struct Labeled<'a> {
    /// The name of the recipe.
    pub recipe: &'a str,
    /// The name of the run, which no other one has.
    pub run: &'a str,
    pub settings: &'a Settings,
}

/// The label of a run or an arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Tells the run from all others that are shown.
    pub text: String,
    /// The text without the seed, which runs share that differ only in the seed.
    pub group: String,
}

/// A part of the labels, with its value for every run.
struct Part {
    /// The recipe key; `None` for the name.
    key: Option<String>,
    values: Vec<String>,
}

/// Returns the labels of runs or arms that are shown together, in their order.
pub fn labels(shown: &[Labeled<'_>]) -> Vec<Label> {
    let names: Vec<String> = shown.iter().map(name).collect();
    let mut groups = vec![0; shown.len()];
    let mut parts: Vec<Part> = Vec::new();
    let mut add = |part: Part| {
        let refined = numbered(groups.iter().zip(&part.values));
        if refined.iter().max() > groups.iter().max() {
            groups = refined;
            parts.push(part);
        }
    };
    add(Part { key: None, values: names.clone() });
    let settings: Vec<&Settings> = shown.iter().map(|one| one.settings).collect();
    let mut keys = differing_keys(&settings);
    keys.retain(|key| *key != SEED && find_path(key).is_none_or(|key| key.class != Class::Bookkeeping));
    keys.sort_by_key(|key| rank(key));
    for key in keys {
        let values = settings.iter().map(|settings| value(settings, key)).collect();
        add(Part { key: Some(key.to_owned()), values });
    }
    let texts: Vec<Vec<String>> = parts.iter().map(|part| part.texts(&parts)).collect();
    let group = |at: usize| match texts.is_empty() {
        true => names[at].clone(),
        false => texts.iter().map(|texts| texts[at].as_str()).collect::<Vec<_>>().join(", "),
    };
    let seeds: Vec<String> = settings.iter().map(|settings| value(settings, SEED)).collect();
    let by_seed = numbered(groups.iter().zip(&seeds));
    let count = |of: &[usize], at: usize| of.iter().filter(|other| **other == of[at]).count();
    let label = |at: usize| {
        let group = group(at);
        let (alike, same_seed) = (count(&groups, at), count(&by_seed, at));
        let mut text = group.clone();
        if alike > same_seed {
            text += &format!(", seed {}", seeds[at]);
        }
        if same_seed > 1 {
            text += &format!(", {}", shown[at].run);
        }
        Label { text, group }
    };
    (0..shown.len()).map(label).collect()
}

/// Returns the keys that differ among stored recipes, in the order of the recipes. A key that a recipe leaves
/// out counts with its implied value.
pub fn differing_keys<'a>(stored: &[&'a Settings]) -> Vec<&'a str> {
    let known: Vec<&Settings> = stored.iter().copied().filter(|settings| !settings.is_empty()).collect();
    let (mut keys, mut values) = (Vec::new(), HashMap::<&str, Vec<&str>>::new());
    for (key, value) in known.iter().flat_map(|settings| *settings) {
        let values = values.entry(key).or_insert_with(|| {
            keys.push(key.as_str());
            Vec::new()
        });
        values.push(value.as_deref().unwrap_or(UNSET));
    }
    let differs = |key: &&str| {
        let values = &values[key];
        let implied = find_path(key).and_then(|key| key.implied);
        values.iter().any(|value| *value != values[0])
            || (values.len() < known.len() && implied != Some(values[0]))
    };
    keys.into_iter().filter(differs).collect()
}

/// Numbers values by their first occurrence, from 0.
fn numbered<T: Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Vec<usize> {
    let mut known = HashMap::new();
    values
        .map(|value| {
            let next = known.len();
            *known.entry(value).or_insert(next)
        })
        .collect()
}

/// Returns the label that the recipe gives itself on one line or, without it, the recipe's name.
fn name(one: &Labeled<'_>) -> String {
    let own = one.settings.iter().find(|(key, _)| key == LABEL).and_then(|(_, value)| value.as_deref());
    let own = own.map(|own| plain_text(own).split_whitespace().collect::<Vec<_>>().join(" "));
    own.filter(|own| !own.is_empty()).unwrap_or_else(|| one.recipe.to_owned())
}

/// Returns the value of a key without its TOML quotes.
fn value(settings: &Settings, key: &str) -> String {
    let stored = settings.iter().find(|(path, _)| path == key).map(|(_, value)| value.as_deref());
    let implied = || find_path(key).and_then(|key| key.implied);
    let text = plain_text(stored.unwrap_or_else(implied).unwrap_or(UNSET)).into_owned();
    match find_path(key).map(|key| key.kind) {
        Some(Type::ModelText) if text.contains('\n') => definition_label(&text),
        _ => text,
    }
}

/// Orders keys by how well they name a difference.
fn rank(key: &str) -> (Class, bool) {
    let Some(key) = find_path(key) else { return (Class::Training, true) };
    let is_word = matches!(key.kind, Type::Word(_) | Type::WordOrFormula(..));
    (key.class, !is_word)
}

impl Part {
    /// Returns the text of this part of the label of every run.
    fn texts(&self, parts: &[Self]) -> Vec<String> {
        let distinct = |texts: &[String]| texts.iter().collect::<HashSet<_>>().len();
        let short: Vec<String> = self.values.iter().map(|value| shortened(value, MAX_PART)).collect();
        let values = if distinct(&short) == distinct(&self.values) { &short } else { &self.values };
        let Some(key) = &self.key else { return values.clone() };
        // The keys of sources differ only in the name before the last word.
        let last = |key: &str| match key.strip_prefix("data.sources.") {
            Some(source_key) => source_key.to_owned(),
            None => key.rsplit('.').next().unwrap_or_default().to_owned(),
        };
        let own = last(key);
        let others = parts.iter().filter_map(|part| part.key.as_ref()).filter(|other| *other != key);
        let is_shared = others.into_iter().any(|other| last(other) == own);
        let text = |value: &String| match (own.as_str(), is_shared) {
            // `optimizer.name` is the name of a thing, which needs no other word.
            ("name", false) => value.clone(),
            (_, false) => format!("{own} {value}"),
            (_, true) => format!("{key} {value}"),
        };
        values.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests;
