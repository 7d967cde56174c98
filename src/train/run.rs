//! A whole run: corpus, plan, folder, ranks, summary.

use super::checkpoint::{self, END_TOKEN_ID, Loaded, Meta};
use super::launch::launch;
use super::rank::Rank;
use super::recorder::{Parts, Recorder};
use super::{Outcome, Stop, train};
use crate::data::{self, Dataset};
use crate::device::cpu::Pool;
use crate::error::{Error, Kind, Result};
use crate::model::Programs;
use crate::plan::{Corpus, Plan, data_spec};
use crate::recipe::{self, Class, Resolved};
use crate::results::atomic;
use crate::results::progress::{Mode, Progress};
use crate::results::provenance::{Cpu, Environment};
use crate::results::{RunFolder, Status, Summary, memory};
use jiff::Timestamp;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Where a run begins.
#[derive(Debug)]
pub enum Origin {
    /// At step 0, in a new folder.
    Fresh,
    /// Where this folder's newest good checkpoint ends.
    Resume(RunFolder),
    /// Where the newest good checkpoint of another run ends, in a new folder, with training keys changed.
    Fork(PathBuf),
}

/// What to run.
#[derive(Debug)]
pub struct Request<'a> {
    /// The recipe.
    pub resolved: Resolved,
    /// Where run folders go.
    pub results: &'a Path,
    /// How progress is shown.
    pub progress: Mode,
    /// Where it begins.
    pub origin: Origin,
}

/// Trains a recipe to its end, or to a signal; returns the run's folder and its summary.
///
/// # Errors
/// Exit 2 for a recipe or corpus that is wrong, 4 for one that does not fit, 75 when a signal stopped the run after
/// a save, 1 for a run that failed or diverged. Whatever happens after the folder exists is in its summary.
pub fn run(request: Request<'_>) -> Result<(RunFolder, Summary)> {
    let Request { mut resolved, results, progress, origin } = request;
    let stop = Stop::on_signals()?;
    let recipe_hash = resolved.hash();
    let (plan, programs, dataset) = prepare(&mut resolved)?;

    let loaded = match &origin {
        Origin::Fresh => None,
        Origin::Resume(folder) => checkpoint::newest(&folder.checkpoints()?)?,
        Origin::Fork(run) => Some(
            checkpoint::newest(&run.join("checkpoint"))?
                .ok_or_else(|| Error::usage(format!("{} has no checkpoint to fork from", run.display())))?,
        ),
    };
    let forked = matches!(origin, Origin::Fork(_));
    let mut remarks: Vec<String> = dataset.warnings.iter().map(|w| format!("warning: {w}")).collect();
    if let Some(loaded) = &loaded {
        remarks.extend(loaded.warnings().iter().map(|w| format!("warning: {w}")));
        if !forked {
            remarks.extend(check_resume(loaded, &resolved, &dataset)?);
        }
        remarks.push(format!("going on from step {} ({})", loaded.meta().step, loaded.path().display()));
    }
    let (folder, mut summary) = match origin {
        Origin::Resume(folder) => {
            let summary = folder.summary()?;
            (folder, summary)
        }
        Origin::Fresh | Origin::Fork(_) => {
            let folder = RunFolder::create(results, &plan.name, &recipe_hash[..8], Timestamp::now())?;
            folder.write_recipe(&as_written(&resolved))?;
            let name = folder.name();
            (folder, Summary::begin(&plan.name, &name, &recipe_hash, plan.steps as u64))
        }
    };
    folder.write_resolved(&resolved.to_toml())?;
    folder.write_environment(&Environment::detect(plan.execution.threads, Timestamp::now()))?;
    atomic::write(&folder.path().join(TOKENIZER), dataset.tokenizer.to_json().as_bytes())?;
    describe(&mut summary, &plan, &programs, &dataset);

    let from_step = loaded.as_ref().map_or(0, |l| l.meta().step);
    let progress_line =
        Progress::new(progress, plan.steps as u64, plan.batch.tokens_per_step() as u64, plan.corpus.floor);
    let mut recorder = Recorder::new(Parts {
        meta: meta(&resolved, &recipe_hash, &plan, &dataset),
        plan: Arc::clone(&plan),
        planned_bytes: planned_bytes(&programs) as u64,
        progress: progress_line,
        folder,
        summary,
        from_step,
    })?;
    recorder.note(&format!("{}: {}", plan.name, dataset.description))?;
    for remark in &remarks {
        recorder.note(remark)?;
    }
    let recorder = Mutex::new(Some(recorder));
    let outcome = train_ranks(&plan, &programs, &dataset, &stop, loaded.as_ref(), &recorder);
    let recorder = recorder.into_inner().ok().flatten();
    let recorder = recorder.ok_or_else(|| Error::failed("rank 0 was lost with the run's files open"))?;
    conclude(recorder, outcome)
}

/// Opens the corpus, plans, records the programs, and refuses what does not fit. Paths become absolute.
pub(super) fn prepare(resolved: &mut Resolved) -> Result<(Arc<Plan>, Arc<Programs>, Arc<Dataset>)> {
    resolved.make_paths_absolute(&[&data::GENERATED[..], &data::tokenizer::BUILT_IN[..]].concat())?;
    let dataset = data::open(&data_spec(resolved), resolved.recipe.training.seq_len)?;
    let plan = Plan::new(resolved, corpus_facts(&dataset))?;
    let programs = Programs::new(&plan)?;
    check_fits(&plan, &programs)?;
    Ok((Arc::new(plan), Arc::new(programs), Arc::new(dataset)))
}

/// The name of the tokenizer in a run folder.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Runs the loop on every rank; rank 0 borrows the recorder.
fn train_ranks(
    plan: &Arc<Plan>,
    programs: &Arc<Programs>,
    dataset: &Arc<Dataset>,
    stop: &Stop,
    loaded: Option<&Loaded>,
    recorder: &Mutex<Option<Recorder>>,
) -> Result<Outcome> {
    let pool = Arc::new(Pool::new(plan.execution.threads)?);
    launch(plan.batch.world, |comm| {
        let mut mine = match comm.rank() {
            0 => recorder.lock().ok().and_then(|mut r| r.take()),
            _ => None,
        };
        let trained =
            Rank::new(Arc::clone(plan), Arc::clone(programs), Arc::clone(dataset), Arc::clone(&pool), comm)
                .and_then(|mut rank| {
                    if let Some(loaded) = loaded {
                        rank.restore(loaded)?;
                    }
                    let outcome = train(&mut rank, plan, stop, mine.as_mut())?;
                    if let Some(recorder) = &mut mine {
                        let engine = rank.engine();
                        recorder.allocated((engine.state.bytes() + engine.transient().0) as u64);
                    }
                    Ok(outcome)
                });
        if let (Some(mine), Ok(mut place)) = (mine, recorder.lock()) {
            *place = Some(mine);
        }
        trained
    })
}

/// Turns the end of the loop into a summary and an exit code.
fn conclude(recorder: Recorder, outcome: Result<Outcome>) -> Result<(RunFolder, Summary)> {
    match outcome {
        Ok(Outcome::Finished) => recorder.finish(Status::Ok, None),
        Ok(Outcome::Interrupted) => {
            let (folder, summary) =
                recorder.finish(Status::Interrupted, Some("stopped by a signal".into()))?;
            let text = format!(
                "stopped by a signal after step {}, saved; `xrun resume {}` goes on",
                summary.steps,
                folder.path().display()
            );
            Err(Error::new(Kind::Interrupted, text))
        }
        Ok(Outcome::Diverged { step, bad }) => {
            let reason =
                format!("step {step} was not taken: {} ({}) holds {}", bad.tensor, bad.op, bad.value);
            let (folder, _) = recorder.finish(Status::Diverged, Some(reason.clone()))?;
            Err(Error::failed(format!(
                "diverged: {reason}; the parameters are those of step {}. See {}; a lower optimizer.lr or a longer \
                 lr_scheduler.warmup_steps is the usual next try",
                step - 1,
                folder.path().display()
            )))
        }
        Err(e) => {
            // The run's own error matters more than one of writing it down.
            let _ = recorder.finish(Status::Failed, Some(e.message().to_string()));
            Err(e)
        }
    }
}

/// State and arena, in bytes.
fn planned_bytes(programs: &Programs) -> usize {
    programs.state.bytes() + programs.arena_bytes()
}

/// Refuses what the plan says cannot fit, before anything is allocated.
fn check_fits(plan: &Plan, programs: &Programs) -> Result<()> {
    let machine = memory::total_bytes().map(|b| b as usize);
    let (limit, whose) = match (plan.execution.memory_limit, machine) {
        (Some(limit), _) => (limit, "engine.memory_limit_gib"),
        (None, Some(machine)) => (machine, "this machine's memory"),
        (None, None) => return Ok(()),
    };
    // Ranks are threads of this process, each with its own state and arena.
    let per_rank = planned_bytes(programs);
    let planned = per_rank.saturating_mul(if whose.starts_with("engine") { 1 } else { plan.batch.world });
    if planned <= limit {
        return Ok(());
    }
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    let section = programs.sections().into_iter().max_by_key(|s| s.memory.arena_bytes);
    let largest = section.and_then(|s| {
        let block = *s.memory.holders_of_peak().first()?;
        let tensor = s.program.tensor(*block.tensors.first()?);
        Some(format!(
            "; the largest tensor at the peak is {} {} ({:.2} GiB)",
            tensor.name,
            tensor.spec,
            gib(block.bytes)
        ))
    });
    Err(Error::does_not_fit(format!(
        "does not fit: the plan needs {:.2} GiB (state {:.2}, activations {:.2}), and {whose} is {:.2} GiB{}. \
         Smaller: training.local_batch_size with more training.accumulation, or activation_checkpoint.mode=full",
        gib(planned),
        gib(programs.state.bytes()),
        gib(programs.arena_bytes()),
        gib(limit),
        largest.unwrap_or_default()
    )))
}

/// What the corpus says of itself once it is open.
fn corpus_facts(dataset: &Dataset) -> Corpus {
    Corpus {
        vocab_size: dataset.tokenizer.vocab_size(),
        train_tokens: dataset.train.len(),
        exact: true,
        validation_tokens: dataset.validation.len(),
        floor: dataset.floor,
    }
}

fn describe(summary: &mut Summary, plan: &Plan, programs: &Programs, dataset: &Dataset) {
    let of = |names: &[&str]| -> usize {
        let params = programs.state.params.iter().filter(|p| names.contains(&p.name.as_str()));
        params.map(|p| p.spec.logical_elements()).sum()
    };
    let all = programs.state.parameter_count();
    summary.steps_planned = plan.steps as u64;
    summary.parameters = Some(all as u64);
    summary.parameters_core = Some((all - of(&["embedding", "head"])) as u64);
    summary.corpus_hash = Some(dataset.hash.clone());
    summary.floor = dataset.floor;
    summary.memory.planned_bytes = Some(planned_bytes(programs) as u64);
    summary.memory.baseline_rss_bytes = memory::rss_bytes();
}

/// What the bits of a CPU run depend on besides the recipe.
fn engine_name(plan: &Plan) -> String {
    format!("cpu {}", Cpu::detect(plan.execution.threads).instructions)
}

fn meta(resolved: &Resolved, recipe_hash: &str, plan: &Plan, dataset: &Dataset) -> Meta {
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

/// Compares a checkpoint with what is about to go on from it. Training keys and the corpus must be the same;
/// execution may change, and is returned as remarks.
fn check_resume(loaded: &Loaded, resolved: &Resolved, dataset: &Dataset) -> Result<Vec<String>> {
    let meta = loaded.meta();
    let before = recipe::load_str(
        Path::new("the checkpoint's recipe"),
        &meta.resolved_recipe_toml,
        &[],
        std::iter::empty(),
    )?;
    let mut remarks = Vec::new();
    let mut refused = Vec::new();
    for change in recipe::diff(&before.recipe, &resolved.recipe) {
        let text = format!("{} = {} (was {})", change.key, change.new, change.old);
        match change.class {
            Class::Training => refused.push(text),
            Class::Execution => remarks.push(format!("changed since the checkpoint: {text}")),
            Class::Bookkeeping => {}
        }
    }
    if meta.corpus_hash != dataset.hash {
        refused.push(format!("the corpus has hash {} (was {})", dataset.hash, meta.corpus_hash));
    }
    if !refused.is_empty() {
        return Err(Error::usage(format!(
            "this is not the run that {} belongs to:\n  {}\nundo the change, or start a new run from the checkpoint \
             with `xrun resume RUN --fork`",
            loaded.path().display(),
            refused.join("\n  ")
        )));
    }
    Ok(remarks)
}

/// The files of a recipe as written, the outermost first.
fn as_written(resolved: &Resolved) -> String {
    let mut text = String::new();
    for (path, written) in &resolved.as_written {
        if resolved.as_written.len() > 1 {
            text += &format!("# ---- {}\n", path.display());
        }
        text += written;
        if !written.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}
