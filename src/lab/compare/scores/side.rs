//! A side of a comparison of evaluations: one model, or the seeds of one recipe.

use super::super::arms::{changes_between, load_stored};
use crate::error::{Error, Result};
use crate::format::shortened;
use crate::recipe::{Change, Class, Recipe};
use crate::regular;
use crate::results::names::{EVALUATIONS, RESOLVED};
use crate::statistics::Pairing;
use crate::task_evaluation::{EvaluationRecord, ScoredModel};
use std::path::{Component, Path, PathBuf};

/// Characters of a value that a message shows.
const SHOWN: usize = 60;

/// The evaluations of a side.
#[derive(Debug)]
pub(super) struct Side {
    /// At least one, of seeds of one recipe.
    pub evaluations: Vec<StoredEvaluation>,
}

/// An evaluation.
#[derive(Debug)]
pub(super) struct StoredEvaluation {
    /// Its folder.
    pub folder: PathBuf,
    /// Its summary.
    pub record: EvaluationRecord,
    /// The recipe of the run, if the run is in the results folder.
    recipe: Option<Recipe>,
}

impl Side {
    /// Reads the evaluations of a side, separated by commas, and checks that they are of one recipe.
    pub fn read(results: &Path, names: &str) -> Result<Self> {
        let mut evaluations: Vec<StoredEvaluation> = Vec::new();
        for name in names.split(',') {
            let evaluation = StoredEvaluation::read(results, name.trim())?;
            for other in &evaluations {
                other.check_same_side(&evaluation)?;
            }
            evaluations.push(evaluation);
        }
        Ok(Self { evaluations })
    }

    /// Returns the folders.
    pub fn names(&self) -> Vec<String> {
        self.evaluations.iter().map(|one| one.folder.display().to_string()).collect()
    }

    /// Returns the seeds, if all are known.
    fn seeds(&self) -> Option<Vec<u64>> {
        self.evaluations.iter().map(StoredEvaluation::seed).collect()
    }
}

/// Pairs the evaluations of both sides by their seeds, and sorts them so, if both have the same seeds.
pub(super) fn pair(baseline: &mut Side, candidate: &mut Side) -> Pairing {
    for side in [&mut *baseline, &mut *candidate] {
        side.evaluations.sort_by_key(StoredEvaluation::seed);
    }
    match (baseline.seeds(), candidate.seeds()) {
        (Some(a), Some(b)) if a == b => Pairing::SameSeeds,
        _ => Pairing::Independent,
    }
}

/// Returns what both sides together cannot tell.
pub(super) fn notes(sides: [&Side; 2], results: &Path) -> Vec<String> {
    let mut notes = Vec::new();
    let all = || sides.iter().flat_map(|side| &side.evaluations);
    let has_seeds = sides.iter().any(|side| side.evaluations.len() > 1);
    if let Some(unknown) = all().find(|one| one.recipe.is_none()).filter(|_| has_seeds) {
        notes.push(format!(
            "the run {} is not in {}, so nothing checks that the evaluations of a side are of one recipe with different \
             seeds",
            shortened(&unknown.record.model.name, SHOWN),
            results.display()
        ));
    }
    let [a, b] = sides.map(|side| &side.evaluations[0].record.model);
    for (what, a, b) in [("dtype", &a.dtype, &b.dtype), ("device", &a.device, &b.device)] {
        if a != b {
            let [a, b] = [a, b].map(|value| shortened(value, SHOWN));
            notes.push(format!("the sides were scored with another {what}: {a} and {b}"));
        }
    }
    if a.hash.is_some() && a.hash == b.hash {
        notes.push("both sides have the same weights".to_owned());
    }
    notes
}

impl StoredEvaluation {
    fn read(results: &Path, name: &str) -> Result<Self> {
        let path = Path::new(name);
        let stored = results.join(EVALUATIONS).join(name);
        let folder = match !name.is_empty() && !path.exists() && stored.exists() {
            true => stored,
            false => path.to_owned(),
        };
        if name.is_empty() || regular::is_missing(&folder.join(EvaluationRecord::FILE)) {
            return Err(Error::usage(format!(
                "{name:?} is no evaluation: neither it nor {} has {}; name a folder that `xrun eval` wrote",
                results.join(EVALUATIONS).join(name).display(),
                EvaluationRecord::FILE
            )));
        }
        let record = EvaluationRecord::read(&folder)?;
        let recipe = stored_recipe(results, &record.model);
        Ok(Self { folder, record, recipe })
    }

    fn seed(&self) -> Option<u64> {
        self.recipe.as_ref().map(|recipe| recipe.values().training.seed)
    }

    /// Checks that another evaluation may be of another seed of the same recipe.
    fn check_same_side(&self, other: &Self) -> Result<()> {
        let [a, b] = [&self.record.model, &other.record.model];
        let [one, two] = [self, other].map(|one| one.folder.display());
        let is_same = match (&a.hash, &b.hash) {
            (Some(a), Some(b)) => a == b,
            // A run that scores itself does not hash its weights.
            _ => (&a.name, a.step, &a.weights) == (&b.name, b.step, &b.weights),
        };
        if is_same {
            return Err(Error::usage(format!(
                "{one} and {two} are of the same weights, not of two seeds; name one of them"
            )));
        }
        let differ = describe(a).into_iter().zip(describe(b)).find(|(a, b)| a != b);
        if let Some(((what, a), (_, b))) = differ {
            let [a, b] = [a, b].map(|value| shortened(&value, SHOWN));
            return Err(Error::usage(format!(
                "{one} and {two} are on one side, but their {what} is {a} and {b}; a side is one recipe with different seeds"
            )));
        }
        let (Some(a), Some(b)) = (&self.recipe, &other.recipe) else { return Ok(()) };
        let matters = |change: &&Change| {
            change.key != "training.seed" && (!change.keeps_bits() || change.class == Class::Measuring)
        };
        if let Some(change) = changes_between(a, b).iter().find(matters) {
            return Err(Error::usage(format!(
                "{one} and {two} are on one side, but {} is {} and {}; a side is one recipe with different seeds",
                change.key, change.old, change.new
            )));
        }
        if self.seed() == other.seed() {
            return Err(Error::usage(format!(
                "{one} and {two} are on one side and have the same training.seed; name one of them"
            )));
        }
        Ok(())
    }
}

/// Returns the recipe of a model's run, if the run is in the results folder.
pub fn stored_recipe(results: &Path, model: &ScoredModel) -> Option<Recipe> {
    // A folder in HuggingFace's form has no step, and may be called like a recipe.
    model.step?;
    let parts: Vec<Component<'_>> = Path::new(&model.name).components().collect();
    let is_run = parts.len() == 2 && parts.iter().all(|part| matches!(part, Component::Normal(_)));
    let run = results.join(&model.name);
    (is_run && regular::is_file(&run.join(RESOLVED))).then(|| load_stored(&run).ok())?
}

/// Returns what the evaluations of a side must agree in.
fn describe(model: &ScoredModel) -> [(&'static str, String); 6] {
    [
        ("number of parameters", model.parameters.to_string()),
        ("step", model.step.map_or_else(|| "none".to_owned(), |step| step.to_string())),
        ("kind of weights", model.weights.clone()),
        ("tokenizer", model.tokenizer.clone()),
        ("dtype", model.dtype.clone()),
        ("context", model.context.to_string()),
    ]
}
