//! The tasks that xrun brings, and sets of them.

use super::Definition;
use crate::error::{Error, Result};
use crate::suggest::nearest;
use std::path::Path;

/// Names and definitions, in the order in which they are listed.
const BUILT_IN: &[(&str, &str)] = &[
    ("hellaswag", include_str!("../../../data/tasks/hellaswag.toml")),
    ("arc_easy", include_str!("../../../data/tasks/arc_easy.toml")),
    ("arc_challenge", include_str!("../../../data/tasks/arc_challenge.toml")),
    ("piqa", include_str!("../../../data/tasks/piqa.toml")),
    ("winogrande", include_str!("../../../data/tasks/winogrande.toml")),
    ("lambada", include_str!("../../../data/tasks/lambada.toml")),
    ("sciq", include_str!("../../../data/tasks/sciq.toml")),
    ("openbookqa", include_str!("../../../data/tasks/openbookqa.toml")),
    ("boolq", include_str!("../../../data/tasks/boolq.toml")),
    ("copa", include_str!("../../../data/tasks/copa.toml")),
    ("mmlu", include_str!("../../../data/tasks/mmlu.toml")),
    ("mmlu_continuation", include_str!("../../../data/tasks/mmlu_continuation.toml")),
    ("core_hellaswag_zeroshot", include_str!("../../../data/tasks/core_hellaswag_zeroshot.toml")),
    ("core_jeopardy", include_str!("../../../data/tasks/core_jeopardy.toml")),
    ("core_bigbench_qa_wikidata", include_str!("../../../data/tasks/core_bigbench_qa_wikidata.toml")),
    ("core_arc_easy", include_str!("../../../data/tasks/core_arc_easy.toml")),
    ("core_arc_challenge", include_str!("../../../data/tasks/core_arc_challenge.toml")),
    ("core_copa", include_str!("../../../data/tasks/core_copa.toml")),
    ("core_commonsense_qa", include_str!("../../../data/tasks/core_commonsense_qa.toml")),
    ("core_piqa", include_str!("../../../data/tasks/core_piqa.toml")),
    ("core_openbook_qa", include_str!("../../../data/tasks/core_openbook_qa.toml")),
    ("core_lambada_openai", include_str!("../../../data/tasks/core_lambada_openai.toml")),
    ("core_hellaswag", include_str!("../../../data/tasks/core_hellaswag.toml")),
    ("core_winograd", include_str!("../../../data/tasks/core_winograd.toml")),
    ("core_winogrande", include_str!("../../../data/tasks/core_winogrande.toml")),
    ("core_bigbench_dyck_languages", include_str!("../../../data/tasks/core_bigbench_dyck_languages.toml")),
    ("core_agi_eval_lsat_ar", include_str!("../../../data/tasks/core_agi_eval_lsat_ar.toml")),
    ("core_bigbench_cs_algorithms", include_str!("../../../data/tasks/core_bigbench_cs_algorithms.toml")),
    ("core_bigbench_operators", include_str!("../../../data/tasks/core_bigbench_operators.toml")),
    (
        "core_bigbench_repeat_copy_logic",
        include_str!("../../../data/tasks/core_bigbench_repeat_copy_logic.toml"),
    ),
    ("core_squad", include_str!("../../../data/tasks/core_squad.toml")),
    ("core_coqa", include_str!("../../../data/tasks/core_coqa.toml")),
    ("core_boolq", include_str!("../../../data/tasks/core_boolq.toml")),
    (
        "core_bigbench_language_identification",
        include_str!("../../../data/tasks/core_bigbench_language_identification.toml"),
    ),
];

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
