//! Creates the record of a comparison and its folder before the first run, and tells whether an earlier
//! record asks the same.

use super::arms::{PlannedArm, Program, hash_file};
use super::judge;
use super::question::Question;
use crate::error::Result;
use crate::plan::Plan;
use crate::recipe::{Change, Recipe};
use crate::results::experiment::{
    Arm, BASELINE, Budget, CANDIDATE, COMPARISONS, Design, Experiment, ExperimentRun, Intent, Provenance,
    RegisteredPrediction,
};
use crate::results::folder::{self, create_timed, read_summary};
use crate::results::ledger::Ledger;
use crate::results::provenance::Build;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Makes the record of a question before anything has run. `runs` are the planned runs in order.
///
/// # Errors
/// If the hash of a recipe cannot be computed.
pub fn from_question(question: &Question, runs: Vec<ExperimentRun>) -> Result<Experiment> {
    let mut arms = question.arms.both().map(planned_arm).to_vec();
    if !matches!(question.design, Design::Trials { .. }) {
        for (arm, hash) in arms.iter_mut().zip(question.change()?) {
            arm.seedless_hash = Some(hash);
        }
    }
    let build = Build::current();
    let in_words = |change: &Change| format!("{}: {} → {}", change.key, change.old, change.new);
    Ok(Experiment {
        name: question.name.clone(),
        hypothesis: question.hypothesis.clone(),
        prediction: question
            .predicts
            .as_ref()
            .map(|prediction| RegisteredPrediction { text: prediction.text.clone(), held: None }),
        intent: if question.confirms.is_some() { Intent::Confirmatory } else { Intent::Exploratory },
        confirms: question.confirms.clone(),
        design: question.design.clone(),
        confidence: question.confidence,
        rule: judge::rule(&question.design, &question.findings),
        arms,
        changes: question.arms.changes.iter().map(in_words).collect(),
        provenance: Provenance {
            version: Some(build.version),
            commit: build.commit,
            dirty: build.dirty,
            binary: std::env::current_exe().ok().and_then(|own| hash_file(&own).ok()),
            began: Some(crate::format::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            ..Provenance::default()
        },
        runs,
        findings: question.findings.clone(),
        notes: question.notes.clone(),
        ..Experiment::default()
    })
}

/// Records an arm before it runs.
fn planned_arm(planned: &PlannedArm) -> Arm {
    let is_xrun = matches!(&planned.program, Program::Xrun { .. });
    let (recipe, settings) = planned.recipe_and_settings().unzip();
    Arm {
        label: planned.label.clone(),
        command: planned.command.clone(),
        recipe: recipe.map(|recipe| recipe.to_string_lossy().into_owned()),
        settings: settings.unwrap_or_default(),
        recipe_hash: planned.recipe.as_ref().map(Recipe::hash),
        commit: is_xrun.then(|| Build::current().commit).flatten(),
        binary: planned.binary.clone(),
        ..Arm::default()
    }
}

/// Returns the steps and tokens that each run of a plan may take.
pub fn budget(plan: &Plan) -> Budget {
    let steps = plan.steps as u64;
    Budget { steps, tokens: plan.batch.tokens_in_first_steps(steps) }
}

/// Returns the planned runs of pairs with these seeds, pair by pair.
pub fn planned_pairs(seeds: &[[u64; 2]]) -> Vec<ExperimentRun> {
    let run = |arm: usize, seed: u64| ExperimentRun { arm, seed: Some(seed), ..ExperimentRun::default() };
    seeds.iter().flat_map(|pair| [run(BASELINE, pair[BASELINE]), run(CANDIDATE, pair[CANDIDATE])]).collect()
}

/// Creates the folder of a comparison, names the comparison's id after it, and returns it with its lock.
///
/// # Errors
/// If the folder cannot be created or locked.
pub fn create_folder(results: &Path, experiment: &mut Experiment) -> Result<(PathBuf, File)> {
    experiment.provenance.ledger_heads = Some(Ledger::read(results)?.heads());
    let identity = serde_json::to_vec(experiment).unwrap_or_default();
    let hash8 = blake3::hash(&identity).to_hex()[..8].to_owned();
    let parent = results.join(COMPARISONS).join(&experiment.name);
    let folder = create_timed(&parent, &hash8, crate::format::now())?;
    experiment.id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let lock = folder::lock(&folder)?;
    Ok((folder, lock))
}

/// Records the hashes of the held-out sets that the runs were measured on.
pub fn note_held_out(results: &Path, experiment: &mut Experiment) {
    let mut hashes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let summaries =
        experiment.run_names().into_iter().filter_map(|run| read_summary(&results.join(run)).ok());
    for (name, set) in summaries.flat_map(|summary| summary.held_out) {
        hashes.entry(name).or_default().extend(set.hash);
    }
    experiment.provenance.held_out_hashes = (!hashes.is_empty()).then_some(hashes);
}

/// Returns true if two records ask the same of the same program, so that an unfinished one may be continued.
pub fn asks_the_same(a: &Experiment, b: &Experiment) -> bool {
    let asked = |experiment: &Experiment| {
        let measures: Vec<_> = experiment
            .findings
            .iter()
            .map(|finding| (finding.measure.to_string(), finding.min_effect.map(f64::to_bits)))
            .collect();
        let design = (std::mem::discriminant(&experiment.design), experiment.design.max_pairs());
        let seeds: Vec<Option<u64>> = experiment.runs.iter().map(|run| run.seed).collect();
        (measures, design, seeds, experiment.confidence.to_bits())
    };
    let program = |provenance: &Provenance| {
        (provenance.binary.clone(), provenance.device.clone(), provenance.corpus_hashes.clone())
    };
    let prediction = |experiment: &Experiment| experiment.prediction.as_ref().map(|one| one.text.clone());
    program(&a.provenance) == program(&b.provenance)
        && a.name == b.name
        && a.change() == b.change()
        && asked(a) == asked(b)
        && (prediction(a), &a.hypothesis, &a.confirms) == (prediction(b), &b.hypothesis, &b.confirms)
}
