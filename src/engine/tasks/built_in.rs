//! The tasks that xrun brings, and sets of them.

use super::Definition;
use crate::error::{Error, Result};
use crate::suggest::nearest;
use std::path::Path;

// The constant `BUILT_IN`: names and definitions of the files in `data/tasks`, in the order of their names.
include!(concat!(env!("OUT_DIR"), "/tasks.rs"));

/// What has signal below a billion parameters.
const SMALL: &[&str] = &[
    "hellaswag",
    "arc_easy",
    "arc_challenge",
    "piqa",
    "winogrande",
    "lambada",
    "sciq",
    "openbookqa",
    "boolq",
    "copa",
    "mmlu_continuation",
];

/// The tasks of DCLM's CORE, in the order of nanochat's `core.yaml`.
const CORE: &[&str] = &[
    "core_hellaswag_zeroshot",
    "core_jeopardy",
    "core_bigbench_qa_wikidata",
    "core_arc_easy",
    "core_arc_challenge",
    "core_copa",
    "core_commonsense_qa",
    "core_piqa",
    "core_openbook_qa",
    "core_lambada_openai",
    "core_hellaswag",
    "core_winograd",
    "core_winogrande",
    "core_bigbench_dyck_languages",
    "core_agi_eval_lsat_ar",
    "core_bigbench_cs_algorithms",
    "core_bigbench_operators",
    "core_bigbench_repeat_copy_logic",
    "core_squad",
    "core_coqa",
    "core_boolq",
    "core_bigbench_language_identification",
];

/// Named sets of tasks.
pub const SETS: &[(&str, &[&str])] = &[("small", SMALL), ("core", CORE)];

/// Returns the names of the tasks that xrun brings.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// Returns the tasks of a set, if there is one of this name.
pub fn of_set(name: &str) -> Option<&'static [&'static str]> {
    SETS.iter().find(|(set, _)| *set == name).map(|(_, tasks)| *tasks)
}

/// Returns the definition of a task that xrun brings.
///
/// # Errors
/// If there is none of this name.
pub fn find(name: &str) -> Result<Definition> {
    let found = BUILT_IN.iter().find(|(own, _)| *own == name);
    let Some((_, text)) = found else {
        let known = || names().chain(SETS.iter().map(|(set, _)| *set));
        let hint = match nearest(name, known()) {
            Some(near) => format!("did you mean {near}?"),
            None => "`xrun tasks list` shows them".to_owned(),
        };
        return Err(Error::usage(format!(
            "no task or set of tasks is called {name:?}; {hint} A definition of your own is named by its path, ending in .toml"
        )));
    };
    Definition::parse(text, &format!("data/tasks/{name}.toml"))
}

/// Returns the definitions of tasks, given by names, by names of sets, and by paths of definitions. A task
/// that is named twice is returned once.
///
/// # Errors
/// If there is none of a name, or a definition is wrong.
pub fn select<'n>(wanted: impl IntoIterator<Item = &'n str>) -> Result<Vec<Definition>> {
    let mut found: Vec<Definition> = Vec::new();
    let mut add = |definition: Definition| match found.iter().find(|one| one.name == definition.name) {
        None => {
            found.push(definition);
            Ok(())
        }
        Some(one) if one.hash == definition.hash => Ok(()),
        Some(one) => Err(Error::usage(format!(
            "{} and {} both define the task {:?}; rename one of them (name)",
            one.origin, definition.origin, definition.name
        ))),
    };
    for name in wanted {
        match of_set(name) {
            Some(tasks) => tasks.iter().try_for_each(|task| add(find(task)?))?,
            None if name.ends_with(".toml") => add(Definition::read(Path::new(name))?)?,
            None => add(find(name)?)?,
        }
    }
    Ok(found)
}
