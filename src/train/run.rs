//! A whole run: corpus, plan, folder, ranks, summary.

use super::Outcome;
use super::gauges::provenance;
use super::generate::prompt;
use super::ranks::{Crew, Lead, dismiss, train_ranks};
use super::recorder::{Parts, Recorder};
use super::resume::{start, unfinished};
use crate::checkpoint::{END_TOKEN_ID, Meta};
use crate::data::{self, Dataset};
use crate::device::cuda::{self, Algorithms, Gpu};
use crate::error::{Error, Kind, Result};
use crate::exec::BadTensor;
use crate::forecast::memory::peak_bytes;
use crate::forecast::time::predicted_step_ms;
use crate::forecast::{SMALLER, check_fits};
use crate::format::binary;
use crate::machine::{Gpus, Machine};
use crate::model::Programs;
use crate::plan::{Corpus, Plan, data_spec};
use crate::policy::{DeviceChoice, Resume};
use crate::ranks::{LastWords, Party, Stop, fault, process};
use crate::recipe::Recipe;
use crate::results::atomic;
use crate::results::folder::{ALGORITHMS, SUMMARY, read_summary};
use crate::results::progress::{Mode, Progress};
use crate::results::provenance::{Cpu, Environment};
use crate::results::{RunFolder, Status, Summary, memory};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where a run begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// At step 0, in a new folder; or in that of this recipe's newest unfinished run, where it says so.
    Fresh,
    /// Where the newest good checkpoint of this run ends, in its folder.
    Resume(PathBuf),
    /// Where the newest good checkpoint of another run ends, in a new folder, with training keys changed.
    Fork(PathBuf),
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The recipe.
    pub resolved: Recipe,
    /// The machine that it runs on.
    pub machine: Machine,
    /// Where run folders go.
    pub results: PathBuf,
    /// How progress is shown.
    pub progress: Mode,
    /// Where it begins.
    pub origin: Origin,
    /// A run whose choices of matrix-product algorithms are taken over.
    pub algorithms_from: Option<PathBuf>,
    /// The command line that asked for it.
    pub command: Vec<String>,
}

/// A run that is over, well or not.
#[derive(Debug)]
pub struct Ended {
    /// Its folder, still held.
    pub folder: RunFolder,
    /// Its summary, as it stands in the folder.
    pub summary: Summary,
    /// An error unless every step is trained: 75 when a signal stopped the run after a save, 1 when it failed or
    /// diverged.
    pub outcome: Result<()>,
}

/// Trains a recipe to its end, or to a signal, with the ranks of `party`, of which rank 0 is one. A run that is finished
/// already stays as it is.
///
/// # Errors
/// Before anything is written: exit 2 for a recipe or corpus that is wrong, or that is not of the run to go on with,
/// 4 for one that does not fit. What happens once the run's folder is open ends in [`Ended`] and the summary, unless
/// the folder cannot be written.
pub fn run(request: Request, party: &Party, stop: &Stop) -> Result<Ended> {
    let words = LastWords::when_ended(party.first());
    let ended = lead(request, party, stop, &words);
    if let Err(e) = &ended {
        // Ranks of other processes wait for the beginning.
        party.first().abort(e);
    }
    words.not_needed();
    ended
}

/// Takes part in a run whose rank 0 is in another process; returns once it is over.
///
/// # Errors
/// As [`run`], for this process's ranks.
pub fn follow(resolved: Recipe, machine: &Machine, party: &Party, stop: &Stop) -> Result<Outcome> {
    let words = LastWords::when_ended(party.first());
    let trained = prepare(&resolved, machine, party).and_then(|(plan, programs, dataset)| {
        fault::check(plan.batch.world, 0, plan.steps as u64)?;
        let crew = Crew { resolved, plan, programs, dataset, stop: stop.clone() };
        train_ranks(party, &crew, None)
    });
    if let Err(e) = &trained {
        party.first().abort(e);
    }
    words.not_needed();
    trained
}

fn lead(request: Request, party: &Party, stop: &Stop, words: &LastWords) -> Result<Ended> {
    let Request { resolved, machine, results, progress, origin, algorithms_from, command } = request;
    let origin = match origin {
        Origin::Fresh if resolved.values().checkpoint.resume == Resume::Auto => {
            unfinished(&results, &resolved.hash())?.map_or(Origin::Fresh, Origin::Resume)
        }
        asked => asked,
    };
    // Whoever else works on the run is found before a corpus is opened.
    let opened = match &origin {
        Origin::Resume(path) => Some(RunFolder::open(path)?),
        Origin::Fresh | Origin::Fork(_) => None,
    };
    let began = Instant::now();
    let (plan, programs, dataset) = prepare(&resolved, &machine, party)?;
    let corpus_took = began.elapsed();
    let mut recipe_hash = resolved.hash();
    let start = start(&origin, &resolved, &plan, &programs, &dataset)?;
    let from_step = start.step();
    fault::check(plan.batch.world, from_step, plan.steps as u64)?;
    let algorithms = algorithms(&origin, algorithms_from.as_deref(), &plan)?;
    let mut progress =
        Progress::new(progress, plan.steps as u64, plan.batch.tokens_per_step() as u64, plan.corpus.floor);
    let resumed = opened.is_some();
    let (folder, mut summary) = match opened {
        Some(folder) => {
            let mut summary = folder.summary()?;
            if summary.status == Status::Ok && from_step == plan.steps as u64 {
                progress.note(&format!(
                    "{} is finished: all {from_step} steps are trained. `xrun resume RUN --fork training.steps=N` \
                     trains further, in a new run",
                    folder.path().display()
                ));
                let crew = Crew { resolved, plan, programs, dataset, stop: stop.clone() };
                dismiss(party, &crew, folder.path())?;
                return Ok(Ended { folder, summary, outcome: Ok(()) });
            }
            // `resolved.toml` has the ranks that were `"auto"` as a number: where nothing was changed, the hash stays that
            // of the recipe as written.
            if start.changes.is_empty() {
                recipe_hash.clone_from(&summary.recipe_hash);
            } else {
                summary.recipe_hash.clone_from(&recipe_hash);
            }
            (folder, summary)
        }
        None => {
            let folder = RunFolder::create(&results, &plan.name, &recipe_hash[..8], Timestamp::now())?;
            folder.write_recipe(&as_written(&resolved))?;
            let name = folder.name();
            (folder, Summary::started(&plan.name, &name, &recipe_hash, plan.steps as u64))
        }
    };
    progress.begin(folder.path());
    folder.write_resolved(&resolved.to_toml())?;
    let gpus: Vec<usize> = plan.execution.gpus().collect();
    let gpu = (!gpus.is_empty()).then(|| provenance(&gpus, plan.execution.channels)).transpose()?;
    folder.write_environment(&Environment {
        gpu,
        command,
        ..Environment::detect(plan.execution.threads, Timestamp::now())
    })?;
    atomic::write(&folder.path().join(TOKENIZER), dataset.tokenizer.to_json().as_bytes())?;
    describe(&mut summary, &plan, &programs, &dataset);
    let changed = |change: &String| format!("after step {from_step} with {change}");
    summary.notes.extend(start.changes.iter().map(changed));
    let apart = plan.batch.world > 1 && !plan.execution.communicate;
    if apart && !summary.notes.iter().any(|note| note == APART) {
        summary.notes.push(APART.to_owned());
    }

    let mut recorder = Recorder::new(Parts {
        meta: meta(&resolved, &recipe_hash, &plan, &dataset),
        plan: Arc::clone(&plan),
        planned_bytes: peak_bytes(&plan, &programs) as u64,
        judge: resolved.values().data.corpus == STORIES,
        progress,
        folder,
        summary,
        from_step,
        resumed,
    })?;
    recorder.note(&format!("{}: {}", plan.name, dataset.description))?;
    for warning in dataset.warnings.iter().chain(&start.warnings) {
        recorder.warn(warning)?;
    }
    for change in &start.changes {
        recorder.note(&format!("changed: {change}"))?;
    }
    if let Some(loaded) = &start.loaded {
        recorder.note(&format!("going on from step {from_step} ({})", loaded.path().display()))?;
    }
    if let (None, Gpus::Unusable(reason)) = (plan.execution.gpu, &machine.gpus)
        && resolved.values().engine.device == DeviceChoice::Auto
        && cuda::libraries::Nvidia::Driver.open().is_some()
    {
        recorder.warn(&format!("this runs on the CPU, for {reason}"))?;
    }
    for note in &party.notes {
        recorder.note(note)?;
    }
    let folder = recorder.folder().to_owned();
    let path = folder.clone();
    words.leave(move |error| mark_failed(&path, error));
    process::writes_to(party, folder.clone());
    let recorder = Mutex::new(Some(recorder));
    let crew = Crew { resolved, plan, programs, dataset, stop: stop.clone() };
    let (loaded, algorithms) = (start.loaded.as_ref(), algorithms.as_ref());
    let lead = Lead { recorder: &recorder, folder, corpus_took, from_step, loaded, algorithms };
    let outcome =
        train_ranks(party, &crew, Some(&lead)).map_err(|e| explain_refusal(e, &crew.plan, &crew.programs));
    let recorder = recorder.into_inner().ok().flatten();
    let recorder = recorder.ok_or_else(|| Error::failed("rank 0 was lost with the run's files open"))?;
    conclude(recorder, outcome)
}

/// What the summary of a run says whose ranks do not exchange gradients.
const APART: &str = "communication off: replicas differ, nothing of this run may be exported";

/// How long writing down how a run ended may take: what a run hangs on may be the disk.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// Writes down how a run ended whose rank 0 cannot do so itself. Where that fails, the caller's error on stderr remains.
pub fn mark_failed(folder: &Path, error: &Error) {
    let (folder, error) = (folder.to_owned(), error.clone());
    let (writes, written) = channel::<()>();
    std::thread::spawn(move || {
        let running = read_summary(&folder).ok().filter(|summary| summary.status == Status::Running);
        if let Some(mut summary) = running {
            (summary.status, summary.reason) = (failure(&error), Some(error.message().to_owned()));
            if let Ok(text) = serde_json::to_vec_pretty(&summary) {
                let _ = atomic::write(&folder.join(SUMMARY), &text);
            }
        }
        drop(writes);
    });
    let _ = written.recv_timeout(LAST_WRITE);
}

/// Opens the corpus, plans, records the programs, and refuses what does not fit.
pub(super) fn prepare(
    recipe: &Recipe,
    machine: &Machine,
    party: &Party,
) -> Result<(Arc<Plan>, Arc<Programs>, Arc<Dataset>)> {
    let machine = machine.clone().with_ranks(party.on_machine(), party.processes_on_machine());
    let dataset = data::open(&data_spec(recipe), recipe.values().training.seq_len)?;
    let plan = Plan::new(recipe, &corpus_facts(&dataset), &machine)?;
    if plan.generation.samples > 0 {
        // At the end of a training it would be too late to say so.
        prompt(&plan.generation, &dataset.tokenizer, plan.batch.seq_len)?;
    }
    let programs = Programs::new(&plan)?;
    check_fits(&plan, &programs, &machine)?;
    Ok((Arc::new(plan), Arc::new(programs), Arc::new(dataset)))
}

/// The corpus whose grammar can tell whether a sentence is one of its own.
const STORIES: &str = "stories";

/// The name of the tokenizer in a run folder.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// The table of algorithms that a run takes over: that of the run named, or its own where it goes on. Both sides of a
/// comparison, and both halves of a resumed run, compute with the same.
fn algorithms(origin: &Origin, from: Option<&Path>, plan: &Plan) -> Result<Option<Algorithms>> {
    let Some(gpu) = plan.execution.gpu else { return Ok(None) };
    let own = match origin {
        Origin::Resume(run) | Origin::Fork(run) => Some(run.as_path()),
        Origin::Fresh => None,
    };
    let table = match (from, own.map(|run| run.join(ALGORITHMS))) {
        (Some(run), _) => Algorithms::read(&run.join(ALGORITHMS))?,
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

/// Why a run diverged.
pub fn not_taken(step: u64, bad: &BadTensor) -> String {
    format!("step {step} was not taken: {} ({}) holds {}", bad.tensor, bad.op, bad.value)
}

/// Turns the end of the loop into a summary and an exit code.
fn conclude(recorder: Recorder, ended: Result<Outcome>) -> Result<Ended> {
    match ended {
        Ok(Outcome::Finished) => {
            let (folder, summary) = recorder.finish(Status::Ok, None)?;
            Ok(Ended { folder, summary, outcome: Ok(()) })
        }
        Ok(Outcome::Interrupted) => {
            let saves = recorder.saves();
            let (folder, summary) =
                recorder.finish(Status::Interrupted, Some("stopped by a signal".into()))?;
            let (steps, path) = (summary.steps, folder.path().display());
            let then = match saves {
                true => format!("saved; `xrun resume {path}` goes on"),
                false => "with nothing saved (checkpoint.keep = 0): a resume begins anew".to_owned(),
            };
            let error =
                Error::new(Kind::Interrupted, format!("stopped by a signal after step {steps}, {then}"));
            Ok(Ended { folder, summary, outcome: Err(error) })
        }
        Ok(Outcome::Diverged { step, bad }) => {
            let reason = not_taken(step, &bad);
            let (folder, summary) = recorder.finish(Status::Diverged, Some(reason.clone()))?;
            let error = Error::failed(format!(
                "diverged: {reason}; the parameters are those of step {}. See {}; a lower optimizer.lr or a longer \
                 lr_scheduler.warmup_steps is the usual next try",
                step - 1,
                folder.path().display()
            ));
            Ok(Ended { folder, summary, outcome: Err(error) })
        }
        // The run's own error matters more than one of writing it down.
        Err(e) => match recorder.finish(failure(&e), Some(e.message().to_string())) {
            Ok((folder, summary)) => Ok(Ended { folder, summary, outcome: Err(e) }),
            Err(_) => Err(e),
        },
    }
}

/// Says of memory that was refused what the plan had foreseen, and what to turn.
fn explain_refusal(error: Error, plan: &Plan, programs: &Programs) -> Error {
    if error.kind() != Kind::DoesNotFit {
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

/// How a run that ended by an error is reported.
fn failure(error: &Error) -> Status {
    if error.kind() == Kind::DoesNotFit { Status::Oom } else { Status::Failed }
}

/// What the corpus says of itself once it is open.
pub fn corpus_facts(dataset: &Dataset) -> Corpus {
    Corpus {
        vocab_size: dataset.tokenizer.vocab_size(),
        train_tokens: dataset.train.len(),
        exact: true,
        validation_tokens: dataset.validation.len(),
        floor: dataset.floor,
    }
}

fn describe(summary: &mut Summary, plan: &Plan, programs: &Programs, dataset: &Dataset) {
    summary.steps_planned = plan.steps as u64;
    summary.parameters = Some(programs.state.parameter_count() as u64);
    summary.parameters_core = Some(programs.state.core_parameter_count() as u64);
    summary.corpus_hash = Some(dataset.hash.clone());
    summary.floor = dataset.floor;
    let gpu = plan.execution.gpu.and_then(|gpu| Gpu::properties_of(gpu).ok());
    summary.predicted_step_ms = gpu.and_then(|gpu| predicted_step_ms(plan, programs, &gpu.name));
    summary.memory.planned_bytes = Some(peak_bytes(plan, programs) as u64);
    summary.memory.baseline_rss_bytes = memory::rss_bytes();
}

/// What the bits of a run depend on besides the recipe.
pub(super) fn engine_name(plan: &Plan) -> String {
    let cpu = || format!("cpu {}", Cpu::detect(plan.execution.threads).instructions);
    plan.execution.gpu.map_or_else(cpu, |gpu| cuda::describe(gpu).unwrap_or_else(|e| e.message().to_string()))
}

fn meta(resolved: &Recipe, recipe_hash: &str, plan: &Plan, dataset: &Dataset) -> Meta {
    Meta {
        step: 0,
        tokens_seen: 0,
        recipe_hash: recipe_hash.to_string(),
        resolved_recipe_toml: resolved.to_toml(),
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

/// The files of a recipe as written, the outermost first.
fn as_written(resolved: &Recipe) -> String {
    let mut text = String::new();
    for (path, written) in resolved.files() {
        if resolved.files().len() > 1 {
            text += &format!("# ---- {}\n", path.display());
        }
        text += written;
        if !written.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}
