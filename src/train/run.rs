//! A whole run: corpus, plan, folder, ranks, summary.

use super::Outcome;
use super::conclude::{Ended, conclude, mark_failed};
use super::context::{RankZero, RunContext};
use super::gauges::{engine_name, provenance};
use super::generate::prompt;
use super::recorder::{Recorder, RecorderInputs};
use super::request::{Origin, Request};
use super::resume::{Start, start, unfinished};
use super::train_ranks::{announce_finished, train_ranks};
use crate::checkpoint::{END_TOKEN_ID, Meta};
use crate::data::{self, Dataset};
use crate::device::cuda::{self, Algorithms, Gpu};
use crate::error::{Error, ErrorKind, Result};
use crate::forecast::memory::peak_bytes;
use crate::forecast::time::predicted_step_ms;
use crate::forecast::{SMALLER, check_fits};
use crate::format::binary;
use crate::machine::{Gpus, Machine};
use crate::model::Programs;
use crate::plan::{Corpus, Plan, data_spec};
use crate::policy::{DeviceChoice, Resume};
use crate::ranks::{ExitGuard, LocalRanks, Stop, fault, process};
use crate::recipe::Recipe;
use crate::results::atomic;
use crate::results::folder::ALGORITHMS;
use crate::results::progress::{Mode, Progress};
use crate::results::provenance::Environment;
use crate::results::{RunFolder, Status, Summary, memory, stored};
use jiff::Timestamp;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Trains a recipe until its last step or a signal, on ranks that include rank 0. A run that is finished
/// already is left as it is.
///
/// # Errors
/// Before anything is written: exit 2 for a recipe or corpus that is invalid or not that of the run to
/// resume, 4 for one that does not fit. Errors after the folder of the run is open are in [`Ended`] and the
/// summary, unless the folder cannot be written.
pub fn run(request: Request, ranks: &LocalRanks, stop: &Stop) -> Result<Ended> {
    let guard = ExitGuard::arm(ranks.first());
    let ended = run_rank_zero(request, ranks, stop, &guard);
    if let Err(e) = &ended {
        // Ranks of other processes wait for the start message.
        ranks.first().abort(e);
    }
    guard.disarm();
    ended
}

/// Trains the ranks of this process in a run whose rank 0 is in another process.
///
/// # Errors
/// As [`run`], for this process's ranks.
pub fn follow(recipe: Recipe, machine: &Machine, ranks: &LocalRanks, stop: &Stop) -> Result<Outcome> {
    let guard = ExitGuard::arm(ranks.first());
    let trained = prepare(&recipe, machine, ranks).and_then(|(plan, programs, dataset)| {
        fault::check(plan.batch.world, 0, plan.steps as u64)?;
        let recipe_hash = recipe.hash();
        let context = RunContext { recipe, recipe_hash, plan, programs, dataset, stop: stop.clone() };
        train_ranks(ranks, &context, None)
    });
    if let Err(e) = &trained {
        ranks.first().abort(e);
    }
    guard.disarm();
    trained
}

fn run_rank_zero(request: Request, ranks: &LocalRanks, stop: &Stop, guard: &ExitGuard) -> Result<Ended> {
    let Request { recipe, machine, results, progress, origin, algorithms_from, command } = request;
    let origin = resolve_origin(origin, &recipe, &results)?;
    // Locked before the corpus is opened, so that a second process on the same run ends at once.
    let resumed = match &origin {
        Origin::Resume(path) => Some(RunFolder::open(path)?),
        Origin::Fresh | Origin::Fork(_) => None,
    };
    let began = Instant::now();
    let (plan, programs, dataset) = prepare(&recipe, &machine, ranks)?;
    let corpus_took = began.elapsed();
    let start = start(&origin, &recipe, &plan, &programs, &dataset)?;
    let (from_step, steps) = (start.step(), plan.steps as u64);
    fault::check(plan.batch.world, from_step, steps)?;
    let algorithms = algorithms(&origin, algorithms_from.as_deref(), &plan)?;
    let recipe_hash = recipe.hash();
    let mut context = RunContext { recipe, recipe_hash, plan, programs, dataset, stop: stop.clone() };

    let mut progress = new_progress(progress, &context.plan);
    let is_resumed = resumed.is_some();
    let (folder, summary) = match resumed {
        Some(folder) => {
            let summary = folder.summary()?;
            if summary.status == Status::Ok && from_step == steps {
                note_finished(&mut progress, folder.path(), steps);
                announce_finished(ranks, &context, folder.path())?;
                return Ok(Ended { folder, summary, outcome: Ok(()) });
            }
            // `resolved.toml` has the ranks that were `"auto"` as a number: where nothing was changed, the
            // hash stays that of the recipe as written.
            if start.changes.is_empty() {
                context.recipe_hash.clone_from(&summary.recipe_hash);
            }
            (folder, summary)
        }
        None => create_folder(&results, &context)?,
    };
    progress.begin(folder.path());
    write_provenance(&folder, &context, command)?;
    let summary = describe(summary, &context, &start);
    let path = folder.path().to_owned();
    let mut recorder = Recorder::new(RecorderInputs {
        meta: meta(&context),
        plan: Arc::clone(&context.plan),
        planned_bytes: peak_bytes(&context.plan, &context.programs) as u64,
        judge: context.recipe.values().data.corpus == STORIES,
        progress,
        folder,
        summary,
        from_step,
        resumed: is_resumed,
    })?;
    log_start(&mut recorder, &context, &start, &machine, &ranks.notes)?;

    let failed_path = path.clone();
    guard.before_exit(move |error| mark_failed(&failed_path, error));
    process::report_run_folder(ranks, path.clone());
    let recorder = Mutex::new(Some(recorder));
    let (loaded, algorithms) = (start.loaded.as_ref(), algorithms.as_ref());
    let zero = RankZero { recorder: &recorder, folder: path, corpus_took, from_step, loaded, algorithms };
    let outcome = train_ranks(ranks, &context, Some(&zero))
        .map_err(|e| explain_refusal(e, &context.plan, &context.programs));
    let recorder = recorder.into_inner().ok().flatten();
    let recorder = recorder.ok_or_else(|| Error::failed("rank 0 was lost with the run's files open"))?;
    conclude(recorder, outcome)
}

/// Replaces a fresh start by a resume of the newest unfinished run of this recipe, where `checkpoint.resume =
/// "auto"`.
fn resolve_origin(origin: Origin, recipe: &Recipe, results: &Path) -> Result<Origin> {
    if origin != Origin::Fresh || recipe.values().checkpoint.resume != Resume::Auto {
        return Ok(origin);
    }
    Ok(unfinished(results, &recipe.hash())?.map_or(Origin::Fresh, Origin::Resume))
}

fn new_progress(mode: Mode, plan: &Plan) -> Progress {
    Progress::new(mode, plan.steps as u64, plan.batch.tokens_per_step() as u64, plan.corpus.floor)
}

fn note_finished(progress: &mut Progress, folder: &Path, steps: u64) {
    progress.note(&format!(
        "{} is finished: all {steps} steps are trained. `xrun resume RUN --fork training.steps=N` trains further, in a \
         new run",
        folder.display()
    ));
}

/// Creates the folder of a new run, with the recipe as written.
fn create_folder(results: &Path, context: &RunContext) -> Result<(RunFolder, Summary)> {
    let (plan, hash) = (&context.plan, &context.recipe_hash);
    let folder = RunFolder::create(results, &plan.name, &hash[..8], Timestamp::now())?;
    folder.write_recipe(&as_written(&context.recipe))?;
    let name = folder.name();
    Ok((folder, Summary::started(&plan.name, &name, hash, plan.steps as u64)))
}

/// Writes what the run depends on: the resolved recipe, the environment, the tokenizer.
fn write_provenance(folder: &RunFolder, context: &RunContext, command: Vec<String>) -> Result<()> {
    folder.write_resolved(&context.recipe.to_toml())?;
    let execution = &context.plan.execution;
    let gpus: Vec<usize> = execution.gpus().collect();
    let gpu = (!gpus.is_empty()).then(|| provenance(&gpus, execution.channels)).transpose()?;
    let environment = Environment::detect(execution.threads, Timestamp::now());
    folder.write_environment(&Environment { gpu, command, ..environment })?;
    atomic::write(&folder.path().join(TOKENIZER), context.dataset.tokenizer.to_json().as_bytes())
}

/// Writes notes and warnings about the start to the log.
fn log_start(
    recorder: &mut Recorder,
    context: &RunContext,
    start: &Start,
    machine: &Machine,
    notes: &[String],
) -> Result<()> {
    let (plan, dataset) = (&context.plan, &context.dataset);
    recorder.note(&format!("{}: {}", plan.name, dataset.description))?;
    for warning in dataset.warnings.iter().chain(&start.warnings) {
        recorder.warn(warning)?;
    }
    for change in &start.changes {
        recorder.note(&format!("changed: {change}"))?;
    }
    if let Some(loaded) = &start.loaded {
        recorder.note(&format!("resuming from step {} ({})", start.step(), loaded.path().display()))?;
    }
    if let (None, Gpus::Unusable(reason)) = (plan.execution.gpu, &machine.gpus)
        && context.recipe.values().engine.device == DeviceChoice::Auto
        && cuda::libraries::Nvidia::Driver.open().is_some()
    {
        recorder.warn(&format!("this runs on the CPU, for {reason}"))?;
    }
    for note in notes {
        recorder.note(note)?;
    }
    Ok(())
}

/// Note in the summary of a run whose ranks do not exchange gradients.
const NOT_EXCHANGED: &str = "communication off: replicas differ, nothing of this run may be exported";

/// Opens the corpus, plans, records the programs, and refuses what does not fit.
pub(super) fn prepare(
    recipe: &Recipe,
    machine: &Machine,
    ranks: &LocalRanks,
) -> Result<(Arc<Plan>, Arc<Programs>, Arc<Dataset>)> {
    let machine = machine.clone().with_ranks(ranks.on_machine(), ranks.processes_on_machine());
    let dataset = data::open(&data_spec(recipe), recipe.values().training.seq_len)?;
    let plan = Plan::new(recipe, &corpus_facts(&dataset), &machine)?;
    if plan.generation.samples > 0 {
        // Checked now: after training it would be too late to report a prompt that does not fit.
        prompt(&plan.generation, &dataset.tokenizer, plan.batch.seq_len)?;
    }
    let programs = Programs::new(&plan)?;
    check_fits(&plan, &programs, &machine)?;
    Ok((Arc::new(plan), Arc::new(programs), Arc::new(dataset)))
}

/// Name of the corpus with a grammar, against which generated sentences are checked.
const STORIES: &str = "stories";

/// File name of the tokenizer in a run folder.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Returns the table of matrix-product algorithms to reuse: that of the run named, or that of the run to
/// resume. So both arms of a comparison, and both halves of a resumed run, round alike.
fn algorithms(origin: &Origin, from: Option<&Path>, plan: &Plan) -> Result<Option<Algorithms>> {
    let Some(gpu) = plan.execution.gpu else { return Ok(None) };
    let own = match origin {
        Origin::Resume(run) | Origin::Fork(run) => Some(run.as_path()),
        Origin::Fresh => None,
    };
    let table = match (from, own.map(|run| run.join(ALGORITHMS))) {
        (Some(run), _) => Algorithms::read(&stored::locate(&run.join(ALGORITHMS))?)?,
        (None, Some(path)) if path.exists() => Algorithms::read(&path)?,
        _ => return Ok(None),
    };
    let name = Gpu::properties_of(gpu)?.name;
    if from.is_some() && !table.is_for(&name, cuda::library_version()) {
        return Err(Error::usage(format!(
            "the algorithms to take over are of {} with cuBLASLt {}, and this is {name} with {}: they mean nothing here. \
             Leave --algos-from out",
            table.gpu,
            table.cublaslt,
            cuda::library_version()
        )));
    }
    Ok(Some(table))
}

/// Adds to an out-of-memory error the planned sizes and the keys that reduce them.
fn explain_refusal(error: Error, plan: &Plan, programs: &Programs) -> Error {
    if error.kind() != ErrorKind::DoesNotFit {
        return error;
    }
    Error::does_not_fit(format!(
        "{}. The plan is {} of state and {} of activations (placement {:?}). {SMALLER}",
        error.message(),
        binary(programs.state.bytes()),
        binary(peak_bytes(plan, programs) - programs.state.bytes()),
        plan.execution.placement
    ))
}

/// Returns the facts about the corpus that a plan needs.
pub fn corpus_facts(dataset: &Dataset) -> Corpus {
    Corpus {
        vocab_size: dataset.tokenizer.vocab_size(),
        train_tokens: dataset.train.len(),
        exact: true,
        validation_tokens: dataset.validation.len(),
        floor: dataset.floor,
    }
}

/// Fills in what is known before the first step.
fn describe(mut summary: Summary, context: &RunContext, start: &Start) -> Summary {
    let RunContext { plan, programs, dataset, .. } = context;
    summary.recipe_hash.clone_from(&context.recipe_hash);
    summary.steps_planned = plan.steps as u64;
    summary.parameters = Some(programs.state.parameter_count() as u64);
    summary.parameters_core = Some(programs.state.core_parameter_count() as u64);
    summary.corpus_hash = Some(dataset.hash.clone());
    summary.floor = dataset.floor;
    let gpu = plan.execution.gpu.and_then(|gpu| Gpu::properties_of(gpu).ok());
    summary.predicted_step_ms = gpu.and_then(|gpu| predicted_step_ms(plan, programs, &gpu.name));
    summary.memory.planned_bytes = Some(peak_bytes(plan, programs) as u64);
    summary.memory.baseline_rss_bytes = memory::rss_bytes();
    let changed = |change: &String| format!("after step {} with {change}", start.step());
    summary.notes.extend(start.changes.iter().map(changed));
    let exchanges = plan.batch.world == 1 || plan.execution.communicate;
    if !exchanges && !summary.notes.iter().any(|note| note == NOT_EXCHANGED) {
        summary.notes.push(NOT_EXCHANGED.to_owned());
    }
    summary
}

fn meta(context: &RunContext) -> Meta {
    let RunContext { recipe, recipe_hash, plan, dataset, .. } = context;
    Meta {
        step: 0,
        tokens_seen: 0,
        recipe_hash: recipe_hash.clone(),
        resolved_recipe_toml: recipe.to_toml(),
        corpus_hash: dataset.hash.clone(),
        tokenizer_hash: dataset.tokenizer.hash(),
        world_size: plan.batch.world as u64,
        seed: plan.seed,
        xrun_version: env!("CARGO_PKG_VERSION").to_string(),
        engine: engine_name(plan),
        algorithms: None,
        extra: [(END_TOKEN_ID.to_string(), dataset.tokenizer.end_token().to_string())].into(),
    }
}

/// Returns the files of a recipe as written, the outermost first.
fn as_written(recipe: &Recipe) -> String {
    let mut text = String::new();
    for (path, written) in recipe.files() {
        if recipe.files().len() > 1 {
            text += &format!("# ---- {}\n", path.display());
        }
        text += written;
        if !written.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}
