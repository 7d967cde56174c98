//! Finds where a run starts: at step 0, or at a checkpoint that belongs to it. With
//! `checkpoint.resume = "auto"`, also the run that it continues.

mod changes;
mod origin;

pub(super) use changes::corpus_files;
pub(super) use origin::LossesBefore;

use super::initial::optimizer::check_initial_optimizer;
use super::initial::weights::{InitialWeights, check_same_base};
use super::job::Job;
use super::of_checkpoint::{recipe_of, run_of};
use super::request::{Origin, Request};
use crate::checkpoint::{self, Loaded};
use crate::device::cuda::{self, Algorithms, Gpu};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::Weights;
use crate::plan::Plan;
use crate::policy::{Recompute, Resume, WeightsOnly};
use crate::ranks::fault;
use crate::recipe::{self, Class, Recipe};
use crate::results::folder::{ALGORITHMS, CHECKPOINT, RESOLVED, read_summary};
use crate::results::origin::Origin as RunOrigin;
use crate::results::summary::ForkedFrom;
use crate::results::{RunFolder, find, stored};
use changes::{
    Changes, DataBefore, TokenizerBefore, changed_by_fork, changed_sets, changed_tasks, changes, check_fork,
    check_fork_tokenizer, check_tokenizer, engine_warning, kept_by_fork, other_corpus, same_sets, same_tasks,
    same_template,
};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Where a run starts, with warnings and notes for the user.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// Checkpoint to continue from; `None` to start at step 0.
    pub loaded: Option<Loaded>,
    /// True if the run itself saved the checkpoint, so its folder has the rows of the earlier steps. False
    /// for a fork that begins, also again after it ended before its first checkpoint.
    pub is_own: bool,
    /// True if all steps are trained, so nothing is opened to begin with.
    is_finished: bool,
    /// What the run to resume began from; `None` for a new run, or one of an earlier version.
    origin: Option<RunOrigin>,
    /// Initial weights of the recipe; `None` if the run continues from a checkpoint.
    pub initial: Option<InitialWeights>,
    /// Matrix-product algorithms to reuse; `None` to choose them.
    pub algorithms: Option<Algorithms>,
    /// Warnings, for example about damaged checkpoints or a different processor.
    pub warnings: Vec<String>,
    /// What changed: execution keys and, in a fork, also training and measuring keys and the corpus.
    pub changes: Vec<String>,
    /// Paths of the data that a resume names anew; their content is the same.
    pub moved: Vec<String>,
    /// The run and step that a fork starts from.
    pub forked_from: Option<ForkedFrom>,
    /// Training losses of the last steps before a fork.
    pub losses_before: LossesBefore,
    /// Values that a fork inherits, and that a run from step 0 would not have.
    pub kept: Vec<String>,
}

impl Start {
    /// Finds the newest valid checkpoint of the request's origin or the initial weights, and the table of
    /// matrix-product algorithms. Rejects whatever belongs to another run.
    ///
    /// # Errors
    /// With a usage error if a resumed run would differ from the original one, or a fork could not train.
    /// Fails if a checkpoint or weights cannot be read.
    pub fn find(request: &Request, job: &Job) -> Result<Self> {
        let mut start = match &request.origin {
            Origin::Fresh => Self::default(),
            Origin::Resume(run) => Self::resume(run, job)?,
            Origin::Fork { run, step } => Self::fork(run, *step, job)?,
        };
        if let Some(loaded) = &start.loaded {
            start.warnings = loaded.warnings().to_vec();
            start.warnings.extend(engine_warning(loaded, &job.plan).filter(|_| !loaded.is_weights_only()));
        }
        check_until(job, start.step())?;
        fault::check(job.plan.batch.world_size, start.step(), job.steps())?;
        // Checkpoints of adapters do not hold the weights under them.
        let needs_weights = start.loaded.is_none() || job.plan.adapter.is_some();
        if needs_weights && !start.is_finished {
            start.initial =
                InitialWeights::open(&job.recipe, &job.plan, &job.dataset.tokenizer, start.loaded.is_none())?;
            match (&start.loaded, &start.initial) {
                (Some(loaded), Some(initial)) => {
                    check_same_base(&initial.base, &initial.hash, loaded)?;
                }
                _ => origin::check_weights(start.origin.as_ref(), start.initial.as_ref(), &request.origin)?,
            }
            if let (None, Some(initial)) = (&start.loaded, &start.initial) {
                check_initial_optimizer(&job.recipe, &initial.base, &job.programs.state)?;
            }
            start.warnings.extend(start.initial.iter().filter_map(|initial| initial.warning.clone()));
        }
        let named = request.algorithms_from.as_deref();
        start.algorithms = algorithms(&request.origin, start.loaded.as_ref(), named, &job.plan)?;
        if named.is_none() {
            start.warnings.extend(start.algorithms_warning());
        }
        Ok(start)
    }

    fn resume(run: &Path, job: &Job) -> Result<Self> {
        let Job { recipe, plan, dataset, tasks, .. } = job;
        let mut loaded = checkpoint::newest_resumable(&run.join(CHECKPOINT))?;
        if let Some(loaded) = loaded.take_if(|loaded| loaded.meta().is_weights_only())
            && plan.intervals.checkpoint.weights_only == WeightsOnly::All
        {
            return Err(weights_only_error(&loaded, "resume"));
        }
        if loaded.as_ref().is_some_and(Loaded::is_weights_only) {
            return Err(Error::usage(format!(
                "{} was imported, so it has no training to continue: `xrun resume RUN --fork` with keys such as \
                 data.corpus and training.steps trains it, in a new run",
                run.display()
            )));
        }
        let summary = read_summary(run)?;
        let origin = RunOrigin::read(run)?;
        origin.as_ref().map_or(Ok(()), |origin| origin.check_summary(run, &summary))?;
        let is_finished = summary.is_finished();
        let (before, corpus_hash) = match (&loaded, &origin) {
            (Some(loaded), _) => {
                check_tokenizer(loaded.path(), &TokenizerBefore::from_checkpoint(loaded), dataset)?;
                (recipe_of(loaded)?, Some(loaded.meta().corpus_hash.clone()))
            }
            (None, Some(origin)) => {
                check_tokenizer(run, &TokenizerBefore { hash: &origin.tokenizer_hash, end: None }, dataset)?;
                let (name, toml) =
                    (Path::new("the recipe that the run began with"), &origin.resolved_recipe_toml);
                let before = recipe::load_resolved(name, toml, &[], &Machine::none())?;
                (before, Some(origin.corpus_hash.clone()))
            }
            (None, None) if is_finished => {
                let written = run.join(RESOLVED);
                let before = recipe::load(&written, &[], std::iter::empty(), &Machine::none())?;
                (before, summary.corpus_hash.clone())
            }
            (None, None) => return Err(origin::unknown(run)),
        };
        let place = loaded.as_ref().map_or(run, Loaded::path);
        let same_corpus = corpus_hash.as_ref() == Some(&dataset.hash);
        let other = corpus_hash.and_then(|hash| other_corpus(&hash, &summary.corpus_files, dataset));
        let data = DataBefore {
            differences: other
                .into_iter()
                .chain(changed_sets(&summary.held_out, dataset))
                .chain(changed_tasks(&summary.tasks, tasks))
                .collect(),
            same_corpus,
            same_sets: same_sets(&summary.held_out, dataset),
            same_tasks: same_tasks(&summary.tasks, tasks),
            same_template: same_template(run, recipe),
            compares_weights: plan.adapter.is_some(),
        };
        let Changes { changed, moved } = changes(&before, data, recipe, run, place)?;
        let is_own = loaded.is_some();
        if !is_own && !is_finished {
            loaded = origin.as_ref().map_or(Ok(None), |origin| origin::reopen(run, origin))?;
        }
        Ok(Self { loaded, is_own, is_finished, origin, changes: changed, moved, ..Self::default() })
    }

    fn fork(run: &Path, step: Option<u64>, job: &Job) -> Result<Self> {
        let Job { recipe, plan, programs, dataset, .. } = job;
        let folder = run.join(CHECKPOINT);
        let loaded = match step {
            Some(step) => Some(checkpoint::at_step(&folder, step)?),
            None => checkpoint::newest_resumable(&folder)?,
        };
        let loaded = loaded
            .ok_or_else(|| Error::usage(format!("{} has no checkpoint to fork from", run.display())))?;
        if loaded.meta().is_weights_only() {
            return Err(weights_only_error(&loaded, "fork"));
        }
        check_fork(&loaded, plan, programs)?;
        let mut start = Self::default();
        // A recipe that no longer loads must not keep a fork from training.
        if let Ok(before) = recipe_of(&loaded) {
            start.changes.extend(check_fork_tokenizer(&loaded, dataset, &before, recipe)?);
            start.changes.extend(changed_by_fork(&before, recipe));
            start.kept = kept_by_fork(run, &before, recipe);
        }
        let parent = read_summary(run)?;
        RunOrigin::read(run)?.map_or(Ok(()), |origin| origin.check_summary(run, &parent))?;
        if !loaded.is_weights_only() {
            start.changes.extend(other_corpus(&loaded.meta().corpus_hash, &parent.corpus_files, dataset));
        }
        start.losses_before = origin::last_losses(run, &loaded, &parent);
        start.forked_from = Some(ForkedFrom {
            run: parent.run,
            step: loaded.meta().step,
            tokens_seen: loaded.meta().tokens_seen,
        });
        Ok(Self { loaded: Some(loaded), ..start })
    }

    /// Returns the number of steps trained before this process.
    pub fn step(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| loaded.meta().step)
    }

    /// Returns the number of tokens trained on before this process.
    pub fn tokens(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| loaded.meta().tokens_seen)
    }

    /// Returns the step of the run's own checkpoint that it continues from; 0 if it has none.
    pub fn saved_step(&self) -> u64 {
        if self.is_own { self.step() } else { 0 }
    }

    /// Closes the files of checkpoints once the state is set. The run removes old checkpoints, and on some
    /// file systems a folder with open files cannot be removed.
    pub fn close(&self) {
        self.loaded.iter().for_each(Loaded::close);
        self.initial.iter().for_each(InitialWeights::close);
    }

    /// Returns the checkpoint with the optimizer's state to begin with; `None` if it begins at zero, or if
    /// the whole state is restored.
    pub fn optimizer(&self) -> Option<&Loaded> {
        self.initial.as_ref().filter(|_| self.loaded.is_none())?.optimizer()
    }

    /// Returns how many updates the optimizer's state has seen before the run's first step.
    pub fn updates_before(&self) -> u64 {
        match (&self.loaded, self.optimizer()) {
            (Some(loaded), _) => loaded.meta().updates_before(),
            (None, Some(other)) => other.meta().updates_before() + other.meta().step,
            (None, None) => 0,
        }
    }

    /// Returns the checkpoint whose whole state is restored, if there is one.
    pub fn restored(&self) -> Option<&Loaded> {
        self.loaded.as_ref().filter(|loaded| !loaded.is_weights_only())
    }

    /// Returns the run whose state is continued: the run in `folder` itself, or the one that a fork
    /// continues; `None` if the run begins with weights or initial values.
    pub fn continued_run(&self, folder: &Path) -> Option<PathBuf> {
        let loaded = self.restored()?;
        let run = if self.is_own { Some(folder) } else { run_of(loaded) };
        Some(run.unwrap_or(folder).to_owned())
    }

    /// Returns the hash of the weights that a run begins with; `None` if it is not known.
    pub fn weights_hash(&self) -> Option<String> {
        let initial = self.initial.as_ref().filter(|initial| initial.adapter.is_none());
        initial.filter(|_| self.loaded.is_none()).map(|initial| initial.hash.clone())
    }

    /// Returns the weights to begin with: from a checkpoint that holds nothing else, or from the recipe.
    pub fn weights(&self) -> Option<&(dyn Weights + Sync)> {
        let imported = self.loaded.as_ref().filter(|loaded| loaded.is_weights_only());
        let imported = imported.map(|loaded| loaded as &(dyn Weights + Sync));
        imported.or_else(|| self.frozen_weights())
    }

    /// Returns the weights of the recipe: those to begin with, or those under the adapters of a checkpoint.
    pub fn frozen_weights(&self) -> Option<&(dyn Weights + Sync)> {
        self.initial.as_ref().map(|initial| initial as &(dyn Weights + Sync))
    }

    /// Returns a warning if the table of matrix-product algorithms differs from the checkpoint's.
    fn algorithms_warning(&self) -> Option<String> {
        let loaded = self.loaded.as_ref()?;
        let (before, now) = (loaded.meta().algorithms.as_ref()?, self.algorithms.as_ref()?.hash());
        (*before != now).then(|| {
            format!(
                "{ALGORITHMS} is not the table that {} was trained with: the run continues, but may not match an \
                 uninterrupted run to the bit",
                loaded.path().display()
            )
        })
    }
}

/// Returns the error for resuming or forking a checkpoint that was saved without the optimizer's state.
fn weights_only_error(loaded: &Loaded, what: &str) -> Error {
    Error::usage(format!(
        "{} has only weights, without the optimizer's state (checkpoint.weights_only), so a {what} cannot continue from it. \
         `xrun RECIPE model.init_from={}` begins a new run with these weights; `xrun sample RUN` generates with them",
        loaded.path().display(),
        loaded.path().display()
    ))
}

/// Rejects `--until` with a step that the run does not reach, or if no state is saved to continue from.
fn check_until(job: &Job, from_step: u64) -> Result<()> {
    let (Some(until), steps) = (job.until, job.steps()) else { return Ok(()) };
    let wrong = if until > steps {
        format!("the run has {steps} steps; name one of them, or leave --until out")
    } else if until <= from_step && until < steps {
        format!("the run is at step {from_step} already; name a later one")
    } else if until < steps && job.plan.intervals.checkpoint.weights_only == WeightsOnly::All {
        "checkpoint.weights_only = \"all\" saves no state to continue from; set checkpoint.weights_only=kept"
            .to_owned()
    } else if until < steps && job.plan.intervals.checkpoint.keep == 0 {
        "checkpoint.keep = 0 saves no state to continue from; set checkpoint.keep=1".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::usage(format!("--until {until}: {wrong}")))
}

/// Returns the matrix-product algorithms to reuse, from the run `named`, the run that is continued, or the
/// run of the checkpoint. This makes both arms of a comparison, and both halves of a resumed run, round
/// alike.
fn algorithms(
    origin: &Origin,
    loaded: Option<&Loaded>,
    named: Option<&Path>,
    plan: &Plan,
) -> Result<Option<Algorithms>> {
    let Some(gpu) = plan.execution.gpu else { return Ok(None) };
    let own = match origin {
        Origin::Resume(run) | Origin::Fork { run, .. } => Some(run.join(ALGORITHMS)),
        Origin::Fresh => None,
    };
    let of_checkpoint = loaded.and_then(|loaded| Some(run_of(loaded)?.join(ALGORITHMS)));
    let own = own.filter(|path| path.exists()).or(of_checkpoint);
    let table = match (named, own) {
        (Some(run), _) => read_algorithms(&run.join(ALGORITHMS))?,
        (None, Some(path)) if path.exists() => read_algorithms(&path)?,
        _ => return Ok(None),
    };
    let name = Gpu::properties_of(gpu)?.name;
    if named.is_some() && !table.is_for(&name, cuda::library_version()) {
        return Err(Error::usage(format!(
            "the algorithms to reuse are for {} with cuBLASLt {}, but this is {name} with {}, so they do not apply. \
             Leave --algos-from out",
            table.gpu,
            table.cublaslt,
            cuda::library_version()
        )));
    }
    Ok(Some(table))
}

fn read_algorithms(path: &Path) -> Result<Algorithms> {
    let bytes = stored::read(path)?;
    Algorithms::from_json(&String::from_utf8_lossy(&bytes))
        .map_err(|e| Error::usage(format!("{} {e}", path.display())))
}

/// Replaces a fresh start by a resume of the newest unfinished run of this recipe, if
/// `checkpoint.resume = "auto"`.
///
/// # Errors
/// If another process uses that run, or the results cannot be read.
pub(super) fn resolve_origin(origin: Origin, recipe: &Recipe, results: &Path) -> Result<Origin> {
    if origin != Origin::Fresh || recipe.values().checkpoint.resume != Resume::Auto {
        return Ok(origin);
    }
    Ok(unfinished(results, recipe)?.map_or(Origin::Fresh, Origin::Resume))
}

/// Returns the newest unfinished run of a recipe, found by its hash, its paths, its measuring keys and what
/// it began from: a fork began with the state of another run, so it is not the recipe's. Fails if another
/// process works on it, because `checkpoint.resume = "auto"` must not start a second run beside it.
///
/// # Errors
/// Fails like [`RunFolder::open`].
fn unfinished(results: &Path, recipe: &Recipe) -> Result<Option<PathBuf>> {
    // A recompute mode that the plan chooses may have been any mode.
    let hashes = Recompute::ALL.iter().map(|mode| recipe.clone().with_recompute(*mode).hash());
    let hashes: HashSet<String> = hashes.collect();
    for path in find::runs(results)? {
        let Some(summary) = find::summary_or_warn(&path) else { continue };
        if hashes.contains(&summary.recipe_hash)
            && summary.status.is_unfinished()
            && reads_alike(&path, recipe)
            && origin::began_alike(&path, recipe)
        {
            return RunFolder::open(&path).map(|_| Some(path));
        }
    }
    Ok(None)
}

/// Returns false only if a run is known to train or measure on different text than a recipe. Paths may differ
/// where nothing is left at those of the run: its files have moved, and the resume compares their content.
fn reads_alike(run: &Path, recipe: &Recipe) -> bool {
    let before = recipe::load(&run.join(RESOLVED), &[], std::iter::empty(), &Machine::none());
    let Ok(before) = before else { return true };
    let changes = recipe::diff(before.values(), recipe.values());
    changes.iter().all(|change| match change.is_of_paths() {
        true => !change.old_paths().iter().any(|path| path.exists()),
        false => change.class != Class::Measuring,
    })
}
