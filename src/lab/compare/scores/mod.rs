//! Compares stored evaluations: the scores of two models, or of the seeds of two recipes, task by task.
//!
//! ```text
//! folders ─▶ Side (one recipe, several seeds) ─▶ SharedTask (the same items) ─▶ Judged ─▶ ScoreFinding ─▶ text
//! ```

mod finding;
mod mean;
mod shared;
mod side;
#[cfg(test)]
mod tests;
mod text;
mod wins;

pub use finding::{ScoreFinding, Units};
pub use side::stored_recipe;

use crate::error::{Error, Result};
use crate::statistics::{Pairing, Verdict};
use serde::Serialize;
use side::Side;
use std::path::Path;

/// The probability that all intervals hold, unless the user says otherwise.
pub const SCORES_CONFIDENCE: f64 = 0.95;

/// Which evaluations to compare, and how.
#[derive(Clone, Copy, Debug)]
pub struct ScoresRequest<'a> {
    /// The results folder.
    pub results: &'a Path,
    /// Folders of the evaluations of both sides, or their names in the results folder, the baseline's first;
    /// several of a side are separated by commas.
    pub sides: [&'a str; 2],
    /// The tasks to judge; `None` for all that every evaluation has.
    pub tasks: Option<&'a [String]>,
    /// Probability that all intervals hold.
    pub confidence: f64,
    /// The smallest difference that matters, in the unit of each figure.
    pub min_effect: f64,
}

/// Two sides, compared.
#[derive(Clone, Debug, Serialize)]
pub struct ScoreComparison {
    /// Folders of the evaluations of both sides, the baseline's first.
    pub sides: [Vec<String>; 2],
    /// Whether the verdicts are on recipes or on two checkpoints.
    pub units: Units,
    /// Probability that all intervals hold.
    pub confidence: f64,
    /// The smallest difference that matters.
    pub min_effect: f64,
    /// Number of questions that share the error, with the mean of the tasks.
    pub questions: usize,
    /// A finding for each task.
    pub tasks: Vec<ScoreFinding>,
    /// The mean over the tasks of their scores above chance; `None` unless there are several tasks and all
    /// have a chance level.
    pub mean: Option<ScoreFinding>,
    /// What the findings must be read with.
    pub notes: Vec<String>,
}

impl ScoreComparison {
    /// Returns all findings.
    pub fn findings(&self) -> impl Iterator<Item = &ScoreFinding> {
        self.tasks.iter().chain(&self.mean)
    }

    /// Returns what the candidate is worse in.
    pub fn worse(&self) -> Vec<&str> {
        let worse = self.findings().filter(|finding| finding.verdict == Verdict::Worse);
        worse.map(|finding| finding.task.as_str()).collect()
    }
}

/// Compares stored evaluations.
///
/// # Errors
/// If an evaluation cannot be read, its rows were changed, the evaluations of a side are not of seeds of one
/// recipe, or the sides were asked other items, with other prompts, or judge by other rules.
pub fn compare_scores(request: &ScoresRequest<'_>) -> Result<ScoreComparison> {
    let read = |names| Side::read(request.results, names);
    let [mut baseline, mut candidate] = [read(request.sides[0])?, read(request.sides[1])?];
    if (baseline.evaluations.len() == 1) != (candidate.evaluations.len() == 1) {
        return Err(Error::usage(format!(
            "one side has a single evaluation and the other {}; a verdict on recipes needs several seeds on both sides, \
             and one on two checkpoints needs one on each",
            baseline.evaluations.len().max(candidate.evaluations.len())
        )));
    }
    let pairing = side::pair(&mut baseline, &mut candidate);
    let units = match (baseline.evaluations.len(), pairing) {
        (1, _) => Units::Checkpoints,
        (_, Pairing::SameSeeds) => Units::PairedSeeds,
        (_, Pairing::Independent) => Units::Seeds,
    };
    let sides = [&baseline, &candidate];
    let (shared, mut notes) = shared::tasks(sides, request.tasks)?;
    let mut findings: Vec<finding::Judged> =
        shared.iter().map(|task| task.judged(pairing)).collect::<Result<_>>()?;
    let mean = mean::mean_above_chance(&shared, pairing);
    let questions = findings.len() + usize::from(mean.is_some());
    let rule = finding::Rule { questions, confidence: request.confidence, min_effect: request.min_effect };
    notes.extend(side::notes(sides, request.results));
    Ok(ScoreComparison {
        sides: sides.map(Side::names),
        units,
        confidence: request.confidence,
        min_effect: request.min_effect,
        questions,
        tasks: findings.drain(..).map(|judged| judged.finding(&rule)).collect(),
        mean: mean.map(|judged| judged.finding(&rule)),
        notes,
    })
}
