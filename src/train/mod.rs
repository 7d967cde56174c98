//! Training: one loop, for every number of ranks and every launcher.

mod agreement;
mod bad_location;
mod calibrate;
mod chat;
mod conclude;
mod context;
mod energy;
mod gauges;
mod generate;
mod generation_bench;
mod held;
mod import;
mod init;
mod initial_weights;
mod inspect;
mod phase;
mod prepare;
mod profile;
mod rank;
mod recorder;
mod reference;
mod replicas;
mod request;
mod restore;
mod resume;
mod run;
mod sample;
mod shards;
mod start_message;
mod time_left;
mod train_ranks;
mod trained;
mod verified;

pub use agreement::StepRequest;
pub use calibrate::cpu_pace;
pub use chat::{Chat, ChatRequest};
pub use conclude::{Ended, mark_failed};
pub use gauges::environment;
pub use generate::{Generating, prompt_tokens};
pub use generation_bench::{BenchRequest, GenerationTime, bench_generation};
pub use import::{ImportRequest, Imported, import};
pub use init::{initialize, refresh_compute_copy};
pub use initial_weights::{InitialWeights, check_initial_weights};
pub use inspect::inspect;
pub use prepare::prepare;
pub use profile::{OpTime, Profile, ProfileRequest, Span, profile};
pub use rank::{Evaluated, Evaluation, Rank, StepReport};
pub use recorder::Recorder;
pub use reference::{logits, reference};
pub use request::{Origin, Request, WorkerRequest};
pub use resume::recipe_of;
pub use run::{Run, on_cpu_although};
pub use sample::{SampleRequest, Sampled, sample};
pub use time_left::TimeLeft;
pub use verified::{chat_template, tokenizer_json};

use crate::error::Result;
use crate::exec::NonFiniteTensor;
use crate::plan::{Plan, is_due};
use crate::ranks::Stop;
use phase::WRITES;
use recorder::DueSave;
use std::time::Instant;

/// Result of a training loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step was trained. The recorder knows whether the state was saved.
    Finished,
    /// A stop was requested. The recorder knows why, and whether the state was saved.
    Interrupted,
    /// The step was trained after which the run was to end, before its last one. The recorder knows whether
    /// the state was saved.
    Halted,
    /// A value was not finite. Nothing was updated in that step.
    Diverged {
        /// The step whose update was skipped.
        step: u64,
        /// The first tensor that was not finite.
        bad: NonFiniteTensor,
    },
}

/// Trains until the plan's last step, or until the step `until`, after which a resume goes on as if nothing
/// had been.
///
/// Every rank runs this loop; rank 0 has a recorder. Everything collective (steps, evaluation, the decision
/// to stop) happens on all ranks in the same order.
///
/// # Errors
/// When reading data fails, memory runs out, a rank is lost, or results cannot be written.
pub fn train(
    rank: &mut Rank,
    plan: &Plan,
    until: Option<u64>,
    stop: &Stop,
    mut recorder: Option<&mut Recorder>,
) -> Result<Outcome> {
    let comm = rank.comm();
    let steps = plan.steps as u64;
    let intervals = [plan.intervals.validation, plan.intervals.generation];
    let saves_after = |step| plan.intervals.saves_after(step, steps);
    let halts_after = |step| step < steps && until == Some(step);
    let pauses_after = |step| {
        halts_after(step)
            || saves_after(step)
            || intervals.iter().any(|&interval| is_due(interval, step, steps))
    };
    let replicas = rank.holds_a_replica();
    let compares_after = |step| replicas && is_due(plan.intervals.check, step, steps);
    let (mut stopping, mut saving) = (false, false);
    let mut started = Instant::now();
    while rank.done() < steps {
        // Steps may be queued ahead on a device, but not past a step after which its state is read.
        while rank.queued_steps() < rank.steps_ahead() && !stopping && !saving {
            let last = rank.done() + rank.queued_steps() as u64;
            if rank.queued_steps() > 0 && (pauses_after(last) || compares_after(last)) {
                break;
            }
            rank.launch_step()?;
        }
        // A signal on one rank, or a disk that takes no rows, stops all ranks after the same step: the last
        // one queued on a device.
        let full = recorder.as_ref().is_some_and(|recorder| recorder.write_error().is_some());
        let save = recorder.as_ref().is_some_and(|recorder| recorder.save_is_due());
        let report = rank.finish_step(StepRequest { stop: stop.requested() || full, save })?;
        stopping |= report.stop;
        saving |= report.save;
        if let Some(bad) = report.bad {
            return Ok(Outcome::Diverged { step: report.step, bad });
        }
        let step = report.step;
        if let Some(recorder) = &mut recorder {
            recorder.trained(&report, started.elapsed())?;
        }
        started = Instant::now();
        let mut evaluated = None;
        if is_due(plan.intervals.validation, step, steps) {
            let losses = rank.evaluate(step == steps, |done, of| {
                if let Some(recorder) = &mut recorder {
                    recorder.evaluating(done, of);
                }
            })?;
            evaluated = Some(losses);
            if let Some(recorder) = &mut recorder {
                recorder.evaluated(step, started.elapsed())?;
            }
        }
        let best = match &evaluated {
            // Rank 0 knows which was the best before.
            Some(evaluation) if plan.intervals.keep_best => {
                let best = recorder.as_mut().map_or(Ok(false), |recorder| recorder.is_best(evaluation))?;
                comm.broadcast("whether an evaluation is the best", vec![best.into()])? == [1]
            }
            _ => false,
        };
        let at_rest = rank.queued_steps() == 0;
        if is_due(plan.intervals.generation, step, steps) {
            rank.gather_parameters()?;
        }
        if let Some(recorder) = &mut recorder {
            comm.set_status(step, WRITES);
            recorder.row(&report, evaluated.as_ref())?;
            if is_due(plan.intervals.generation, step, steps) {
                recorder.generate(rank)?;
            }
        }
        let stops = stopping && at_rest && step < steps;
        // Between them: a resume may go on from there.
        let asked = ((stopping || saving) && at_rest) || halts_after(step);
        let saves = asked || saves_after(step) || best;
        if compares_after(step) || (replicas && saves && plan.intervals.keep > 0) {
            started = Instant::now();
            rank.check_replicas()?;
            if let Some(recorder) = &mut recorder {
                recorder.compared(step, started.elapsed())?;
            }
        }
        // Saving comes last, so that a run that resumes from here repeats nothing of this step.
        if saves && plan.intervals.keep > 0 {
            comm.set_status(step, WRITES);
            match &mut recorder {
                Some(recorder) => {
                    let whole = plan.intervals.saves_state_after(step, steps, asked);
                    let ends = stops || halts_after(step) || step == steps;
                    recorder.save(rank, DueSave { whole, ends })?;
                }
                None => rank.answer_snapshot()?,
            }
        }
        if saves {
            // After the save: every read compares too, so that what was trained until now was the corpus.
            rank.check_corpus()?;
        }
        if halts_after(step) {
            return Ok(Outcome::Halted);
        }
        if stops {
            return Ok(Outcome::Interrupted);
        }
        if pauses_after(step) || compares_after(step) || saves {
            started = Instant::now();
        }
        saving &= !saves;
    }
    Ok(Outcome::Finished)
}
