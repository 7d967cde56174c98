//! What is recorded of a run before its first step: its folder, its summary, the metadata of its checkpoints,
//! and the first lines of its log.

use crate::checkpoint::{INITIAL_WEIGHTS, Meta, Store};
use crate::data::{Dataset, HeldOut, OpenedSource};
use crate::device::cuda::{self, Gpu};
use crate::error::Result;
use crate::forecast::RunNeeds;
use crate::forecast::memory::peak_bytes;
use crate::forecast::time::predicted_step_ms;
use crate::format::thousands;
use crate::machine::{Gpus, Machine};
use crate::model::flops_per_token;
use crate::plan::Plan;
use crate::policy::DeviceChoice;
use crate::ranks::LocalRanks;
use crate::recipe::Recipe;
use crate::results::folder::{PLOTS, read_summary};
use crate::results::held_out::HeldOutSet;
use crate::results::origin::{BeganFrom, Origin};
use crate::results::progress::{Progress, eprint_line};
use crate::results::summary::SourceRecord;
use crate::results::summary::{BegunWith, HeldOutPart};
use crate::results::{RunFolder, Summary, memory};
use crate::train::calibrate::{cpu_pace, known_cpu_pace};
use crate::train::conclude::Ended;
use crate::train::gauges::{engine_name, environment};
use crate::train::import::{shown, untrained_meta};
use crate::train::initial::weights::InitialWeights;
use crate::train::job::Job;
use crate::train::of_checkpoint::run_of;
use crate::train::recorder::{Recorder, task_entries};
use crate::train::run_ranks::announce_finished;
use crate::train::start::{LossesBefore, Start, corpus_files};
use std::path::Path;

/// Returns the folder of a run with its summary: either `resumed`, or a new one with a copy of the recipe.
/// The summary of a resumed run decides whether the recipe is still the original one.
///
/// # Errors
/// If the folder cannot be read or created.
pub(super) fn open(
    resumed: Option<RunFolder>,
    results: &Path,
    job: &mut Job,
    start: &mut Start,
) -> Result<(RunFolder, Summary)> {
    let Some(folder) = resumed else { return create(results, job) };
    let summary = read_summary(folder.path())?;
    if !summary.is_finished() {
        adopt_summary(job, start, &summary);
    }
    Ok((folder, summary))
}

/// Leaves a run unchanged whose steps are all trained, and tells the user and the other ranks.
///
/// # Errors
/// If a rank is lost, its recipe differs, or the folder of checkpoints cannot be opened.
pub(super) fn leave_finished(
    folder: RunFolder,
    ranks: &LocalRanks,
    job: &Job,
    start: &Start,
    mut progress: Progress,
) -> Result<Ended> {
    let draws = job.recipe.values().metrics.plots;
    if start.is_own {
        // The last save may have failed to point to its checkpoint. Nothing of a finished run is removed.
        let mut store = Store::open(&folder.checkpoints()?, usize::MAX)?;
        store.keeps_best = job.plan.intervals.checkpoint.keep_best;
        store.repair().iter().for_each(|warning| progress.warn(&format!("warning: {warning}")));
    }
    note_finished(&mut progress, folder.path(), job.steps(), start.is_own, draws);
    announce_finished(ranks, job, folder.path())?;
    Ok(Ended { folder: Some(folder), was_finished: true, outcome: Ok(()) })
}

/// Adopts from a resumed run's summary the recipe hash and the differences that the checkpoint does not show.
fn adopt_summary(job: &mut Job, start: &mut Start, summary: &Summary) {
    // `resolved.toml` stores `"auto"` ranks as a number. If nothing was changed, the hash must stay the hash
    // of the recipe as written.
    if start.changes.is_empty() {
        // Prefers the checkpoint's hash, because it is verified.
        let own = start.loaded.as_ref().filter(|_| start.is_own);
        let saved = own.map(|loaded| &loaded.meta().recipe_hash);
        job.recipe_hash.clone_from(saved.unwrap_or(&summary.recipe_hash));
    }
    if start.step() > 0 && summary.val_part.is_none() && held_out_part(&job.plan).is_some() {
        start.changes.push(SPREAD_NOTE.to_owned());
    }
}

/// Creates the folder of a new run, with a copy of the recipe.
fn create(results: &Path, job: &Job) -> Result<(RunFolder, Summary)> {
    let (plan, hash) = (&job.plan, &job.recipe_hash);
    let folder = RunFolder::create(results, &plan.name, &hash[..8], crate::format::now())?;
    folder.write_recipe(job.recipe.copy())?;
    let name = folder.name();
    Ok((folder, Summary::started(&plan.name, &name, hash, plan.steps as u64)))
}

/// Writes everything that the run depends on: the resolved recipe, the environment, the tokenizer with the
/// settings that name its special tokens and, if the run is new, what it begins from.
///
/// # Errors
/// If the folder cannot be written, or the driver cannot describe a GPU.
pub(super) fn write_provenance(
    folder: &RunFolder,
    (job, start): (&Job, &Start),
    is_new: bool,
    command: &[String],
) -> Result<()> {
    if is_new {
        write_origin(folder, job, start)?;
    }
    folder.write_resolved(&job.recipe.to_toml())?;
    folder.write_environment(&environment(&job.plan, command.to_vec())?)?;
    job.dataset.tokenizer.write(folder.path())
}

/// Records what a new run begins from.
///
/// # Errors
/// If the file cannot be written.
fn write_origin(folder: &RunFolder, job: &Job, start: &Start) -> Result<()> {
    let began_from = match (&start.forked_from, &start.loaded, &start.initial) {
        (Some(fork), Some(loaded), _) => BeganFrom::Checkpoint {
            folder: shown(run_of(loaded).unwrap_or(loaded.path()))?,
            run: fork.run.clone(),
            step: fork.step,
            tokens_seen: fork.tokens_seen,
            state: loaded.state_hash().to_owned(),
        },
        (_, _, Some(InitialWeights { base, hash, adapter_hash, .. })) => BeganFrom::Weights {
            folder: shown(base.path())?,
            blake3: hash.clone(),
            adapter: adapter_hash.clone(),
        },
        _ => BeganFrom::InitialValues,
    };
    let origin = Origin {
        run: folder.name(),
        recipe: job.plan.name.clone(),
        resolved_recipe_toml: job.recipe.to_toml(),
        corpus_hash: job.dataset.hash.clone(),
        tokenizer_hash: job.dataset.tokenizer.hash(),
        began_from,
    };
    origin.write(folder.path())
}

/// Tells the user that nothing is left to train, and what the run can still be used for. A run with a
/// checkpoint can be forked. Missing plots are drawn again if the recipe draws any.
fn note_finished(progress: &mut Progress, folder: &Path, steps: u64, has_checkpoint: bool, draws: bool) {
    let mut text = format!("{} is finished: all {steps} steps are trained. ", folder.display());
    text += match has_checkpoint {
        true => "`xrun resume RUN --fork training.steps=N` trains further, in a new run",
        false => "It has no checkpoint to continue from; `xrun RUN` trains its recipe again, in a new run",
    };
    if !folder.join(PLOTS).is_dir() {
        text += match draws {
            true => ". Its plots are drawn again",
            false => ". `xrun resume RUN metrics.plots=true` draws its plots",
        };
    }
    progress.note(&text);
}

/// Note in the summary of a resumed run whose evaluations were limited under an earlier version.
const SPREAD_NOTE: &str = "evaluations over batches spread over the held-out text (earlier: its first batches): earlier losses do not compare";

/// Returns the part of the held-out text that evaluations use; `None` without a limit.
pub(super) fn held_out_part(plan: &Plan) -> Option<HeldOutPart> {
    part_for(plan, plan.corpus.validation_tokens)
}

/// Returns the same as [`held_out_part`] for a held-out set of `tokens` tokens.
fn part_for(plan: &Plan, tokens: usize) -> Option<HeldOutPart> {
    let (batches, of) = plan.evaluated_batches_for(tokens);
    (plan.intervals.validation.steps > 0).then_some(HeldOutPart { batches: batches as u64, of: of as u64 })
}

/// Note in the summary of a run whose ranks do not exchange gradients.
const NOT_EXCHANGED_NOTE: &str =
    "communication off: replicas differ, so nothing from this run may be exported";

/// Fills in everything that is known before the first step.
pub(super) fn describe(mut summary: Summary, job: &Job, start: &Start) -> Result<Summary> {
    let Job { plan, programs, dataset, .. } = job;
    summary.recipe_hash.clone_from(&job.recipe_hash);
    summary.steps_planned = plan.steps as u64;
    summary.parameters = Some(programs.state.parameter_count() as u64);
    summary.parameters_core = Some(programs.state.core_parameter_count() as u64);
    summary.corpus_hash = Some(dataset.hash.clone());
    summary.corpus_files = corpus_files(dataset);
    let data = &job.recipe.values().data;
    summary.card.clone_from(&data.card);
    let record = |source: &OpenedSource| {
        let planned = plan.sources.iter().find(|planned| planned.facts.name == source.name);
        let record = SourceRecord {
            hash: source.hash.clone(),
            train_tokens: source.train_tokens.map(|tokens| tokens as u64),
            epochs: planned.map(|planned| planned.epochs),
            card: data.sources.get(&source.name).and_then(|source| source.card.clone()),
        };
        (source.name.clone(), record)
    };
    summary.sources = dataset.sources.iter().map(record).collect();
    let known = std::mem::take(&mut summary.source_losses);
    let losses = |name: &String| (name.clone(), known.get(name).cloned().unwrap_or_default());
    summary.source_losses = summary.sources.keys().map(losses).collect();
    summary.floor = dataset.floor;
    summary.val_part = held_out_part(plan);
    let known = std::mem::take(&mut summary.held_out);
    let entry = |set: &HeldOut| {
        let before = known.get(&set.name).cloned().unwrap_or_default();
        let (hash, part) = (Some(set.hash.clone()), part_for(plan, set.tokens.len()));
        (set.name.clone(), HeldOutSet { hash, part, in_training: set.in_training, ..before })
    };
    summary.held_out = dataset.held_out().map(entry).collect();
    summary.tasks = task_entries(job, &summary.tasks);
    summary.uniform_loss = Some((plan.model.vocab_size as f64).ln());
    let gpu = plan.execution.gpu.and_then(|gpu| Gpu::properties_of(gpu).ok());
    summary.predicted_step_ms = gpu.and_then(|gpu| predicted_step_ms(plan, programs, &gpu.name));
    summary.memory.planned_bytes = Some(peak_bytes(plan, programs) as u64);
    summary.memory.baseline_rss_bytes = memory::rss_bytes();
    if let Some(fork) = &start.forked_from {
        summary.forked_from = Some(fork.clone());
        let LossesBefore { run, sources } = &start.losses_before;
        summary.losses_before.clone_from(run);
        for (source, losses) in &mut summary.source_losses {
            losses.losses_before = sources.get(source).cloned().unwrap_or_default();
        }
    }
    if let Some(InitialWeights { base, hash, .. }) = &start.initial {
        let folder = shown(base.path())?;
        summary.begun_with = Some(BegunWith { folder, blake3: hash.clone() });
    }
    summary.notes.extend(start.kept.iter().cloned());
    let changed = |change: &String| format!("after step {} with {change}", start.step());
    summary.notes.extend(start.changes.iter().map(changed));
    let exchanges = plan.batch.world_size == 1 || plan.execution.communicate;
    if !exchanges && !summary.notes.iter().any(|note| note == NOT_EXCHANGED_NOTE) {
        summary.notes.push(NOT_EXCHANGED_NOTE.to_owned());
    }
    Ok(summary)
}

/// Returns the metadata of checkpoints. Keeps the hash of the initial weights with which this run, or the run
/// that it continues, began.
pub(super) fn meta(job: &Job, start: &Start) -> Meta {
    let Job { recipe, recipe_hash, plan, dataset, .. } = job;
    let before = start.loaded.as_ref().and_then(|loaded| loaded.meta().extra.get(INITIAL_WEIGHTS));
    let weights = start.initial.as_ref().map(|initial| &initial.hash).or(before);
    let mut meta = Meta {
        recipe_hash: recipe_hash.clone(),
        corpus_hash: dataset.hash.clone(),
        world_size: plan.batch.world_size as u64,
        engine: engine_name(plan),
        ..untrained_meta(recipe, &dataset.tokenizer, weights.map(String::as_str))
    };
    let stops = start.loaded.as_ref().map(|loaded| loaded.meta().stop_token_ids());
    meta.set_stop_token_ids(&stops.unwrap_or_default());
    meta.set_updates_before(start.updates_before());
    meta
}

/// Writes notes and warnings about the start and the launch, and what the run needs.
///
/// # Errors
/// If the log cannot be written.
pub(super) fn write_notes(
    recorder: &mut Recorder,
    job: &Job,
    start: &Start,
    launch: &[String],
    needs: Option<&RunNeeds>,
) -> Result<()> {
    write_start(recorder, job, start, launch)?;
    if let Some(InitialWeights { base, hash, .. }) = &start.initial {
        let what = if start.optimizer().is_some() { "weights and the optimizer's state" } else { "weights" };
        let place = base.path().display();
        recorder.note(&format!("begins with the {what} of {place}, content {}", &hash[..8]))?;
    }
    needs.map_or(Ok(()), |needs| write_needs(recorder, &job.plan, needs))
}

/// Says how much of a corpus of files the evaluations read; generated corpora describe it themselves.
fn held_out(dataset: &Dataset) -> String {
    if dataset.files.is_empty() {
        return String::new();
    }
    let ((train, exact), held) = (dataset.train_tokens(), dataset.validation.tokens.len());
    let about = if exact { "" } else { "about " };
    format!("; {about}{} tokens to train on, {} held out", thousands(train), thousands(held))
}

/// Writes notes and warnings about the start to the log.
fn write_start(recorder: &mut Recorder, job: &Job, start: &Start, launch: &[String]) -> Result<()> {
    let (plan, dataset) = (&job.plan, &job.dataset);
    recorder.note(&format!("{}: {}{}", plan.name, dataset.description, held_out(dataset)))?;
    if let Some(packed) = &dataset.packed {
        recorder.note(&packed.to_string())?;
    }
    for remark in plan.length_in_words().into_iter().chain(plan.model.remarks(plan.batch.seq_len)) {
        recorder.note(&remark)?;
    }
    for remark in job.recipe.remarks(plan.execution.gpu.is_none()).into_iter().chain(plan.batch.remark()) {
        recorder.warn(&remark)?;
    }
    let unreached = plan.unreached_tokens();
    for warning in dataset.warnings.iter().chain(&unreached).chain(&start.warnings) {
        recorder.warn(warning)?;
    }
    for change in &start.changes {
        recorder.note(&format!("changed: {change}"))?;
    }
    for moved in &start.moved {
        recorder.note(&format!("moved: {moved}"))?;
    }
    for kept in &start.kept {
        recorder.note(kept)?;
    }
    if let Some(fork) = &start.forked_from {
        recorder.note(&format!("fork of {} at step {}", fork.run, fork.step))?;
    }
    if let Some(loaded) = &start.loaded {
        recorder.note(&format!("resuming from step {} ({})", start.step(), loaded.path().display()))?;
    }
    if plan.shards_optimizer() {
        let copies = ", which copy data where they have access to each other's memory";
        let how = if plan.copies_between_gpus() { copies } else { "" };
        recorder.note(&format!("optimizer divided among {} ranks{how}", plan.batch.world_size))?;
    }
    if let Some(choice) = &plan.execution.recompute_choice {
        recorder.note(&format!("activation recompute: {choice}"))?;
    }
    if let Some(warning) = cpu_fallback_warning(&job.recipe, plan, &job.machine) {
        recorder.warn(&warning)?;
    }
    for note in launch {
        recorder.note(note)?;
    }
    Ok(())
}

/// Returns a warning if a run uses the CPU although the machine has a GPU driver, because the GPUs are
/// unusable.
pub fn cpu_fallback_warning(recipe: &Recipe, plan: &Plan, machine: &Machine) -> Option<String> {
    let (None, Gpus::Unusable(reason)) = (plan.execution.gpu, &machine.gpus) else { return None };
    let is_auto = recipe.values().engine.device == DeviceChoice::Auto;
    (is_auto && cuda::libraries::Nvidia::Driver.open().is_some())
        .then(|| format!("this runs on the CPU, because {reason}"))
}

/// Model FLOPs above which a run is long enough (minutes of computation on tens of cores) that the seconds
/// for measuring the CPU do not matter.
const LONG_FLOPS: f64 = 3e13;

/// Predicted seconds above which a CPU run gets a note that it is long.
const LONG_S: f64 = 3600.0;

/// Returns what the run needs, as `plan` reports it. Measures the CPU's speed only if `may_measure` and the
/// run is long. Otherwise uses an earlier measurement, if there is one.
pub(super) fn run_needs(job: &Job, may_measure: bool) -> RunNeeds {
    let Job { recipe, plan, programs, machine, .. } = job;
    let tokens = plan.batch.tokens_in_first_steps(plan.steps as u64) as f64;
    let pace = match may_measure && flops_per_token(plan).value * tokens > LONG_FLOPS {
        true => cpu_pace(plan, machine, eprint_line),
        false => known_cpu_pace(plan, machine),
    };
    RunNeeds::new(plan, programs, &machine.clone().with_cpu_pace(pace), recipe.values().metrics.plots)
}

/// Notes what the run needs.
fn write_needs(recorder: &mut Recorder, plan: &Plan, needs: &RunNeeds) -> Result<()> {
    recorder.note(&needs.in_words())?;
    let is_long = needs.time.as_ref().is_some_and(|time| time.total_s > LONG_S);
    if is_long && plan.execution.gpu.is_none() {
        recorder.note(
            "it runs on the CPU, which takes that long: quickstart is a recipe for a CPU, and fewer training.steps or \
             a smaller model.dim take less time",
        )?;
    }
    Ok(())
}
