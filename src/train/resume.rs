//! The starting point of a run: step 0, or a checkpoint that belongs to it.

use super::context::RunContext;
use super::gauges::engine_name;
use super::request::Origin;
use super::shards::checkpoint_buffers;
use crate::checkpoint::{self, Loaded};
use crate::data::{Dataset, FileStamp, HeldOut};
use crate::device::cuda::Algorithms;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::Plan;
use crate::policy::{Recompute, WeightsOnly};

use crate::recipe::{self, Class, Recipe};
use crate::results::folder::{ALGORITHMS, CHECKPOINT, RECIPE, RESOLVED, read_summary};
use crate::results::held_out::HeldOutSet;
use crate::results::summary::{CorpusFile, ForkedFrom};
use crate::results::{RunFolder, find};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Starting point of a run, with warnings and notes for the user.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// Checkpoint to continue from; `None` to start at step 0.
    pub loaded: Option<Loaded>,
    /// Warnings: damaged checkpoints, another processor.
    pub warnings: Vec<String>,
    /// What has changed: execution keys; of a fork, training and measuring keys and the corpus.
    pub changes: Vec<String>,
    /// The run that a fork begins with.
    pub forked_from: Option<ForkedFrom>,
    /// What a fork has from there, and would not have if it had begun at step 0.
    pub kept: Vec<String>,
}

impl Start {
    /// Returns the number of steps done before this process.
    pub fn step(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| loaded.meta().step)
    }

    /// Returns the number of tokens trained on before this process.
    pub fn tokens(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| loaded.meta().tokens_seen)
    }

    /// Returns a warning if the table of matrix-product algorithms is not that of the checkpoint.
    pub fn other_algorithms(&self, table: Option<&Algorithms>) -> Option<String> {
        let loaded = self.loaded.as_ref()?;
        let (before, now) = (loaded.meta().algorithms.as_ref()?, table?.hash());
        (*before != now).then(|| {
            format!(
                "{ALGORITHMS} is not the table that {} was trained with: the run continues, but its bits may differ from \
                 those of an uninterrupted run",
                loaded.path().display()
            )
        })
    }
}

/// Finds the newest valid checkpoint for `origin`, and refuses one of another run.
///
/// # Errors
/// A usage error where a resumed run would differ from the original one, or a fork could not train; a failure
/// where checkpoints cannot be read.
pub(super) fn start(origin: &Origin, context: &RunContext) -> Result<Start> {
    let RunContext { recipe, plan, programs, dataset, .. } = context;
    let mut start = Start::default();
    match origin {
        Origin::Fresh => {}
        Origin::Resume(run) => {
            start.loaded = checkpoint::newest_resumable(&run.join(CHECKPOINT))?;
            if let Some(loaded) = start.loaded.take_if(|loaded| loaded.meta().is_weights_only())
                && plan.intervals.weights_only == WeightsOnly::All
            {
                return Err(saved_without_state(&loaded, "resume"));
            }
            if start.loaded.as_ref().is_some_and(Loaded::is_weights_only) {
                return Err(Error::usage(format!(
                    "{} was imported, and has no training to go on with: `xrun resume RUN --fork` with keys such as \
                     data.corpus and training.steps trains it, in a new run",
                    run.display()
                )));
            }
            // Without a checkpoint, the recipe of the run's folder still applies.
            let summary = read_summary(run)?;
            let (before, corpus_hash) = match &start.loaded {
                Some(loaded) => {
                    check_tokenizer(loaded, dataset)?;
                    (recipe_of(loaded)?, Some(loaded.meta().corpus_hash.clone()))
                }
                None => {
                    let written = run.join(RESOLVED);
                    (
                        crate::recipe::load(&written, &[], std::iter::empty(), &Machine::none())?,
                        summary.corpus_hash.clone(),
                    )
                }
            };
            let place = start.loaded.as_ref().map_or(run.as_path(), Loaded::path);
            let other = corpus_hash.and_then(|hash| other_corpus(&hash, &summary.corpus_files, dataset));
            let other = other.into_iter().chain(other_sets(&summary.held_out, dataset));
            start.changes = changes(&before, other, recipe, run, place)?;
        }
        Origin::Fork { run, step } => {
            let loaded = match step {
                Some(step) => Some(checkpoint::at_step(&run.join(CHECKPOINT), *step)?),
                None => checkpoint::newest_resumable(&run.join(CHECKPOINT))?,
            };
            let loaded = loaded
                .ok_or_else(|| Error::usage(format!("{} has no checkpoint to fork from", run.display())))?;
            if loaded.meta().is_weights_only() {
                return Err(saved_without_state(&loaded, "fork"));
            }
            check_fork(&loaded, plan, programs)?;
            // A recipe that no longer loads does not keep a fork from training.
            if let Ok(before) = recipe_of(&loaded) {
                start.changes = changed_by_fork(&before, recipe);
                start.kept = kept_by_fork(run, &before, recipe);
            }
            let parent = read_summary(run)?;
            if !loaded.is_weights_only() {
                start.changes.extend(other_corpus(&loaded.meta().corpus_hash, &parent.corpus_files, dataset));
            }
            start.forked_from = Some(ForkedFrom {
                run: parent.run,
                step: loaded.meta().step,
                tokens_seen: loaded.meta().tokens_seen,
            });
            start.loaded = Some(loaded);
        }
    }
    if let Some(loaded) = &start.loaded {
        start.warnings = loaded.warnings().to_vec();
        start.warnings.extend(other_engine(loaded, plan).filter(|_| !loaded.is_weights_only()));
    }
    Ok(start)
}

/// Refuses to go on from a checkpoint that was saved without the optimizer's state.
fn saved_without_state(loaded: &Loaded, what: &str) -> Error {
    Error::usage(format!(
        "{} has weights alone, without the optimizer's state (checkpoint.weights_only): a {what} has nothing to go on from. \
         `xrun export RUN --checkpoint {} --to DIR` and `xrun RECIPE model.init_from=DIR` begin a new run with these weights; \
         `xrun sample RUN` generates with them",
        loaded.path().display(),
        loaded.meta().step
    ))
}

/// The key of further held-out sets, each of which is a measure of its own.
const SETS: &str = "validation.sets";

/// Returns which held-out sets have other tokens than those that a run was measured on, a sentence each. Of
/// runs of earlier versions nothing is known.
fn other_sets(before: &BTreeMap<String, HeldOutSet>, dataset: &Dataset) -> Vec<String> {
    let differs = |set: &HeldOut| {
        let hash = before.get(&set.name)?.hash.as_ref().filter(|hash| **hash != set.hash)?;
        Some(format!("the held-out set {} has hash {} (was {})", set.name, short(&set.hash), short(hash)))
    };
    dataset.sets.iter().filter_map(differs).collect()
}

/// The first digits of a hash.
fn short(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

/// Returns what a fork trains and measures otherwise than the run it comes from.
fn changed_by_fork(before: &Recipe, recipe: &Recipe) -> Vec<String> {
    let text = |change: recipe::Change| {
        let text = format!("{} = {} (was {})", change.key, change.new, change.old);
        match change.class {
            Class::Training => Some(text),
            Class::Measuring if change.key == SETS => Some(text),
            Class::Measuring => Some(format!("{text}: validation losses of both runs do not compare")),
            Class::Execution | Class::Bookkeeping => None,
        }
    };
    recipe::diff(before.values(), recipe.values()).into_iter().filter_map(text).collect()
}

/// Returns the training keys of a fork that another value would follow for if the run had begun at step 0: a
/// warm-up that is a share of the steps, for example, is that of the run it comes from.
fn kept_by_fork(run: &Path, before: &Recipe, recipe: &Recipe) -> Vec<String> {
    let changed = recipe::diff(before.values(), recipe.values()).into_iter();
    let settings: Vec<String> = changed
        .filter(|change| change.class == Class::Training && change.new != recipe::UNSET)
        .map(|change| format!("{}={}", change.key, change.new))
        .collect();
    // The copy has what was set, so that what follows from it follows anew. Copies of earlier versions do not
    // load, and tell nothing.
    let copy = recipe::load(&run.join(RECIPE), &settings, std::iter::empty(), &Machine::none());
    let Ok(anew) = copy else { return Vec::new() };
    let differing = recipe::diff(anew.values(), recipe.values()).into_iter();
    let follows =
        |change: &recipe::Change| change.class == Class::Training && anew.locate(change.key).is_none();
    differing
        .filter(follows)
        .map(|change| {
            format!(
                "{} = {} is kept from the run it comes from; a run of this recipe from step 0 has {}",
                change.key, change.new, change.old
            )
        })
        .collect()
}

/// Files of a corpus that a summary names, and those of them that a message names.
const MAX_FILES: usize = 100;
const NAMED_FILES: usize = 3;

/// Returns the files of a corpus for a summary; none where they are many.
pub(super) fn corpus_files(dataset: &Dataset) -> Vec<CorpusFile> {
    let file = |file: &FileStamp| CorpusFile {
        path: file.path.display().to_string(),
        bytes: file.bytes,
        modified: file.modified,
    };
    let few = dataset.files.len() <= MAX_FILES;
    dataset.files.iter().filter(|_| few).map(file).collect()
}

/// Returns that the corpus is not the one with this hash, and which of its files were written to since.
fn other_corpus(before: &str, files: &[CorpusFile], dataset: &Dataset) -> Option<String> {
    if before == dataset.hash {
        return None;
    }
    let mut text = format!("the corpus has hash {} (was {})", short(&dataset.hash), short(before));
    let now = corpus_files(dataset);
    let mut differing = Vec::new();
    for file in &now {
        match files.iter().find(|before| before.path == file.path) {
            Some(before) if before == file => {}
            Some(before) => differing.push(format!("{} has {file}; it had {before}", file.path)),
            None => differing.push(format!("{} was not part of it", file.path)),
        }
    }
    let gone = files.iter().filter(|before| now.iter().all(|file| file.path != before.path));
    differing.extend(gone.map(|file| format!("{} is no longer part of it", file.path)));
    // Nothing is known of the files of a run of an earlier version, or of many.
    if !files.is_empty() && !now.is_empty() {
        let more = differing.len().saturating_sub(NAMED_FILES);
        differing.truncate(NAMED_FILES);
        differing.extend((more > 0).then(|| format!("and {more} more files differ")));
        text.extend(differing.iter().map(|file| format!("\n    {file}")));
    }
    Some(text)
}

/// Returns the newest unfinished run of a recipe, by its hash and measuring keys. It is an error if another
/// process works on it: `checkpoint.resume = "auto"` must not start a second run beside it.
///
/// # Errors
/// As [`RunFolder::open`].
pub(super) fn unfinished(results: &Path, recipe: &Recipe) -> Result<Option<PathBuf>> {
    // A mode of recomputation that is left to the plan may have been any.
    let hashes = Recompute::ALL.iter().map(|mode| recipe.clone().with_recompute(*mode).hash());
    let hashes: HashSet<String> = hashes.collect();
    for path in find::runs(results)? {
        let Some(summary) = find::summary_or_warn(&path) else { continue };
        if hashes.contains(&summary.recipe_hash)
            && summary.status.is_unfinished()
            && measures_alike(&path, recipe)
        {
            return RunFolder::open(&path).map(|_| Some(path));
        }
    }
    Ok(None)
}

/// Returns true unless a run is known to measure on other text than a recipe.
fn measures_alike(run: &Path, recipe: &Recipe) -> bool {
    let before = recipe::load(&run.join(RESOLVED), &[], std::iter::empty(), &Machine::none());
    before.map_or(true, |before| before.measuring() == recipe.measuring())
}

/// Returns the recipe that a checkpoint was trained with.
///
/// # Errors
/// When it does not load.
pub fn recipe_of(loaded: &Loaded) -> Result<Recipe> {
    let name = Path::new("the checkpoint's recipe");
    recipe::load_resolved(name, &loaded.meta().resolved_recipe_toml, &[], &Machine::none())
}

/// Compares the original recipe with the current one; `other_data` says what of the data is not the same.
/// Training keys and the corpus must be the same; execution keys may change, and are returned.
fn changes(
    before: &Recipe,
    other_data: impl Iterator<Item = String>,
    recipe: &Recipe,
    run: &Path,
    place: &Path,
) -> Result<Vec<String>> {
    let mut changes = Vec::new();
    let mut refused = Vec::new();
    let mut fork = format!("xrun resume {} --fork", run.display());
    for change in recipe::diff(before.values(), recipe.values()) {
        let text = format!("{} = {} (was {})", change.key, change.new, change.old);
        match change.class {
            Class::Training | Class::Measuring => {
                if change.new != recipe::UNSET {
                    fork += &format!(" {}={}", change.key, change.new);
                }
                refused.push(text);
            }
            Class::Execution => changes.push(text),
            Class::Bookkeeping => {}
        }
    }
    refused.extend(other_data);
    if refused.is_empty() {
        return Ok(changes);
    }
    Err(Error::usage(format!(
        "{} is of a run that differs in what is trained or measured:\n  {}\nundo the change; or `{fork}` starts a \
         new run from it",
        place.display(),
        refused.join("\n  ")
    )))
}

/// Refuses another tokenizer than that of the checkpoint: the corpus may consist of the same ids under both.
fn check_tokenizer(loaded: &Loaded, dataset: &Dataset) -> Result<()> {
    let (before, now) = (&loaded.meta().tokenizer_hash, dataset.tokenizer.hash());
    if *before == now {
        return Ok(());
    }
    Err(Error::usage(format!(
        "this is not the run that {} belongs to: the tokenizer has hash {now} (was {before})\nundo the change of \
         data.tokenizer, or start a new run from the checkpoint with `xrun resume RUN --fork`",
        loaded.path().display()
    )))
}

/// Refuses a fork with no steps left to train, or whose model or optimizer differs from the checkpoint's.
fn check_fork(loaded: &Loaded, plan: &Plan, programs: &Programs) -> Result<()> {
    let at = loaded.path().display();
    let step = loaded.meta().step;
    if step >= plan.steps as u64 {
        return Err(Error::usage(format!(
            "{at} is of step {step}, so training.steps = {} leaves nothing to train; set it above {step}",
            plan.steps
        )));
    }
    for param in &programs.state.params {
        let (name, shape) = (&param.name, &param.spec.shape);
        let found = match loaded.shape(name) {
            Some(found) if found == shape => continue,
            Some(found) => format!("is {found:?} there"),
            None => "is not there".to_owned(),
        };
        return Err(Error::usage(format!(
            "{at} holds another model: {name}, {shape:?} by this recipe, {found}; a fork keeps [model] and the size of \
             the vocabulary"
        )));
    }
    let average = plan.ema.map(|ema| ema.slot(plan.precision).checkpoint_prefix);
    for buffer in checkpoint_buffers(&programs.state).iter().filter(|_| !loaded.is_weights_only()) {
        let mut names =
            buffer.params(&programs.state).map(|param| format!("{}{}", buffer.prefix, param.name));
        if let Some(missing) = names.find(|name| loaded.shape(name).is_none()) {
            return Err(Error::usage(match average == Some(buffer.prefix) {
                true => format!(
                    "{at} holds no moving average of the weights: there is no {missing}; a fork has ema.decay where the \
                     run that it begins with has it"
                ),
                false => format!(
                    "{at} holds the state of another optimizer: there is no {missing}; a fork keeps optimizer.name \
                     and the optimizers of [optimizer.groups]"
                ),
            }));
        }
    }
    Ok(())
}

/// Returns a warning if the bits of a resumed run may differ from those of an uninterrupted one.
fn other_engine(loaded: &Loaded, plan: &Plan) -> Option<String> {
    let (before, now) = (&loaded.meta().engine, engine_name(plan));
    (*before != now).then(|| {
        format!(
            "{} was computed on {before}, and this is {now}: the run continues, but its bits may differ from those of \
             an uninterrupted run",
            loaded.path().display()
        )
    })
}
