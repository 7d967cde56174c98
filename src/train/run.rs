//! A run: its folder, its ranks, its summary.

use super::calibrate::{cpu_pace, known_cpu_pace};
use super::conclude::{Ended, conclude, follower_outcome, mark_failed};
use super::context::{RankZero, RunContext};
use super::devices::DeviceOrder;
use super::gauges::{engine_name, environment};
use super::generate::check_prompt;
use super::import::shown;
use super::initial_values::InitialValues;
use super::initial_weights::InitialWeights;
use super::recorder::{Recorder, RecorderInputs};
use super::request::{Origin, Request};
use super::resume::{Start, corpus_files, start, unfinished};
use super::train_ranks::{announce_finished, train_ranks};
use super::verified::TOKENIZER;
use crate::checkpoint::{END_TOKEN_ID, INITIAL_WEIGHTS, Loaded, Meta};
use crate::data::{Dataset, HeldOut};
use crate::device::cuda::{self, Algorithms, Gpu};
use crate::device::host_allocator::on_refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::forecast::memory::peak_bytes;
use crate::forecast::time::predicted_step_ms;
use crate::forecast::{Planned, RunNeeds, Saving, smaller};
use crate::format::binary;
use crate::machine::{Gpus, Machine};
use crate::model::{Programs, Weights, flops_per_token};
use crate::plan::{Plan, choose_gpus};
use crate::policy::{CorpusSource, DeviceChoice, Resume, WeightsOnly};
use crate::ranks::{ExitGuard, LocalRanks, Stop, fault, process};
use crate::recipe::Recipe;
use crate::results::atomic;
use crate::results::folder::{ALGORITHMS, PLOTS, overwrite_running};
use crate::results::held_out::HeldOutSet;
use crate::results::progress::{Mode, Progress, eprint_line};
use crate::results::summary::{BegunWith, HeldOutPart};
use crate::results::{RunFolder, Status, Summary, memory, stored};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A run that has been opened and not yet planned: what it goes on from is known and, for a resume, locked.
#[derive(Debug)]
pub struct Run {
    /// Its origin is final.
    request: Request,
    /// The machine as the ranks of this process share it.
    machine: Machine,
    /// The folder of the run to resume, where rank 0 is in this process.
    resumed: Option<RunFolder>,
    opened: Instant,
    /// Those of the ranks of this process, whose contexts are being created.
    devices: Arc<DeviceOrder>,
}

impl Run {
    /// Opens a run. With `checkpoint.resume = "auto"`, a fresh start becomes the resume of the newest
    /// unfinished run of the same recipe. The folder to resume is locked before the corpus is opened, so that
    /// a second process on the same run ends at once.
    ///
    /// # Errors
    /// When the folder of a run to resume cannot be read, or another process has it.
    pub fn open(mut request: Request, ranks: &LocalRanks) -> Result<Self> {
        let machine = request.machine.clone().with_ranks(ranks.on_machine(), ranks.processes_on_machine());
        let mut resumed = None;
        if ranks.has_rank_zero() {
            request.origin = resolve_origin(request.origin, &request.recipe, &request.results)?;
            if let Origin::Resume(path) = &request.origin {
                resumed = Some(RunFolder::open(path)?);
            }
        }
        let opened = Instant::now();
        let devices = Arc::new(DeviceOrder::begin(&own_gpus(&request.recipe, &machine, ranks)));
        Ok(Self { request, machine, resumed, opened, devices })
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.request.recipe
    }

    /// The machine as the ranks of this process share it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Trains until the last step or a signal, on the ranks of this process. A run that is finished already
    /// is left as it is. `guard` ends this process if a rank hangs.
    ///
    /// # Errors
    /// Before anything is written: exit 2 for a corpus or a prompt that does not suit the recipe or is not
    /// that of the run to resume. Later errors are in [`Ended`] and the summary, unless the folder cannot be
    /// written.
    pub fn train(
        self,
        planned: Planned,
        dataset: Dataset,
        ranks: &LocalRanks,
        stop: &Stop,
        guard: &ExitGuard,
    ) -> Result<Ended> {
        let Planned { recipe, plan, programs } = planned;
        if plan.generation.samples > 0 {
            // At the end of a training it would be too late to refuse the prompt.
            check_prompt(&plan, &dataset.tokenizer)?;
        }
        let context = RunContext {
            recipe_hash: recipe.hash(),
            recipe,
            plan: Arc::new(plan),
            programs: Arc::new(programs),
            dataset: Arc::new(dataset),
            stop: stop.clone(),
            until: self.request.until,
            initial_values: Arc::new(InitialValues::new(ranks.in_process())),
            devices: Arc::clone(&self.devices),
        };
        match ranks.has_rank_zero() {
            true => self.train_with_rank_zero(context, ranks, guard),
            false => {
                fault::check(context.plan.batch.world_size, 0, context.plan.steps as u64)?;
                let outcome = follower_outcome(train_ranks(ranks, &context, None)?);
                Ok(Ended { folder: None, was_finished: false, outcome })
            }
        }
    }

    fn train_with_rank_zero(
        self,
        mut context: RunContext,
        ranks: &LocalRanks,
        guard: &ExitGuard,
    ) -> Result<Ended> {
        let Self { request, machine, resumed, opened, .. } = self;
        let corpus_took = opened.elapsed();
        let mut start = start(&request.origin, &context)?;
        let (from_step, steps) = (start.step(), context.plan.steps as u64);
        check_until(&context, from_step)?;
        fault::check(context.plan.batch.world_size, from_step, steps)?;
        let initial = match &start.loaded {
            Some(_) => None,
            None => InitialWeights::open(&context.recipe, &context.plan, &context.dataset.tokenizer)?,
        };
        let algorithms = algorithms(&request.origin, request.algorithms_from.as_deref(), &context.plan)?;
        if request.algorithms_from.is_none() {
            start.warnings.extend(start.other_algorithms(algorithms.as_ref()));
        }

        let mut progress = new_progress(request.progress, &context.plan);
        let is_resumed = resumed.is_some();
        let (folder, summary) = match resumed {
            Some(folder) => {
                let summary = folder.summary()?;
                // Not by its checkpoint: a cell of a sweep keeps none, and one may be deleted for its space.
                if summary.is_finished() {
                    let draws = context.recipe.values().metrics.plots;
                    note_finished(&mut progress, folder.path(), steps, start.loaded.is_some(), draws);
                    announce_finished(ranks, &context, folder.path())?;
                    return Ok(Ended { folder: Some(folder), was_finished: true, outcome: Ok(()) });
                }
                go_on(&mut context, &mut start, &summary);
                (folder, summary)
            }
            None => create_folder(&request.results, &context)?,
        };
        progress.begin(folder.path());
        write_provenance(&folder, &context, request.command)?;
        let summary = describe(summary, &context, &start, initial.as_ref())?;
        let path = folder.path().to_owned();
        // Before the run's clock starts, which the recorder has.
        let may_measure = request.progress != Mode::Quiet && context.plan.batch.world_size == 1;
        let needs = (from_step == 0).then(|| needs_of(&context, &machine, may_measure));
        let started = Recorder::new(RecorderInputs {
            meta: meta(&context, initial.as_ref(), start.loaded.as_ref()),
            plan: Arc::clone(&context.plan),
            planned_bytes: peak_bytes(&context.plan, &context.programs) as u64,
            background: Saving::new(&context.plan, &context.programs, &machine).is_beside(),
            judge: context.recipe.values().data.corpus == CorpusSource::Stories,
            progress,
            folder,
            summary,
            from_step,
            from_tokens: start.tokens(),
            resumed: is_resumed,
            saved_rows: start.loaded.as_ref().filter(|_| is_resumed).map(|loaded| loaded.meta().rows.clone()),
        })
        .and_then(|mut recorder| {
            log_start(&mut recorder, &context, &start, &machine, &ranks.notes)?;
            initial.iter().try_for_each(|initial| log_initial(&mut recorder, initial))?;
            needs.iter().try_for_each(|needs| log_needs(&mut recorder, &context.plan, needs))?;
            Ok(recorder)
        });
        // The summary may say already that the run is running.
        let recorder = started.inspect_err(|error| mark_failed(&path, error))?;

        let failed_path = path.clone();
        let refused_path = path.clone();
        guard.before_exit(move |error| mark_failed(&failed_path, error));
        // In place: there may be no memory for a new summary.
        on_refusal(move |_| _ = overwrite_running(&refused_path, Status::Oom));
        process::report_run_folder(ranks, path.clone());
        let recorder = Mutex::new(Some(recorder));
        let algorithms = algorithms.as_ref();
        // Of a checkpoint with parameters alone there is nothing else to restore.
        let weights_only = start.loaded.as_ref().filter(|loaded| loaded.is_weights_only());
        let loaded = start.loaded.as_ref().filter(|_| weights_only.is_none());
        let weights = match (weights_only, &initial) {
            (Some(loaded), _) => Some(loaded as &(dyn Weights + Sync)),
            (None, Some(initial)) => Some(&initial.weights as &(dyn Weights + Sync)),
            (None, None) => None,
        };
        let zero = RankZero {
            recorder: &recorder,
            folder: path,
            corpus_took,
            from_step,
            loaded,
            weights,
            algorithms,
        };
        let outcome = train_ranks(ranks, &context, Some(&zero))
            .map_err(|e| explain_refusal(e, &context.plan, &context.programs));
        let recorder = recorder.into_inner().ok().flatten();
        let recorder = recorder.ok_or_else(|| Error::failed("rank 0 was lost with the run's files open"))?;
        conclude(recorder, outcome)
    }
}

/// Returns the GPUs of the ranks of this process, in their order; none where planning will say what is wrong.
fn own_gpus(recipe: &Recipe, machine: &Machine, ranks: &LocalRanks) -> Vec<usize> {
    let gpus = choose_gpus(recipe, machine).unwrap_or_default();
    ranks.indexes_on_machine().filter_map(|index| gpus.get(index).copied()).collect()
}

/// Replaces a fresh start by a resume of the newest unfinished run of this recipe, where `checkpoint.resume =
/// "auto"`.
fn resolve_origin(origin: Origin, recipe: &Recipe, results: &Path) -> Result<Origin> {
    if origin != Origin::Fresh || recipe.values().checkpoint.resume != Resume::Auto {
        return Ok(origin);
    }
    Ok(unfinished(results, recipe)?.map_or(Origin::Fresh, Origin::Resume))
}

/// Refuses to end a run after a step that it does not reach, or where nothing is saved to go on from.
fn check_until(context: &RunContext, from_step: u64) -> Result<()> {
    let (Some(until), steps) = (context.until, context.plan.steps as u64) else { return Ok(()) };
    let wrong = if until > steps {
        format!("the run has {steps} steps; name one of them, or leave --until out")
    } else if until <= from_step && until < steps {
        format!("the run is at step {from_step} already; name a later one")
    } else if until < steps && context.plan.intervals.weights_only == WeightsOnly::All {
        "checkpoint.weights_only = \"all\" saves no state to go on from; set checkpoint.weights_only=kept"
            .to_owned()
    } else if until < steps && context.plan.intervals.keep == 0 {
        "checkpoint.keep = 0 saves no state to go on from; set checkpoint.keep=1".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::usage(format!("--until {until}: {wrong}")))
}

fn new_progress(mode: Mode, plan: &Plan) -> Progress {
    Progress::new(mode, plan.steps as u64, plan.corpus.floor).with_val_part(held_out_part(plan))
}

/// Says that nothing is left to train, and what can be done with the run: it can be forked where it has a
/// checkpoint, and pictures that are gone are drawn again where its recipe draws any.
fn note_finished(progress: &mut Progress, folder: &Path, steps: u64, has_checkpoint: bool, draws: bool) {
    let mut text = format!("{} is finished: all {steps} steps are trained. ", folder.display());
    text += match has_checkpoint {
        true => "`xrun resume RUN --fork training.steps=N` trains further, in a new run",
        false => "It has no checkpoint to go on from; `xrun RUN` trains its recipe again, in a new run",
    };
    if !folder.join(PLOTS).is_dir() {
        text += match draws {
            true => ". Its pictures are drawn again",
            false => ". `xrun resume RUN metrics.plots=true` draws its pictures",
        };
    }
    progress.note(&text);
}

/// Takes over from the summary of a run that is resumed what decides whether the recipe is still its own.
fn go_on(context: &mut RunContext, start: &mut Start, summary: &Summary) {
    // `resolved.toml` has the ranks that were `"auto"` as a number: where nothing was changed, the hash stays
    // that of the recipe as written.
    if start.changes.is_empty() {
        // The checkpoint's is verified.
        let saved = start.loaded.as_ref().map(|loaded| &loaded.meta().recipe_hash);
        context.recipe_hash.clone_from(saved.unwrap_or(&summary.recipe_hash));
    }
    if start.step() > 0 && summary.val_part.is_none() && held_out_part(&context.plan).is_some() {
        start.changes.push(SPREAD.to_owned());
    }
}

/// Creates the folder of a new run, with a copy of the recipe.
fn create_folder(results: &Path, context: &RunContext) -> Result<(RunFolder, Summary)> {
    let (plan, hash) = (&context.plan, &context.recipe_hash);
    let folder = RunFolder::create(results, &plan.name, &hash[..8], crate::format::now())?;
    folder.write_recipe(context.recipe.copy())?;
    let name = folder.name();
    Ok((folder, Summary::started(&plan.name, &name, hash, plan.steps as u64)))
}

/// Writes what the run depends on: the resolved recipe, the environment, the tokenizer.
fn write_provenance(folder: &RunFolder, context: &RunContext, command: Vec<String>) -> Result<()> {
    folder.write_resolved(&context.recipe.to_toml())?;
    folder.write_environment(&environment(&context.plan, command)?)?;
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
    for remark in plan.model.remarks() {
        recorder.note(&remark)?;
    }
    for warning in dataset.warnings.iter().chain(&start.warnings) {
        recorder.warn(warning)?;
    }
    for change in &start.changes {
        recorder.note(&format!("changed: {change}"))?;
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
    if let Some(warning) = on_cpu_although(&context.recipe, plan, machine) {
        recorder.warn(&warning)?;
    }
    for note in notes {
        recorder.note(note)?;
    }
    Ok(())
}

/// Returns a warning where a run is on the CPU of a machine with a driver of GPUs that cannot be used.
pub fn on_cpu_although(recipe: &Recipe, plan: &Plan, machine: &Machine) -> Option<String> {
    let (None, Gpus::Unusable(reason)) = (plan.execution.gpu, &machine.gpus) else { return None };
    let is_auto = recipe.values().engine.device == DeviceChoice::Auto;
    (is_auto && cuda::libraries::Nvidia::Driver.open().is_some())
        .then(|| format!("this runs on the CPU, for {reason}"))
}

/// Model FLOPs of a run above which the seconds that measuring the CPU takes are few: minutes of computation
/// on tens of cores.
const LONG_FLOPS: f64 = 3e13;

/// Predicted seconds above which a run on the CPU is told that it is long.
const LONG_S: f64 = 3600.0;

/// Returns what the run takes, as `plan` says it. The pace of the CPU is measured only where `may_measure`
/// and the run is long; otherwise it is known from an earlier measurement or not at all.
fn needs_of(context: &RunContext, machine: &Machine, may_measure: bool) -> RunNeeds {
    let RunContext { recipe, plan, programs, .. } = context;
    let tokens = plan.batch.tokens_of_first(plan.steps as u64) as f64;
    let pace = match may_measure && flops_per_token(plan).value * tokens > LONG_FLOPS {
        true => cpu_pace(plan, machine, eprint_line),
        false => known_cpu_pace(plan, machine),
    };
    RunNeeds::new(plan, programs, &machine.clone().with_cpu_pace(pace), recipe.values().metrics.plots)
}

/// Says with which weights the run begins.
fn log_initial(recorder: &mut Recorder, initial: &InitialWeights) -> Result<()> {
    let folder = initial.weights.folder().path().display();
    recorder.note(&format!("begins with the weights of {folder}, content {}", &initial.hash[..8]))
}

/// Says what the run takes.
fn log_needs(recorder: &mut Recorder, plan: &Plan, needs: &RunNeeds) -> Result<()> {
    recorder.note(&format!("this takes {}", needs.in_words()))?;
    let is_long = needs.time.as_ref().is_some_and(|time| time.total_s > LONG_S);
    if is_long && plan.execution.gpu.is_none() {
        recorder.note(
            "it computes on the CPU, which takes that long: quickstart is a recipe for a CPU, and fewer training.steps or \
             a smaller model.dim take less",
        )?;
    }
    Ok(())
}

/// Note in the summary of a run that an earlier version began with a limit on evaluations.
const SPREAD: &str = "evaluations over batches spread over the held-out text (were its first ones): losses before do not compare";

/// Returns the part of the held-out text that evaluations take; `None` without a limit.
fn held_out_part(plan: &Plan) -> Option<HeldOutPart> {
    part_of(plan, plan.corpus.validation_tokens)
}

/// As [`held_out_part`], of a held-out set of so many tokens.
fn part_of(plan: &Plan, tokens: usize) -> Option<HeldOutPart> {
    let (batches, of) = plan.evaluated_batches_of(tokens);
    (plan.intervals.validation_steps > 0).then_some(HeldOutPart { batches: batches as u64, of: of as u64 })
}

/// Note in the summary of a run whose ranks do not exchange gradients.
const NOT_EXCHANGED: &str = "communication off: replicas differ, nothing of this run may be exported";

/// Returns the table of matrix-product algorithms to reuse: that of the run named, or that of the run to
/// resume. So both arms of a comparison, and both halves of a resumed run, round alike.
fn algorithms(origin: &Origin, from: Option<&Path>, plan: &Plan) -> Result<Option<Algorithms>> {
    let Some(gpu) = plan.execution.gpu else { return Ok(None) };
    let own = match origin {
        Origin::Resume(run) | Origin::Fork { run, .. } => Some(run.as_path()),
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
        "{}. The plan is {} of state and {} of activations (placement {:?}). {}",
        error.message(),
        binary(programs.state.bytes()),
        binary(peak_bytes(plan, programs) - programs.state.bytes()),
        plan.execution.placement,
        smaller(plan)
    ))
}

/// Fills in what is known before the first step.
fn describe(
    mut summary: Summary,
    context: &RunContext,
    start: &Start,
    initial: Option<&InitialWeights>,
) -> Result<Summary> {
    let RunContext { plan, programs, dataset, .. } = context;
    summary.recipe_hash.clone_from(&context.recipe_hash);
    summary.steps_planned = plan.steps as u64;
    summary.parameters = Some(programs.state.parameter_count() as u64);
    summary.parameters_core = Some(programs.state.core_parameter_count() as u64);
    summary.corpus_hash = Some(dataset.hash.clone());
    summary.corpus_files = corpus_files(dataset);
    summary.floor = dataset.floor;
    summary.val_part = held_out_part(plan);
    let known = std::mem::take(&mut summary.held_out);
    let entry = |set: &HeldOut| {
        let before = known.get(&set.name).cloned().unwrap_or_default();
        let (hash, part) = (Some(set.hash.clone()), part_of(plan, set.tokens.len()));
        (set.name.clone(), HeldOutSet { hash, part, ..before })
    };
    summary.held_out = dataset.held_out().map(entry).collect();
    summary.uniform_loss = Some((plan.model.vocab_size as f64).ln());
    let gpu = plan.execution.gpu.and_then(|gpu| Gpu::properties_of(gpu).ok());
    summary.predicted_step_ms = gpu.and_then(|gpu| predicted_step_ms(plan, programs, &gpu.name));
    summary.memory.planned_bytes = Some(peak_bytes(plan, programs) as u64);
    summary.memory.baseline_rss_bytes = memory::rss_bytes();
    if let Some(fork) = &start.forked_from {
        summary.forked_from = Some(fork.clone());
    }
    if let Some(InitialWeights { weights, hash }) = initial {
        let folder = shown(weights.folder().path())?;
        summary.begun_with = Some(BegunWith { folder, blake3: hash.clone() });
    }
    summary.notes.extend(start.kept.iter().cloned());
    let changed = |change: &String| format!("after step {} with {change}", start.step());
    summary.notes.extend(start.changes.iter().map(changed));
    let exchanges = plan.batch.world_size == 1 || plan.execution.communicate;
    if !exchanges && !summary.notes.iter().any(|note| note == NOT_EXCHANGED) {
        summary.notes.push(NOT_EXCHANGED.to_owned());
    }
    Ok(summary)
}

/// Returns the metadata of checkpoints; that of the weights which the run or the one it goes on from began
/// with is kept.
fn meta(context: &RunContext, initial: Option<&InitialWeights>, loaded: Option<&Loaded>) -> Meta {
    let end_token = context.dataset.tokenizer.end_token().to_string();
    let mut extra = BTreeMap::from([(END_TOKEN_ID.to_string(), end_token)]);
    let before = loaded.and_then(|loaded| loaded.meta().extra.get(INITIAL_WEIGHTS));
    if let Some(hash) = initial.map(|initial| &initial.hash).or(before) {
        extra.insert(INITIAL_WEIGHTS.to_owned(), hash.clone());
    }
    let RunContext { recipe, recipe_hash, plan, dataset, .. } = context;
    Meta {
        step: 0,
        tokens_seen: 0,
        recipe_hash: recipe_hash.clone(),
        resolved_recipe_toml: recipe.to_toml(),
        corpus_hash: dataset.hash.clone(),
        tokenizer_hash: dataset.tokenizer.hash(),
        world_size: plan.batch.world_size as u64,
        seed: plan.seeds.training,
        xrun_version: env!("CARGO_PKG_VERSION").to_string(),
        engine: engine_name(plan),
        algorithms: None,
        extra,
        rows: BTreeMap::new(),
    }
}
