//! Repeats a stored comparison with seeds that it never used.

use super::arms::{Arms, PlannedArm, Program, own_binary};
use super::history::{self, fresh_seeds, same_change};
use super::question::{Options, Question, SeedChoice, confidence_per_measure};
use super::seeds::Seeds;
use super::setting::StoredExperiment;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::recipe::{self, Recipe};
use crate::results::experiment::{Arm, BASELINE, CANDIDATE, COMPARISONS, Design, Experiment, Finding};
use crate::results::find;
use crate::results::folder::{folder_name, recipe_in_run};
use std::path::{Path, PathBuf};

/// Builds the question that repeats the stored comparison `name` with fresh seeds.
///
/// # Errors
/// A usage error if there is no such comparison, or if it cannot be repeated.
pub fn confirm(results: &Path, name: &str, options: &Options) -> Result<Question> {
    let folder = find::find_comparison(results, name)?.ok_or_else(|| {
        Error::usage(format!("no comparison `{name}` in {}", results.join(COMPARISONS).display()))
    })?;
    let experiment = Experiment::read(&folder)?;
    if experiment.has_trials() {
        return Err(Error::usage(format!(
            "{} compares the speed of trials; --confirm repeats pairs of runs with the same seed",
            folder.display()
        )));
    }
    question(&experiment, options, &history::stored(results)?, results)
}

/// Builds the question that repeats a stored comparison: the same recipes, measures, design and number of
/// pairs, with seeds that no stored comparison of this change has used. Seeds from the options are taken if
/// they are fresh.
///
/// # Errors
/// A usage error if the comparison did not finish, if a seed was used before, or if neither the recipes nor
/// the stored runs can reproduce the runs.
fn question(
    comparison: &Experiment,
    options: &Options,
    stored: &[StoredExperiment],
    results: &Path,
) -> Result<Question> {
    let confirmed = comparison.full_name();
    if !comparison.finished {
        return Err(Error::usage(format!(
            "{confirmed} did not finish, so there is no verdict to confirm; run its own command again to \
             continue it"
        )));
    }
    let arms = [(BASELINE, comparison.baseline()), (CANDIDATE, comparison.candidate())];
    let [baseline, candidate] = arms.map(|(at, recorded)| {
        let runs: Vec<&str> = comparison.runs_in(at).filter_map(|run| run.run.as_deref()).collect();
        arm(recorded, &runs, results)
    });
    let arms = Arms::from_planned(baseline?, candidate?);
    let first = comparison.pairs().next().and_then(|pair| {
        let [Some(baseline), Some(candidate)] = pair.seeds() else { return None };
        Some([baseline, candidate])
    });
    let base_seeds = first.ok_or_else(|| Error::usage(format!("{confirmed} has no pairs")))?;
    let earlier = comparison.change().map(|change| same_change(stored, change)).unwrap_or_default();
    let count = comparison.design.max_pairs();
    let fresh = |count| Ok::<_, Error>((SeedChoice::Fresh, fresh_seeds(count, base_seeds, &earlier)?));
    let (choice, seeds) = match options.seeds.as_deref().map(Seeds::parse).transpose()? {
        None => fresh(count)?,
        Some(Seeds::Count(count)) => fresh(count)?,
        Some(named @ Seeds::Named(_)) => {
            let seeds = named.pairs(base_seeds)?;
            let used = earlier.iter().find_map(|old| {
                let used = old.seeds();
                seeds.iter().flatten().find(|seed| used.contains(seed)).map(|seed| (*seed, old.full_name()))
            });
            if let Some((seed, name)) = used {
                return Err(Error::usage(format!(
                    "--seeds: {name} has used the seed {seed}; a confirmation needs seeds that no stored \
                     comparison of this change has used. Leave out --seeds to have them chosen"
                )));
            }
            (SeedChoice::Named, seeds)
        }
    };
    let design = match &comparison.design {
        Design::Trials { .. } | Design::Pairs { .. } => Design::Pairs { pairs: seeds.len() },
        Design::Sequential { .. } => Design::Sequential { max_pairs: seeds.len(), looks: Vec::new() },
    };
    let each = comparison.findings.iter().map(|finding| &finding.measure);
    let each = confidence_per_measure(comparison.confidence, each);
    let findings = comparison.findings.iter();
    let findings = findings.map(|old| Finding::unjudged(old.measure.clone(), old.min_effect, each));
    let question = Question {
        name: options.name.as_deref().map_or_else(|| Ok(comparison.name.clone()), folder_name)?,
        arms,
        findings: findings.collect(),
        curves: None,
        base_seeds,
        seeds,
        choice,
        design,
        confidence: comparison.confidence,
        hypothesis: options.hypothesis.clone().or_else(|| comparison.hypothesis.clone()),
        predicts: options.predicts.clone(),
        confirms: Some(confirmed),
        fixed_seeds: Vec::new(),
        notes: Vec::new(),
    };
    question.checked()
}

/// Restores an arm of a stored comparison: from its recipe if that still gives the same runs, else from the
/// copy of the recipe in one of its stored runs.
fn arm(arm: &Arm, runs: &[&str], results: &Path) -> Result<PlannedArm> {
    let recorded = arm.recipe.iter().map(PathBuf::from);
    let copies = runs.iter().filter_map(|run| recipe_in_run(&results.join(run)).ok());
    let same = |path: PathBuf| -> Option<(PathBuf, Recipe)> {
        let recipe = recipe::load(&path, &arm.settings, recipe::environment(), &Machine::none()).ok()?;
        let hash = recipe.hash_with(&["training.seed=0".to_owned()]).ok()?;
        (Some(&hash) == arm.seedless_hash.as_ref()).then_some((path, recipe))
    };
    let (path, recipe) = recorded.chain(copies).find_map(same).ok_or_else(|| {
        Error::usage(format!(
            "cannot repeat {}: {} has changed since or cannot be read, and none of its runs is in {}",
            arm.label,
            arm.recipe.as_deref().unwrap_or("its recipe"),
            results.display()
        ))
    })?;
    let program = Program::Xrun { binary: own_binary()?, recipe: path, settings: arm.settings.clone() };
    Ok(PlannedArm { binary: arm.binary.clone(), recipe: Some(recipe), ..PlannedArm::recorded(arm, program) })
}
