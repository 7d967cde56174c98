//! Trains on every rank of this process: start message, device, state, loop, shutdown.

use super::context::{RankZero, RunContext};
use super::devices::DeviceOrder;
use super::gauges::Gauges;
use super::phase::WRITES;
use super::rank::Rank;
use super::recorder::Recorder;
use super::start_message::StartMessage;
use super::{Outcome, train};
use crate::device::communicator::{Communicator, RankPhase};
use crate::device::cpu::Pool;
use crate::device::cuda::Algorithms;
use crate::error::{Error, Result};
use crate::format::printable;
use crate::model::Weights;
use crate::plan::Plan;
use crate::ranks::LocalRanks;
use crate::results::own_file;
use crate::results::summary::Startup;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Trains on every rank of this process. `zero` holds the inputs of rank 0, if it is in this process.
///
/// # Errors
/// The error of the rank that failed first.
pub(super) fn train_ranks(
    ranks: &LocalRanks,
    context: &RunContext,
    zero: Option<&RankZero<'_>>,
) -> Result<Outcome> {
    // Ranks compute at the same time, each with its share of the threads.
    let threads = context.plan.execution.threads / ranks.in_process();
    let order = &*context.devices;
    ranks.run_keeping(|comm, kept| {
        let pool = Arc::new(Pool::new(threads)?);
        let zero = zero.filter(|_| comm.rank() == 0);
        let mut guard = zero.map(|zero| RecorderGuard::take(zero.recorder));
        let recorder = guard.as_mut().and_then(|guard| guard.recorder.as_mut());
        train_rank((ranks, order), context, zero, &pool, &comm, recorder, kept)
    })
}

/// Sends the ranks of a run the message that all its steps are trained.
///
/// # Errors
/// When a rank is lost, or its recipe differs.
pub(super) fn announce_finished(ranks: &LocalRanks, context: &RunContext, folder: &Path) -> Result<()> {
    ranks.run(|comm| {
        let own = (comm.rank() == 0).then(|| StartMessage::finished(context, folder));
        let message = StartMessage::exchange(&*comm, context, own)?;
        comm.set_status(message.from_step, RankPhase::Finished);
        Ok(())
    })
}

/// The recorder on loan to the thread of rank 0; put back when dropped, also by a panic.
struct RecorderGuard<'a> {
    slot: &'a Mutex<Option<Recorder>>,
    recorder: Option<Recorder>,
}

impl<'a> RecorderGuard<'a> {
    fn take(slot: &'a Mutex<Option<Recorder>>) -> Self {
        Self { slot, recorder: slot.lock().unwrap_or_else(PoisonError::into_inner).take() }
    }
}

impl Drop for RecorderGuard<'_> {
    fn drop(&mut self) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = self.recorder.take();
    }
}

/// Trains on one rank, which stays in `kept` when it fails, since others may still write into its memory.
fn train_rank(
    (ranks, order): (&LocalRanks, &DeviceOrder),
    context: &RunContext,
    zero: Option<&RankZero<'_>>,
    pool: &Arc<Pool>,
    comm: &Arc<dyn Communicator>,
    mut recorder: Option<&mut Recorder>,
    kept: &mut Option<Rank>,
) -> Result<Outcome> {
    let began = Instant::now();
    let plan = &context.plan;
    let place = order.first_place(comm.rank());
    let own = zero.map(|zero| StartMessage::from_rank_zero(context, zero));
    let message = StartMessage::exchange(&**comm, context, own)?;
    if message.finished {
        comm.set_status(message.from_step, RankPhase::Finished);
        return Ok(Outcome::Finished);
    }
    let mut log = RankLog::open(&message.folder, comm.rank());
    let gpu = gpu_of_rank(plan, comm.rank(), ranks.index_on_machine(comm.rank()))?;
    let opened = order.open(place, (plan, &context.programs), &**comm, (gpu, pool))?;
    let (device, waited_for_kernels) = (opened.device, opened.waited_for_kernels);
    let device_took = device.gpu().is_some().then(|| began.elapsed() - waited_for_kernels);
    if let (Some(gpu), Some(json)) = (device.gpu(), &message.algorithms) {
        gpu.products().merge(&Algorithms::from_json(json).map_err(Error::failed)?);
    }
    log.line(&format!(
        "rank {} of {} starts: process {}, {}",
        comm.rank(),
        comm.world_size(),
        std::process::id(),
        gpu.map_or_else(|| format!("{} threads of the CPU", pool.threads()), |gpu| format!("GPU {gpu}"))
    ));
    let (programs, dataset) = (Arc::clone(&context.programs), Arc::clone(&context.dataset));
    let rank = Rank::with_zeros(Arc::clone(plan), programs, dataset, device, Arc::clone(comm))?;
    let rank = kept.insert(rank);
    set_state(rank, &message, zero, context)?;
    if let (Some(recorder), Some(zero)) = (&mut recorder, zero) {
        let kernels_took = rank.kernels_took().map(|took| took + waited_for_kernels);
        let before_state = device_took.unwrap_or_default() + kernels_took.unwrap_or_default();
        recorder.startup(Startup {
            corpus_s: Some(zero.corpus_took.as_secs_f64()),
            device_s: device_took.map(|took| took.as_secs_f64()),
            kernels_s: kernels_took.map(|took| took.as_secs_f64()),
            state_s: Some(began.elapsed().saturating_sub(before_state).as_secs_f64()),
        });
        if let Some(gpu) = rank.engine().gpu() {
            recorder.algorithms(&gpu.algorithms())?;
            recorder.watch(Gauges::new(plan, &context.programs, rank.engine()));
        }
        recorder.prepare_saves(rank)?;
    }
    let trained = train(rank, plan, context.until, &context.stop, recorder.as_deref_mut());
    match &trained {
        Ok(outcome) => log.line(&format!("{outcome:?} after step {}", rank.done())),
        Err(e) => log.line(&format!("ended at step {}: {e}", rank.done() + 1)),
    }
    let outcome = trained?;
    if let Some(recorder) = recorder {
        let engine = rank.engine();
        recorder.allocated((engine.state.bytes() + engine.transient().0) as u64);
        recorder.free_copy();
    }
    comm.barrier("the end of the run")?;
    rank.shutdown()?;
    // Memory may be freed once no rank has it open any more.
    comm.barrier("the end of the exchange")?;
    // Rank 0 has its files to close and its plots to draw.
    comm.set_status(rank.done(), if comm.rank() == 0 { WRITES } else { RankPhase::Finished });
    Ok(outcome)
}

/// Sets the state of a rank of zeros: from a checkpoint, from weights, or to initial values.
fn set_state(
    rank: &mut Rank,
    message: &StartMessage,
    zero: Option<&RankZero<'_>>,
    context: &RunContext,
) -> Result<()> {
    if message.restored {
        return rank.restore(message.from_step, zero.and_then(|zero| zero.loaded));
    }
    if message.weights {
        let weights = zero.and_then(|zero| zero.weights);
        return rank.begin_with(weights.map(|weights| weights as &dyn Weights), &context.initial_values);
    }
    rank.initialize(&context.initial_values)
}

/// Returns the GPU of a rank, `None` on the CPU. `index` is that of the rank among those of its machine.
fn gpu_of_rank(plan: &Plan, rank: usize, index: usize) -> Result<Option<usize>> {
    let gpu = plan.execution.gpu_of(index);
    if gpu.is_none() && plan.execution.gpu.is_some() {
        return Err(Error::usage(format!(
            "rank {rank} is the {}th of its machine, which has {} GPUs for ranks: every rank needs one of its own",
            index + 1,
            plan.execution.gpus().count()
        )));
    }
    Ok(gpu)
}

/// `logs/rank-N.log` of a rank other than 0, whose log is that of the run.
struct RankLog(Option<std::fs::File>);

impl RankLog {
    /// Opens the log where this machine sees the folder of the run. A log that cannot be written is skipped:
    /// it must not end a rank.
    fn open(run: &Path, rank: usize) -> Self {
        let logs = run.join("logs");
        let visible = rank > 0 && run.is_dir() && std::fs::create_dir_all(&logs).is_ok();
        let mut options = std::fs::File::options();
        let open =
            || own_file::open(options.append(true).create(true), &logs.join(format!("rank-{rank}.log"))).ok();
        Self(visible.then(open).flatten())
    }

    fn line(&mut self, text: &str) {
        if let Some(file) = &mut self.0 {
            let now = crate::format::now().strftime("%FT%TZ");
            let _ = writeln!(file, "{now} {}", printable(text).replace('\n', "\n    "));
        }
    }
}
