//! Compares a comparison's record with the ledger, which its question and its answer are in.

use crate::compare::family::{Family, answer_in_words};
use crate::error::Result;
use crate::results::experiment::Experiment;
use crate::results::ledger::{Ledger, Place, QuestionLine};
use std::collections::BTreeSet;
use std::path::Path;

/// Returns a sentence for each contradiction between the comparison in `folder`, the ledger of its results
/// folder, and the name of the folder itself. A ledger without a line about it contradicts nothing.
///
/// # Errors
/// If the ledger cannot be read.
pub fn contradictions_of_place(recorded: &Experiment, folder: &Path, results: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    let place = format!("{}/{}", name(folder.parent()), name(Some(folder)));
    if place != recorded.full_name() {
        found.push(format!("it is the record of {}, and its folder is {place}", recorded.full_name()));
    }
    found.extend(contradictions(recorded, &Ledger::read(results)?));
    Ok(found)
}

fn contradictions(recorded: &Experiment, ledger: &Ledger) -> Vec<String> {
    let mut found = Vec::new();
    let own = recorded.full_name();
    let lines: Vec<&(Place, QuestionLine)> =
        ledger.questions().iter().filter(|(_, line)| line.comparison == own).collect();
    let Some((_, asked)) = lines.first() else { return found };
    if recorded.question.as_ref() != Some(&asked.question) {
        found.push("its question is not the one in the ledger".to_owned());
    }
    let answer = lines.iter().rev().find_map(|(_, line)| line.answer.as_ref());
    let said = answer_in_words(recorded);
    if let Some(answer) = answer.filter(|answer| recorded.finished && **answer != said) {
        found.push(format!("it says {said}, and the ledger {answer}"));
    }
    let family = Family::find(&asked.arms, ledger, &[]);
    let Some(since) = family.first_asked(&asked.question).and_then(|first| first.place.as_ref()) else {
        return found;
    };
    let began = |run: &&str| ledger.began(run).is_none_or(|began| began < since);
    let is_exploratory = !recorded.exploratory_reasons().is_empty();
    let older = recorded.run_names().iter().filter(|run| began(run)).count();
    if !recorded.has_trials() && !is_exploratory && (older > 0 || !asked.reasons.is_empty()) {
        let why = match asked.reasons.first() {
            Some(reason) => reason.clone(),
            None => format!("{older} of its runs are older than its question"),
        };
        found.push(format!("it says that it is confirmatory, and by the ledger {why}"));
    }
    let answered: BTreeSet<&str> = ledger
        .questions()
        .iter()
        .filter(|(place, line)| place < since && line.answer.is_some())
        .map(|(_, line)| line.comparison.as_str())
        .collect();
    let earlier = family.earlier.iter().filter(|one| {
        let is_before = one.place.as_ref().is_some_and(|place| place < since);
        is_before && one.shares_error && one.has_verdict() && answered.contains(one.line.comparison.as_str())
    });
    let earlier: BTreeSet<&str> = earlier.map(|one| one.line.question.as_str()).collect();
    if recorded.earlier_questions < earlier.len() {
        found.push(format!(
            "it says that {} questions of its family had been answered before, and the ledger has {}",
            recorded.earlier_questions,
            earlier.len()
        ));
    }
    found
}
