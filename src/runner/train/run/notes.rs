//! The first lines of a run's log: where it starts, and what it needs.

use crate::device::cuda;
use crate::error::Result;
use crate::forecast::RunNeeds;
use crate::machine::{Gpus, Machine};
use crate::model::flops_per_token;
use crate::plan::Plan;
use crate::policy::DeviceChoice;
use crate::recipe::Recipe;
use crate::results::progress::eprint_line;
use crate::train::calibrate::{cpu_pace, known_cpu_pace};
use crate::train::initial::weights::InitialWeights;
use crate::train::job::Job;
use crate::train::recorder::Recorder;
use crate::train::start::Start;

/// Writes notes and warnings about the start and the launch, and what the run needs.
///
/// # Errors
/// If the log cannot be written.
pub(super) fn write(
    recorder: &mut Recorder,
    job: &Job,
    start: &Start,
    launch: &[String],
    needs: Option<&RunNeeds>,
) -> Result<()> {
    write_start(recorder, job, start, launch)?;
    if let Some(initial) = &start.initial {
        write_initial(recorder, initial)?;
    }
    needs.map_or(Ok(()), |needs| write_needs(recorder, &job.plan, needs))
}

/// Writes notes and warnings about the start to the log.
fn write_start(recorder: &mut Recorder, job: &Job, start: &Start, launch: &[String]) -> Result<()> {
    let (plan, dataset) = (&job.plan, &job.dataset);
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

/// Notes the weights with which the run begins.
fn write_initial(recorder: &mut Recorder, initial: &InitialWeights) -> Result<()> {
    let folder = initial.weights.folder().path().display();
    recorder.note(&format!("begins with the weights of {folder}, content {}", &initial.hash[..8]))
}

/// Notes what the run needs.
fn write_needs(recorder: &mut Recorder, plan: &Plan, needs: &RunNeeds) -> Result<()> {
    recorder.note(&format!("this takes {}", needs.in_words()))?;
    let is_long = needs.time.as_ref().is_some_and(|time| time.total_s > LONG_S);
    if is_long && plan.execution.gpu.is_none() {
        recorder.note(
            "it runs on the CPU, which takes that long: quickstart is a recipe for a CPU, and fewer training.steps or \
             a smaller model.dim take less time",
        )?;
    }
    Ok(())
}
