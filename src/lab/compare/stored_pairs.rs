//! Compares the quality of stored runs: pairs runs that were trained before, and runs nothing.

use super::arms::{Arms, PlannedArm, changes_between, load_stored};
use super::asking::Asking;
use super::basis::{Records, VerifiedRun};
use super::history;
use super::question::{Options, Question};
use super::setting::{FinishedComparison, StoredExperiment};
use super::{judge, pairs, record, remarks};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::recipe::{Change, Class, Recipe};
use crate::results::experiment::{Arm, BASELINE, Budget, CANDIDATE, ExperimentRun};
use crate::results::find;
use crate::results::ledger::Ledger;
use crate::results::measure::{Measure, MeasuredRun};
use crate::results::verify::{self, RunFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The stored runs of an arm.
struct StoredArm {
    /// The names of the runs as the user gave them.
    names: String,
    /// The runs by `training.seed`; never empty.
    runs: BTreeMap<u64, StoredRun>,
}

/// A stored run that has ended.
struct StoredRun {
    folder: PathBuf,
    recipe: Recipe,
    verified: VerifiedRun,
}

/// Judges the quality of stored runs. `names` has the run names of each arm, separated by commas. Runs with
/// the same `training.seed` form a pair.
///
/// # Errors
/// A usage error if the runs of an arm differ in recipe, text or figures, an arm lacks a seed of the other,
/// or a run has not ended. Otherwise the same as for [`Question::new`], and for [`run`](super::run) before
/// its first run.
pub fn compare_stored(results: &Path, names: [&str; 2], options: &Options) -> Result<FinishedComparison> {
    let stored = history::stored(results)?;
    let ledger = Ledger::read(results)?;
    let records = Records { ledger: &ledger, stored: &stored };
    let find = |names| StoredArm::find(results, names, &records);
    let [baseline, candidate] = [find(names[0])?, find(names[1])?];
    check_seeds(&baseline, &candidate)?;
    let question = question(&baseline, &candidate, options)?;
    let arms = [&baseline, &candidate];
    let known = arms.map(|arm| arm.recorded_arm(&stored));
    let measures: Vec<Measure> = question.findings.iter().map(|asked| asked.measure.clone()).collect();
    let partners = baseline.runs.iter().zip(candidate.runs.values());
    let runs = partners.flat_map(|((seed, a), b)| {
        [a.record(BASELINE, *seed, &measures), b.record(CANDIDATE, *seed, &measures)]
    });
    let mut asked = question.asked_arms()?;
    for (arm, known) in asked.iter_mut().zip(known) {
        if let Some(hash) = known.and_then(|known| known.seedless_hash.as_ref()) {
            arm.hash.clone_from(hash);
        }
    }
    let asking = Asking::about_stored(&question, asked, results, &stored)?;
    let question = &asking.question;
    history::check_peeking(question, &asking.arms, &asking.family)?;
    let mut experiment = record::from_question(question, runs.collect())?;
    for (arm, stored) in experiment.arms.iter_mut().zip(arms) {
        arm.budget = stored.budget();
    }
    for (arm, known) in experiment.arms.iter_mut().zip(known) {
        if let Some(known) = known {
            arm.recipe.clone_from(&known.recipe);
            arm.settings.clone_from(&known.settings);
            arm.seedless_hash.clone_from(&known.seedless_hash);
            arm.budget = known.budget.or(arm.budget);
        }
    }
    asking.describe(&mut experiment);
    experiment.provenance.corpus_hashes = arms.iter().filter_map(|arm| arm.corpus_hash().cloned()).collect();
    let devices: BTreeSet<String> = arms
        .iter()
        .flat_map(|arm| arm.runs.values())
        .map(|run| run.verified.environment.device_class())
        .collect();
    experiment.provenance.device = devices.first().filter(|_| devices.len() == 1).cloned();
    experiment.finished = true;
    record::note_runs(results, &mut experiment)?;
    let (folder, _held) = record::create_folder(results, &mut experiment)?;
    let since = asking.ask(results, &experiment)?;
    experiment.standing = Some(asking.standing(&since, results, &experiment)?);
    judge::judge(&mut experiment);
    remarks::add(&mut experiment);
    experiment.write(&folder)?;
    asking.answer(results, &experiment)?;
    Ok(FinishedComparison { folder, experiment, failed: None })
}

impl StoredArm {
    /// Finds and verifies the runs.
    fn find(results: &Path, names: &str, records: &Records<'_>) -> Result<Self> {
        let mut runs: BTreeMap<u64, StoredRun> = BTreeMap::new();
        for name in names.split(',') {
            let run = StoredRun::read(find::find(results, name.trim())?, records)?;
            if let Some(first) = runs.values().next() {
                first.check_same_arm(&run)?;
            }
            let seed = run.recipe.values().training.seed;
            if let Some(other) = runs.get(&seed) {
                return Err(Error::usage(format!(
                    "{} and {} are in one arm and have the same training.seed = {seed}; name one of them",
                    other.name(),
                    run.name()
                )));
            }
            runs.insert(seed, run);
        }
        Ok(Self { names: names.to_owned(), runs })
    }

    /// Returns the arm of the first stored comparison that contains one of these runs. Its recipe is as it
    /// was before a machine was chosen for the run, and comparisons of the same change are found by that
    /// recipe.
    fn recorded_arm<'a>(&self, stored: &'a [StoredExperiment]) -> Option<&'a Arm> {
        let is_own = |run: &&ExperimentRun| {
            run.run.as_ref().is_some_and(|name| self.runs.values().any(|own| own.name() == *name))
        };
        stored.iter().map(|one| &one.experiment).find_map(|experiment| {
            let run = experiment.runs.iter().chain(&experiment.pilot).find(is_own)?;
            experiment.arms.get(run.arm)
        })
    }

    /// Makes the arm of a question.
    fn planned(&self) -> Result<PlannedArm> {
        let first = self.runs.values().next().ok_or_else(|| Error::usage("--runs names two arms"))?;
        let recipe = first.recipe.clone();
        let folders = self.runs.values().map(|run| run.folder.clone()).collect();
        Ok(PlannedArm::stored(&self.names, recipe.name(), folders, recipe.clone()))
    }

    /// Returns the steps and tokens of its longest run; a run that diverged ended before.
    fn budget(&self) -> Option<Budget> {
        let longest =
            self.runs.values().map(|run| &run.verified.summary).max_by_key(|summary| summary.steps)?;
        Some(Budget { steps: longest.steps, tokens: longest.tokens_seen, parameters: None, flops: None })
    }

    fn corpus_hash(&self) -> Option<&String> {
        self.runs.values().find_map(|run| run.verified.summary.corpus_hash.as_ref())
    }
}

impl StoredRun {
    /// Reads and verifies a run.
    fn read(folder: PathBuf, records: &Records<'_>) -> Result<Self> {
        verify::check(&RunFiles::read(&folder)?)?;
        let verified = VerifiedRun::read(&folder, records)?;
        if !MeasuredRun::open(&folder)?.is_complete() {
            return Err(Error::usage(format!(
                "{} is {}; quality is judged only for runs that ended with all of their rows",
                verified.name,
                verified.summary.status.as_str()
            )));
        }
        Ok(Self { recipe: load_stored(&folder)?, folder, verified })
    }

    fn name(&self) -> &str {
        &self.verified.name
    }

    /// Checks that another run may be in the same arm: it may differ in its seed, and in keys that change no
    /// bit, such as the GPU it ran on.
    fn check_same_arm(&self, other: &Self) -> Result<()> {
        let matters = |change: &&Change| {
            change.key != "training.seed" && (!change.keeps_bits() || change.class == Class::Measuring)
        };
        let changes = changes_between(&self.recipe, &other.recipe);
        let differ = match changes.iter().find(matters) {
            Some(change) => format!("{} is {} and {}", change.key, change.old, change.new),
            None => match self.verified.difference(&other.verified) {
                Some(why) => why,
                None => return Ok(()),
            },
        };
        Err(Error::usage(format!("{} and {} are in one arm, but {differ}", self.name(), other.name())))
    }

    /// Checks that the other run of a pair began like this one, except for weights that its recipe names. A
    /// fork has what another run had learned.
    fn check_began_alike(&self, other: &Self) -> Result<()> {
        let fork = |run: &Self| {
            let from = run.verified.summary.forked_from.as_ref();
            from.map(|from| format!("{} at step {}", from.run, from.step))
        };
        let [own, others] = [fork(self), fork(other)];
        let weights = |run: &Self| run.verified.summary.begun_with.as_ref().map(|with| with.blake3.clone());
        let named = |run: &Self| run.recipe.values().model.init_from.clone();
        let differ = if own != others {
            let words = |fork: Option<String>| {
                fork.map_or("the beginning".to_owned(), |from| format!("the run {from}"))
            };
            format!(
                "{} continues from {} and {} from {}",
                self.name(),
                words(own),
                other.name(),
                words(others)
            )
        } else if weights(self) != weights(other) && named(self) == named(other) {
            format!(
                "{} and {} began with other weights, and their recipes name the same",
                self.name(),
                other.name()
            )
        } else {
            return Ok(());
        };
        Err(Error::usage(format!("the runs of a pair have to begin alike: {differ}; name runs that do")))
    }

    /// Records the run with the values of its measures.
    fn record(&self, arm: usize, seed: u64, measures: &[Measure]) -> ExperimentRun {
        let run = ExperimentRun {
            arm,
            seed: Some(seed),
            run: Some(self.name().to_owned()),
            status: Some(self.verified.summary.status.as_str().to_owned()),
            reason: self.verified.summary.reason.clone(),
            reused: true,
            ..ExperimentRun::default()
        };
        pairs::with_values(run, &self.folder, measures)
    }
}

/// Checks that both arms have runs with the same seeds, and at least two.
fn check_seeds(baseline: &StoredArm, candidate: &StoredArm) -> Result<()> {
    let seeds = |arm: &StoredArm| arm.runs.keys().copied().collect::<Vec<u64>>();
    let in_words = |seeds: &[u64]| seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let [a, b] = [seeds(baseline), seeds(candidate)];
    if a != b {
        return Err(Error::usage(format!(
            "pairs are runs with the same training.seed: the baseline has {} and the candidate {}; name runs \
             of both arms with the same seeds",
            in_words(&a),
            in_words(&b)
        )));
    }
    if a.len() < 2 {
        return Err(Error::usage(
            "one pair cannot tell a difference from chance; name two or more runs per arm, separated by \
             commas",
        ));
    }
    Ok(())
}

/// Builds the question that the runs answer.
fn question(baseline: &StoredArm, candidate: &StoredArm, options: &Options) -> Result<Question> {
    let arms = Arms::from_planned(baseline.planned()?, candidate.planned()?);
    let seeds = baseline.runs.keys().map(|seed| [*seed; 2]).collect();
    let mut question = Question::stored_pairs(arms, seeds, options)?;
    let names_data = |key: &str| key.starts_with("data.");
    if baseline.corpus_hash() != candidate.corpus_hash()
        && !question.arms.changes.iter().any(|change| names_data(change.key))
    {
        return Err(Error::usage(
            "the arms were trained on different text, although their recipes name the same; its files have \
             changed",
        ));
    }
    for (one, other) in baseline.runs.values().zip(candidate.runs.values()) {
        one.check_began_alike(other)?;
    }
    let pairs = baseline.runs.values().zip(candidate.runs.values());
    let device = |run: &StoredRun| run.verified.environment.device_class();
    let apart = pairs.filter(|(a, b)| device(a) != device(b)).count();
    if apart > 0 {
        question.notes.push(format!(
            "the runs of {apart} pair{} ran on different devices, which round differently",
            plural(apart)
        ));
    }
    Ok(question)
}
