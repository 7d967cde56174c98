//! Training: one loop for every number of ranks and every launcher.
//!
//! [`Run::train`] takes a run from its start to its summary. Each rank has a [`Rank`], an engine with its
//! part of the data, and runs the loop, [`train`]. Rank 0 also has a [`Recorder`], which writes results.

mod agreement;
mod begun_run;
mod calibrate;
mod chat;
mod companions;
mod conclude;
mod device_order;
mod energy;
mod events;
mod gauges;
mod generate;
mod held;
mod import;
mod initial;
mod inspect;
mod job;
mod model_checks;
mod of_checkpoint;
mod preference;
mod profile;
mod rank;
mod recorder;
mod reference;
mod replicas;
mod request;
mod restore;
mod run;
mod run_ranks;
mod run_weights;
mod sample;
mod scored_model;
mod scoring_model;
mod set_reference;
mod shards;
mod start;
mod start_message;
mod time_left;
mod timed_length;
mod trained;

pub use agreement::StepRequest;
pub use begun_run::{begun_run_setting, run_with_checkpoint, with_begun_run};
pub use calibrate::cpu_pace;
pub use chat::Chat;
pub use companions::companions;
pub use conclude::{Ended, mark_failed};
pub use gauges::environment;
pub use generate::{Prompt, check_planned_prompt};
pub use import::{ImportRequest, Imported, ModelFolder, import};
pub use initial::base::BaseModel;
pub use initial::optimizer::check_initial_optimizer;
pub use initial::weights::{InitialWeights, check_initial_weights};
pub use initial::{InitialValues, initialize, refresh_compute_copy};
pub use inspect::inspect;
pub use job::{RunData, prepare, prepare_early};
pub use model_checks::{MAX_CHECKED_PARAMETERS, ModelChecks, check_model};
pub use of_checkpoint::{recipe_of, tokenizer_json, tokenizer_of};
pub use profile::{OpTime, Profile, ProfileRequest, Span, profile};
pub use rank::{Evaluated, Evaluation, Rank, ScoredWeights, StepReport};
pub use recorder::Recorder;
pub use reference::{logits, reference};
pub use request::{Origin, Request};
pub use run::{Run, cpu_fallback_warning};
pub use run_weights::RunWeights;
pub use sample::{GenerationTime, Sampled, bench_generation, sample};
pub use scoring_model::{ModelSource, ScoringModel, is_model_folder};
pub use time_left::TimeLeft;
pub use timed_length::with_timed_length;
pub use trained::TrainedRun;

use crate::device::communicator::RankPhase;
use crate::error::Result;
use crate::exec::NonFiniteTensor;
use crate::plan::Plan;
use crate::ranks::Stop;
use crate::results::Phase;
use events::Events;
use recorder::{DueSave, Found};
use std::time::Instant;

/// Status of a rank that writes rows, samples or a checkpoint.
const WRITES: RankPhase = RankPhase::working("writes results");

/// How a training loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps were trained. The recorder knows whether the state was saved.
    Finished,
    /// A stop was requested. The recorder knows why, and whether the state was saved.
    Interrupted,
    /// The loop reached the requested step, before the last one. The recorder knows whether the state was
    /// saved.
    Halted,
    /// A value was not finite. That step updated nothing.
    Diverged {
        /// The step whose update was skipped.
        step: u64,
        /// The first tensor that was not finite.
        bad: NonFiniteTensor,
    },
}

/// Trains until the plan's last step or until the step `until`. A resume continues from there as if there had
/// been no stop.
///
/// Every rank runs this loop, and rank 0 has a recorder. Everything collective (steps, evaluation, the
/// decision to stop) happens on all ranks in the same order.
/// # Errors
/// If data cannot be read, memory runs out, a rank is lost, or results cannot be written.
pub fn train(
    rank: &mut Rank,
    plan: &Plan,
    until: Option<u64>,
    stop: &Stop,
    mut recorder: Option<&mut Recorder>,
) -> Result<Outcome> {
    let events = Events::new(plan, until, rank.holds_a_replica());
    let (mut stopping, mut saving) = (false, false);
    let mut started = Instant::now();
    while rank.done() < events.steps {
        if !stopping && !saving {
            queue_steps(rank, events)?;
        }
        let report = rank.finish_step(request(stop, recorder.as_deref()))?;
        stopping |= report.agreed.stop;
        saving |= report.agreed.save;
        if let Some(bad) = report.bad {
            return Ok(Outcome::Diverged { step: report.step, bad });
        }
        let step = report.step;
        if let Some(recorder) = &mut recorder {
            recorder.trained(&report, started.elapsed())?;
        }
        // Rows are written while later steps run, so the time of writing counts towards those steps.
        started = Instant::now();
        let evaluation = match events.evaluates_after(step) {
            true => Some(evaluate(rank, step, step == events.steps, recorder.as_deref_mut())?),
            false => None,
        };
        let scored = match events.scores_after(step) {
            true => evaluate_tasks(rank, step, recorder.as_deref_mut())?,
            false => Vec::new(),
        };
        let best = match &evaluation {
            Some(evaluation) if plan.intervals.checkpoint.keep_best => {
                is_best(rank, evaluation, recorder.as_deref_mut())?
            }
            _ => false,
        };
        let at_rest = rank.queued_steps() == 0;
        let generates = events.generates_after(step);
        let found = Found { evaluation: evaluation.as_ref(), scored: &scored };
        write_row(rank, &report, found, generates, recorder.as_deref_mut())?;
        let halts = events.halts_after(step);
        let stops = stopping && at_rest && step < events.steps;
        // A resume may continue from a requested checkpoint, so it includes the optimizer if any does.
        let asked = ((stopping || saving) && at_rest) || halts;
        let saves = asked || events.saves_after(step) || best;
        if events.compares_after(step) || (events.replicas && saves && plan.intervals.checkpoint.keep > 0) {
            compare_replicas(rank, step, recorder.as_deref_mut())?;
        }
        // Saving comes last, so that a resume from here repeats nothing of this step.
        if saves && plan.intervals.checkpoint.keep > 0 {
            let whole = plan.intervals.saves_state_after(step, events.steps, asked);
            let ends = stops || halts || step == events.steps;
            save(rank, step, DueSave { whole, ends }, recorder.as_deref_mut())?;
        }
        if saves {
            // After the save. Every read checks the files too, so everything trained so far came from the
            // original corpus.
            rank.check_corpus()?;
        }
        if halts {
            return Ok(Outcome::Halted);
        }
        if stops {
            return Ok(Outcome::Interrupted);
        }
        if events.pauses_after(step) || saves {
            started = Instant::now();
        }
        saving &= !saves;
    }
    Ok(Outcome::Finished)
}

/// Queues steps ahead on the device, but never past a step whose state will be read.
fn queue_steps(rank: &mut Rank, events: Events<'_>) -> Result<()> {
    while rank.queued_steps() < rank.steps_ahead() {
        let last = rank.done() + rank.queued_steps() as u64;
        if rank.queued_steps() > 0 && events.pauses_after(last) {
            break;
        }
        rank.launch_step()?;
    }
    Ok(())
}

/// Returns what this rank asks all ranks to do. A signal on one rank, or a disk that takes no more rows,
/// stops all ranks after the same step: the last one queued on any device.
fn request(stop: &Stop, recorder: Option<&Recorder>) -> StepRequest {
    let full = recorder.is_some_and(|recorder| recorder.write_error.is_some());
    StepRequest {
        stop: stop.requested() || full,
        save: recorder.is_some_and(|recorder| recorder.save_is_due()),
    }
}

/// Evaluates on the held-out sets.
fn evaluate(
    rank: &mut Rank,
    step: u64,
    is_last: bool,
    mut recorder: Option<&mut Recorder>,
) -> Result<Evaluation> {
    let started = Instant::now();
    let evaluation = rank.evaluate(is_last, |done, of| {
        if let Some(recorder) = &mut recorder {
            recorder.evaluating(done, of);
        }
    })?;
    if let Some(recorder) = recorder {
        recorder.time(step, Phase::Eval, started.elapsed())?;
    }
    Ok(evaluation)
}

/// Scores the model on tasks, and writes the scores of all items.
fn evaluate_tasks(
    rank: &mut Rank,
    step: u64,
    mut recorder: Option<&mut Recorder>,
) -> Result<Vec<ScoredWeights>> {
    let started = Instant::now();
    let scored = rank.evaluate_tasks(|done, of| {
        if let Some(recorder) = &mut recorder {
            recorder.scoring(done, of);
        }
    })?;
    if let Some(recorder) = recorder {
        recorder.scored(step, &scored)?;
        recorder.time(step, Phase::Tasks, started.elapsed())?;
    }
    Ok(scored)
}

/// Returns whether an evaluation is the best so far. Only rank 0 knows the earlier best, so it tells all
/// ranks.
fn is_best(rank: &Rank, evaluation: &Evaluation, recorder: Option<&mut Recorder>) -> Result<bool> {
    let best = recorder.map_or(Ok(false), |recorder| recorder.is_best(evaluation))?;
    Ok(rank.comm().broadcast("whether an evaluation is the best", vec![best.into()])? == [1])
}

/// Writes the row of a step, and samples if they are due.
fn write_row(
    rank: &mut Rank,
    report: &StepReport,
    found: Found<'_>,
    generates: bool,
    recorder: Option<&mut Recorder>,
) -> Result<()> {
    if generates {
        rank.gather_parameters()?;
    }
    let Some(recorder) = recorder else { return Ok(()) };
    rank.comm().set_status(report.step, WRITES);
    recorder.row(report, found)?;
    if generates {
        recorder.generate(rank)?;
    }
    Ok(())
}

/// Compares the replicas of all ranks.
fn compare_replicas(rank: &mut Rank, step: u64, recorder: Option<&mut Recorder>) -> Result<()> {
    let started = Instant::now();
    rank.check_replicas()?;
    match recorder {
        Some(recorder) => recorder.time(step, Phase::Check, started.elapsed()),
        None => Ok(()),
    }
}

/// Saves the state or only the weights. Ranks other than 0 answer rank 0's requests.
fn save(rank: &mut Rank, step: u64, due: DueSave, recorder: Option<&mut Recorder>) -> Result<()> {
    rank.comm().set_status(step, WRITES);
    match recorder {
        Some(recorder) => recorder.save(rank, due),
        None => rank.answer_snapshot(),
    }
}
