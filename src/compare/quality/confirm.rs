//! The question of a stored comparison again, with seeds that it never saw.

use super::history::{StoredComparison, fresh_seeds, of_change};
use super::request::{AskedMeasure, QualityArmRequest, QualityOptions, Question};
use super::seeds::Seeds;
use crate::compare::arms::changes_between;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::recipe::{self, COPY_HEADER, Recipe};
use crate::results::folder::{RECIPE, RESOLVED, folder_name};
use crate::results::quality::{Design, Pair, PairedRun, QualityArm, QualityComparison};
use std::path::{Path, PathBuf};

/// Returns the question that repeats a stored comparison: the same recipes, measures and design, and as many
/// pairs of seeds that no stored comparison of this change has used; or the asked ones, if they are fresh.
///
/// # Errors
/// A usage error for a comparison that did not finish, for seeds that were used, and where neither the
/// recipes nor the stored runs are there to make the same runs from.
pub fn question(
    comparison: &QualityComparison,
    options: &QualityOptions,
    stored: &[StoredComparison],
    results: &Path,
) -> Result<Question> {
    let confirmed = comparison.full_name();
    if !comparison.finished {
        return Err(Error::usage(format!(
            "{confirmed} did not finish, so there is no verdict to confirm; its own command goes on with it"
        )));
    }
    let runs = |arm: fn(&Pair) -> &PairedRun| -> Vec<&str> {
        comparison.pairs.iter().filter_map(|pair| arm(pair).run.as_deref()).collect()
    };
    let baseline = arm(&comparison.baseline, &runs(|pair| &pair.baseline), results)?;
    let candidate = arm(&comparison.candidate, &runs(|pair| &pair.candidate), results)?;
    let first = comparison.pairs.first().ok_or_else(|| Error::usage(format!("{confirmed} has no pairs")))?;
    let base_seeds = [first.baseline.seed, first.candidate.seed];
    let earlier = of_change(stored, comparison.change());
    let count = match &comparison.design {
        Design::Fixed { pairs } | Design::Sequential { max_pairs: pairs, .. } => *pairs,
    };
    let seeds = match options.seeds.as_deref().map(Seeds::parse).transpose()? {
        None => fresh_seeds(count, base_seeds, &earlier)?,
        Some(Seeds::Count(count)) => fresh_seeds(count, base_seeds, &earlier)?,
        Some(named @ Seeds::Named(_)) => {
            let seeds = named.pairs(base_seeds)?;
            let used = earlier.iter().find_map(|old| {
                let used = old.seeds();
                seeds.iter().flatten().find(|seed| used.contains(seed)).map(|seed| (*seed, old.full_name()))
            });
            if let Some((seed, name)) = used {
                return Err(Error::usage(format!(
                    "--seeds: {name} has used the seed {seed}; a confirmation has seeds that no stored comparison of \
                     this change saw. Without --seeds they are chosen"
                )));
            }
            seeds
        }
    };
    let design = match &comparison.design {
        Design::Fixed { .. } => Design::Fixed { pairs: seeds.len() },
        Design::Sequential { .. } => Design::Sequential { max_pairs: seeds.len(), looks: Vec::new() },
    };
    let measures = comparison.measures.iter();
    let measures = measures
        .map(|judged| AskedMeasure { measure: judged.measure.clone(), min_effect: judged.min_effect })
        .collect();
    let question = Question {
        name: options.name.as_deref().map_or_else(|| Ok(comparison.name.clone()), folder_name)?,
        changes: changes_between(&baseline.recipe, &candidate.recipe),
        baseline,
        candidate,
        measures,
        base_seeds,
        seeds,
        design,
        confidence: comparison.confidence,
        hypothesis: options.hypothesis.clone().or_else(|| comparison.hypothesis.clone()),
        predicts: options.predicts.clone(),
        confirms: Some(confirmed),
        notes: Vec::new(),
    };
    question.checked()
}

/// Returns an arm of a stored comparison: its recipe where it still gives the same runs, else that of its
/// stored runs.
fn arm(arm: &QualityArm, runs: &[&str], results: &Path) -> Result<QualityArmRequest> {
    let recorded = std::iter::once(PathBuf::from(&arm.recipe));
    let copies = runs.iter().map(|run| recipe_of_run(&results.join(run)));
    let same = |path: PathBuf| -> Option<(PathBuf, Recipe)> {
        let recipe = recipe::load(&path, &arm.settings, recipe::environment(), &Machine::none()).ok()?;
        let hash = recipe.hash_with(&["training.seed=0".to_owned()]).ok()?;
        (hash == arm.recipe_hash).then_some((path, recipe))
    };
    let (path, recipe) = recorded.chain(copies).find_map(same).ok_or_else(|| {
        Error::usage(format!(
            "{} is not what was compared: {} has changed since, or cannot be read, and no run of it is in {}",
            arm.label,
            arm.recipe,
            results.display()
        ))
    })?;
    Ok(QualityArmRequest {
        label: arm.label.clone(),
        command: arm.command.clone(),
        path,
        settings: arm.settings.clone(),
        recipe,
    })
}

/// Returns the recipe in the folder of a run: the copy of what was set, or the resolved one.
fn recipe_of_run(run: &Path) -> PathBuf {
    let copy = run.join(RECIPE);
    match std::fs::read_to_string(&copy).is_ok_and(|text| text.starts_with(COPY_HEADER)) {
        true => copy,
        false => run.join(RESOLVED),
    }
}
