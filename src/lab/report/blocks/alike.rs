//! Checks that the rows of a table can be compared: rows must not differ in more than the block declares.

use super::kept::KeptRun;
use super::provenance;
use super::text::{code, did_you_mean, distinct, plain};
use super::why::Why;
use crate::recipe::{Class, KEYS, SECTIONS, find_path};
use std::collections::{BTreeMap, BTreeSet};

/// What rows may differ in besides keys and sections of recipes.
const ASPECTS: [&str; 5] = ["device", "build", "corpus", "fork", "training"];

/// Facts that must be equal in all rows of a table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Device class, build, corpus, and the training and measuring keys by path.
    pub facts: BTreeMap<String, String>,
    /// True if a missing fact means unset rather than unknown.
    pub complete: bool,
}

/// Checks that `across` may name this: an aspect, or a section or key of recipes.
pub fn check_name(name: &str) -> Result<(), String> {
    let sections = SECTIONS.iter().map(|(section, _)| *section);
    if ASPECTS.contains(&name) || sections.clone().any(|section| section == name) || find_path(name).is_some()
    {
        return Ok(());
    }
    let candidates = ASPECTS.into_iter().chain(sections).chain(KEYS.iter().map(|key| key.path));
    let near = did_you_mean(name, candidates);
    Err(format!("`across` is {}, or a section or key of recipes, not `{name}`{near}", ASPECTS.join(", ")))
}

/// Returns the facts of a run. A key that recipes no longer have counts as a training key.
pub fn run_facts(run: &KeptRun) -> Row {
    let class = |key: &str| find_path(key).map_or(Class::Training, |key| key.class);
    let mut facts = BTreeMap::new();
    for (key, value) in &run.recipe_values {
        let value = match class(key) {
            Class::Training => value.clone(),
            // The number of batches is the same, but they are different batches.
            Class::Measuring if run.took_first_batches() => format!("{value}, the first"),
            Class::Measuring => value.clone(),
            Class::Execution | Class::Bookkeeping => continue,
        };
        facts.insert(key.clone(), value);
    }
    facts.insert("device".to_owned(), provenance::device(run));
    let profiles = run.environments.iter().map(|e| e.build.profile.as_deref().unwrap_or("unknown"));
    facts.insert("build".to_owned(), distinct(profiles).join(" then "));
    let corpus = run.summary.corpus_hash.as_deref().unwrap_or("unknown");
    facts.insert("corpus".to_owned(), corpus.get(..8).unwrap_or(corpus).to_owned());
    // Warm-up, data and tokens of a fork come from two runs, so none of its settings describes them.
    facts.insert("fork".to_owned(), run.fork.clone().unwrap_or_else(|| "none".to_owned()));
    Row { facts, complete: true }
}

/// Returns the facts of a run without its seeds, in which runs that repeat a recipe differ.
pub fn without_seeds(run: &KeptRun) -> Row {
    let mut row = run_facts(run);
    row.facts.retain(|key, _| !is_seed(key));
    row
}

/// Returns true for a key that sets only the random numbers of training.
pub fn is_seed(key: &str) -> bool {
    key == "training.seed" || (key.starts_with("seeds.") && key != "seeds.scheme")
}

/// Returns the facts that a table declares as changed without `across`: these keys, and facts that depend on
/// them. A key inside another, such as `optimizer.groups.matrix.lr`, is part of the outer key's value.
fn named<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let outer = |key: &str| match key.match_indices('.').nth(1) {
        Some((end, _)) => key[..end].to_owned(),
        None => key.to_owned(),
    };
    let mut across: Vec<String> = keys.into_iter().map(outer).collect();
    let follows = [("data.", "corpus"), ("engine.device", "device"), ("parallelism.world_size", "device")];
    for (key, aspect) in follows {
        if across.iter().any(|name| name.starts_with(key)) {
            across.push(aspect.to_owned());
        }
    }
    across
}

/// Returns what rows may differ in: what a block declares, and what its `changed` keys explain.
pub fn across<'a>(declared: &[String], changed: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    declared.iter().cloned().chain(named(changed)).collect()
}

/// Compares rows. Returns a sentence about the differences that the block's `across` allows, and errors for
/// the others.
pub fn compare(rows: &[Row], across: &[String]) -> (Option<String>, Vec<Why>) {
    let (mut said, mut unsaid) = (Vec::new(), Vec::new());
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.facts.keys()).collect();
    for name in names {
        let value = |row: &Row| match row.facts.get(name) {
            Some(value) => Some(value.clone()),
            None => row.complete.then(|| "unset".to_owned()),
        };
        let values = distinct(rows.iter().filter_map(value));
        if values.len() > 1 {
            let list = if covers(across, name) { &mut said } else { &mut unsaid };
            list.push((name, values));
        }
    }
    let sentence = (!said.is_empty()).then(|| {
        let differing = said.iter().map(|(name, values)| {
            let name = if ASPECTS.contains(&name.as_str()) { plain(name) } else { code(name) };
            format!("{name} ({})", values.iter().map(|value| plain(value)).collect::<Vec<_>>().join(", "))
        });
        format!("Rows differ in {}.\n", differing.collect::<Vec<_>>().join(", "))
    });
    let why = (!unsaid.is_empty()).then(|| {
        let differing: Vec<String> =
            unsaid.iter().map(|(name, values)| format!("{name} ({})", values.join(", "))).collect();
        let names = unsaid.iter().map(|(name, _)| *name);
        let across: Vec<&str> = across.iter().chain(names).map(String::as_str).collect();
        Why::fixed_by(
            format!("the rows differ in {}, which the block does not allow", differing.join(", ")),
            format!(
                "select rows that agree, or write across=\"{}\" into the block's first line and render it",
                across.join(",")
            ),
        )
    });
    (sentence, why.into_iter().collect())
}

/// Returns true if `across` allows rows to differ in this fact.
fn covers(across: &[String], fact: &str) -> bool {
    let section = fact.split_once('.').map(|(section, _)| section);
    across.iter().any(|word| {
        word == fact
            || section == Some(word.as_str())
            || match word.as_str() {
                "training" => {
                    section.is_some() && find_path(fact).is_none_or(|key| key.class == Class::Training)
                }
                // Another corpus changes the values of the keys that name it.
                "corpus" => section == Some("data"),
                _ => false,
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(facts: &[(&str, &str)]) -> Row {
        let facts = facts.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Row { facts, complete: true }
    }

    #[test]
    fn rows_that_differ_must_say_so() {
        let rows = [
            row(&[("device", "NVIDIA H200"), ("training.dtype", "bf16"), ("model.dim", "64"), ("x.y", "1")]),
            row(&[("device", "cpu avx2"), ("training.dtype", "fp32"), ("model.dim", "64")]),
        ];
        let across = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (said, why) = compare(&rows, &across(&["device"]));
        assert_eq!(said.unwrap(), "Rows differ in device (NVIDIA H200, cpu avx2).\n");
        assert!(why[0].why.contains("training.dtype (bf16, fp32), x.y (1, unset)"), "{why:?}");
        assert!(why[0].fix.as_ref().unwrap().contains("across=\"device,training.dtype,x.y\""));
        assert_eq!(compare(&rows, &across(&["device", "training"])).1, []);
        assert_eq!(compare(&rows, &across(&["device", "training.dtype", "x"])).1, []);
        assert_eq!(compare(&rows[..1], &[]), (None, Vec::new()));
        let mut partial = rows;
        partial[1] = Row { complete: false, ..row(&[("device", "NVIDIA H200")]) };
        assert_eq!(compare(&partial, &[]), (None, Vec::new()), "what is unknown differs from nothing");
    }

    #[test]
    fn another_corpus_may_be_named_by_its_keys() {
        assert!(covers(&["corpus".to_owned()], "data.corpus"));
        assert!(!covers(&["training".to_owned()], "corpus"));
        assert!(!covers(&["training".to_owned()], "validation.steps"), "it is no key of training");
        assert!(covers(&["validation.steps".to_owned()], "validation.steps"));
        assert!(!covers(&["device".to_owned()], "build"));
        assert_eq!(named(["data.corpus", "model.dim"]), ["data.corpus", "model.dim", "corpus"]);
        assert_eq!(named(["engine.devices"]), ["engine.devices", "device"]);
        assert!(
            check_name("model").is_ok()
                && check_name("training.dtype").is_ok()
                && check_name("modle").is_err()
        );
    }
}
