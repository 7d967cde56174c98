//! Creates the record of a comparison and its folder before the first run, and tells whether an earlier
//! record asks the same.

use super::arms::{Arms, PlannedArm, Program};
use super::basis;
use super::judge;
use super::question::Question;
use crate::error::Result;
use crate::recipe::{Change, Class, Recipe};
use crate::results::experiment::{
    Arm, BASELINE, Budget, CANDIDATE, COMPARISONS, Design, Experiment, ExperimentRun, Provenance,
    RegisteredPrediction,
};
use crate::results::folder::{self, create_timed, read_summary};
use crate::results::ledger::Ledger;
use crate::results::provenance::{Build, Environment, own_binary_hash};
use crate::results::summary::Summary;
use crate::sweep::Work;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Makes the record of a question before anything has run. `runs` are the planned runs in order.
///
/// # Errors
/// If the hash of a recipe cannot be computed.
pub fn from_question(question: &Question, runs: Vec<ExperimentRun>) -> Result<Experiment> {
    let mut arms = question.arms.both().map(|arm| planned_arm(&question.arms, arm)).to_vec();
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
        confirms: question.confirms.clone(),
        design: question.design.clone(),
        confidence: question.confidence,
        rule: judge::rule(&question.design, &question.findings),
        arms,
        changes: question.arms.changes.iter().map(in_words).collect(),
        keys_set: keys_set(question),
        fixed_seeds: question.fixed_seeds.clone(),
        provenance: Provenance {
            version: Some(build.version),
            commit: build.commit,
            dirty: build.dirty,
            binary: own_binary_hash().map(str::to_owned),
            began: Some(crate::format::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            ..Provenance::default()
        },
        runs,
        findings: question.findings.clone(),
        notes: question.notes.clone(),
        ..Experiment::default()
    })
}

/// Returns how many of the changed keys someone set in a recipe or on the command line, rather than that they
/// follow from another key.
fn keys_set(question: &Question) -> Option<usize> {
    let recipes = question.arms.recipes().ok()?;
    let has_budget = question.arms.changes.iter().any(|change| change.key == "training.until");
    let is_set = |change: &&Change| {
        // The steps follow from a budget, whatever the baseline sets.
        !(has_budget && change.key == "training.steps")
            && change.class != Class::Bookkeeping
            && recipes.iter().any(|recipe| recipe.locate(change.key).is_some())
    };
    Some(question.arms.changes.iter().filter(is_set).count())
}

/// Records an arm before it runs.
fn planned_arm(arms: &Arms, planned: &PlannedArm) -> Arm {
    let is_xrun = matches!(&planned.program, Program::Xrun { .. });
    let (recipe, command) = arms.recorded_names(planned);
    Arm {
        label: planned.label.clone(),
        command,
        recipe,
        settings: planned.recipe_and_settings().map(|(_, settings)| settings).unwrap_or_default(),
        recipe_hash: planned.recipe.as_ref().map(Recipe::hash),
        commit: is_xrun.then(|| Build::current().commit).flatten(),
        binary: planned.binary.clone(),
        ..Arm::default()
    }
}

/// Returns what each run of a cell may take.
pub fn budget(work: &Work) -> Budget {
    let steps = work.plan.steps as u64;
    Budget {
        steps,
        tokens: work.plan.batch.tokens_in_first_steps(steps),
        parameters: None,
        flops: Some(work.flops()),
    }
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

/// Records what the runs were measured on and with: held-out sets, the loss of a guess, parameters, programs.
/// Checks that runs that are compared were measured on the same text.
///
/// # Errors
/// If they were not.
pub fn note_runs(results: &Path, experiment: &mut Experiment) -> Result<()> {
    let names: Vec<String> = experiment.run_names().into_iter().map(str::to_owned).collect();
    let summaries: BTreeMap<String, Summary> =
        names.iter().filter_map(|run| Some((run.clone(), read_summary(&results.join(run)).ok()?))).collect();
    let mut hashes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut tokens: BTreeMap<String, u64> = BTreeMap::new();
    for (name, set) in summaries.values().flat_map(|summary| &summary.held_out) {
        hashes.entry(name.clone()).or_default().extend(set.hash.clone());
        if let Some(count) = set.tokens {
            let fewest = tokens.entry(name.clone()).or_insert(count);
            *fewest = count.min(*fewest);
        }
    }
    let in_arm = |arm: usize| {
        let own = experiment.runs_in(arm).filter_map(|run| summaries.get(run.run.as_ref()?));
        in_training(own)
    };
    let in_arms = [BASELINE, CANDIDATE].map(in_arm);
    let guesses: Option<Vec<f64>> = summaries.values().map(|summary| summary.uniform_loss).collect();
    let guess = guesses
        .filter(|all| all.windows(2).all(|pair| pair[0] == pair[1]))
        .and_then(|all| all.first().copied());
    let environments: Vec<Environment> =
        names.iter().filter_map(|run| Environment::read(&results.join(run))).collect();
    let first =
        |arm: usize| experiment.runs_in(arm).find_map(|run| summaries.get(run.run.as_ref()?)?.parameters);
    let parameters = [first(BASELINE), first(CANDIDATE)];
    for (arm, in_training) in experiment.arms.iter_mut().zip(in_arms) {
        arm.in_training = in_training;
    }
    for (arm, parameters) in experiment.arms.iter_mut().zip(parameters) {
        if let Some(budget) = &mut arm.budget {
            budget.parameters = parameters;
        }
    }
    let provenance = &mut experiment.provenance;
    provenance.held_out_hashes = (!hashes.is_empty()).then_some(hashes);
    (provenance.evaluated_tokens, provenance.uniform_loss) = (tokens, guess);
    provenance.in_training = in_training(summaries.values());
    provenance.programs = basis::programs(environments.iter());
    provenance.devices = environments.iter().map(Environment::class).collect();
    basis::check_text(experiment, &summaries)
}

/// Returns the largest share of each held-out set that one of these runs also trained on.
fn in_training<'a>(summaries: impl Iterator<Item = &'a Summary>) -> BTreeMap<String, f64> {
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for (name, set) in summaries.flat_map(|summary| &summary.held_out) {
        if let Some(share) = set.in_training {
            let largest = shares.entry(name.clone()).or_insert(share);
            *largest = share.max(*largest);
        }
    }
    shares
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
        && a.question == b.question
        && (prediction(a), &a.hypothesis, &a.confirms) == (prediction(b), &b.hypothesis, &b.confirms)
}
