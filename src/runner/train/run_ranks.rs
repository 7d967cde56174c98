//! Runs every rank of this process: start message, device, state, training loop, shutdown.

use super::gauges::Gauges;
use super::job::Job;
use super::rank::Rank;
use super::recorder::Recorder;
use super::set_reference::{ReferenceOrigin, set_reference};
use super::start::Start;
use super::start_message::StartMessage;
use super::{Outcome, WRITES, train};
use crate::device::communicator::{Communicator, RankPhase};
use crate::device::cpu::Pool;
use crate::device::cuda::Algorithms;
use crate::device::gpu::Queue;
use crate::error::{Error, Result};
use crate::format::printable;
use crate::lock::lock;
use crate::model::Weights;
use crate::ranks::LocalRanks;
use crate::regular;
use crate::results::summary::Startup;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Additional inputs of rank 0, which reads checkpoints and writes results.
pub(super) struct RankZero<'a> {
    /// Locked by the thread of rank 0 while it trains.
    pub recorder: &'a Mutex<Recorder>,
    /// Folder of the run.
    pub folder: &'a Path,
    /// Where the run starts.
    pub start: &'a Start,
    /// Time for opening the corpus, planning and recording programs.
    pub corpus_took: Duration,
}

/// Runs every rank of this process to the end of the run. `zero` holds the inputs of rank 0, if rank 0 is in
/// this process.
///
/// # Errors
/// If a rank fails, with the first error.
pub(super) fn run_ranks(ranks: &LocalRanks, job: &Job, zero: Option<&RankZero<'_>>) -> Result<Outcome> {
    // Ranks compute at the same time, so each gets its share of the threads.
    let threads = job.plan.execution.threads / ranks.in_process();
    ranks.run_keeping(|comm, kept| {
        let pool = Arc::new(Pool::new(threads)?);
        let zero = zero.filter(|_| comm.rank() == 0);
        // After a rank has panicked, the recorder only closes the run.
        let mut recorder = zero.map(|zero| lock(zero.recorder));
        let index = ranks.index_on_machine(comm.rank());
        let began = Instant::now();
        OneRank { job, zero, pool, comm, index, began }.run(recorder.as_deref_mut(), kept)
    })
}

/// Tells all ranks of a run that all its steps are trained.
///
/// # Errors
/// If a rank is lost, or its recipe differs.
pub(super) fn announce_finished(ranks: &LocalRanks, job: &Job, folder: &Path) -> Result<()> {
    ranks.run(|comm| {
        let own = (comm.rank() == 0).then(|| StartMessage::new(job, folder, None));
        let message = StartMessage::exchange(&*comm, job, own)?;
        comm.set_status(message.from_step, RankPhase::Finished);
        Ok(())
    })
}

/// A rank of this process.
struct OneRank<'a> {
    job: &'a Job,
    /// Inputs of rank 0; `None` on other ranks.
    zero: Option<&'a RankZero<'a>>,
    pool: Arc<Pool>,
    comm: Arc<dyn Communicator>,
    /// Index of the rank among the ranks of its machine.
    index: usize,
    began: Instant,
}

impl OneRank<'_> {
    /// Agrees with rank 0 on the start, opens the device, sets the state, trains, and closes the rank. After
    /// a failure the rank stays in `kept`, because others may still write into its memory.
    fn run(&self, mut recorder: Option<&mut Recorder>, kept: &mut Option<Rank>) -> Result<Outcome> {
        let Self { job, comm, .. } = self;
        let place = job.devices.first_place(comm.rank());
        let own = self.zero.map(|zero| StartMessage::new(job, zero.folder, Some(zero.start)));
        let message = StartMessage::exchange(&**comm, job, own)?;
        if message.finished {
            comm.set_status(message.from_step, RankPhase::Finished);
            return Ok(Outcome::Finished);
        }
        let mut log = RankLog::open(&message.folder, comm.rank());
        let gpu = self.own_gpu()?;
        let (device, waited_for_kernels) =
            job.devices.open(place, (&job.plan, &job.programs), &**comm, (gpu, &self.pool))?;
        let took = device.gpu().is_some().then(|| self.began.elapsed() - waited_for_kernels);
        if let (Some(gpu), Some(json)) = (device.gpu(), &message.algorithms) {
            gpu.products.merge(&Algorithms::from_json(json).map_err(Error::failed)?);
        }
        log.line(&self.start_line(gpu));
        let (plan, programs) = (Arc::clone(&job.plan), Arc::clone(&job.programs));
        let dataset = Arc::clone(&job.dataset);
        let rank = kept.insert(Rank::with_zeros(plan, programs, dataset, device, Arc::clone(comm))?);
        rank.prepare_tasks(&job.tasks)?;
        self.set_state(rank, &message)?;
        let of_reference = self.set_reference(rank)?;
        if let (Some(recorder), Some(says)) = (&mut recorder, of_reference) {
            recorder.note(&says)?;
        }
        self.zero.iter().for_each(|zero| zero.start.close());
        if let Some(recorder) = &mut recorder {
            self.begin_record(recorder, rank, took, waited_for_kernels)?;
        }
        let begins_with_weights = message.weights && !message.restored && message.from_step == 0;
        if let Some(recorder) = recorder.as_deref_mut().filter(|_| begins_with_weights) {
            // The other ranks wait in the first collective of the first step.
            comm.set_status(0, WRITES);
            recorder.generate_before(rank)?;
        }
        let trained = train(rank, &job.plan, job.until, &job.stop, recorder.as_deref_mut());
        match &trained {
            Ok(outcome) => log.line(&format!("{outcome:?} after step {}", rank.done())),
            Err(e) => log.line(&format!("ended at step {}: {e}", rank.done() + 1)),
        }
        let outcome = trained?;
        self.close(rank, recorder)?;
        Ok(outcome)
    }

    /// Returns the GPU of this rank; `None` on the CPU.
    fn own_gpu(&self) -> Result<Option<usize>> {
        let execution = &self.job.plan.execution;
        let gpu = execution.gpu_for_rank(self.index);
        if gpu.is_none() && execution.gpu.is_some() {
            return Err(Error::usage(format!(
                "rank {} is number {} on its machine, which has {} GPUs for ranks: every rank needs its own GPU",
                self.comm.rank(),
                self.index + 1,
                execution.gpus().count()
            )));
        }
        Ok(gpu)
    }

    fn start_line(&self, gpu: Option<usize>) -> String {
        let threads = || format!("{} threads of the CPU", self.pool.threads());
        format!(
            "rank {} of {} starts: process {}, {}",
            self.comm.rank(),
            self.comm.world_size(),
            std::process::id(),
            gpu.map_or_else(threads, |gpu| format!("GPU {gpu}"))
        )
    }

    /// Sets the state of a zeroed rank: from a checkpoint, from weights, or to initial values.
    fn set_state(&self, rank: &mut Rank, message: &StartMessage) -> Result<()> {
        let start = self.zero.map(|zero| zero.start);
        let shared = &self.job.initial_values;
        rank.count_updates_before(message.updates_before)?;
        if message.restored {
            rank.restore(message.from_step, start.and_then(Start::restored))?;
            let frozen = start.and_then(Start::frozen_weights);
            return rank.freeze(frozen.map(|weights| weights as &dyn Weights));
        }
        if message.weights {
            let weights = start.and_then(Start::weights);
            rank.begin_with(weights.map(|weights| weights as &dyn Weights), shared)?;
            return match message.optimizer {
                true => rank.begin_with_optimizer(start.and_then(Start::optimizer)),
                false => Ok(()),
            };
        }
        rank.initialize(shared)
    }

    /// Sets the reference of a run on pairs of answers, and returns what to log of it.
    fn set_reference(&self, rank: &mut Rank) -> Result<Option<String>> {
        let Self { job, .. } = self;
        let device = rank.engine().gpu().map_or("cpu".to_owned(), |gpu| gpu.properties().name.clone());
        let data: Vec<&str> = std::iter::once(job.dataset.hash.as_str())
            .chain(job.dataset.held_out().map(|set| set.hash.as_str()))
            .collect();
        let origin = self.zero.map(|zero| ReferenceOrigin {
            folder: zero.folder,
            continued: zero.start.continued_run(zero.folder),
            weights: zero.start.weights_hash(),
        });
        set_reference(rank, &job.plan, (&data, &device), origin.as_ref())
    }

    /// Records the startup times and the algorithms in use, watches the GPU, and allocates memory for saves.
    /// Called on rank 0.
    fn begin_record(
        &self,
        recorder: &mut Recorder,
        rank: &Rank,
        device_took: Option<Duration>,
        waited_for_kernels: Duration,
    ) -> Result<()> {
        let kernels_took = rank.kernels_took().map(|took| took + waited_for_kernels);
        let before_state = device_took.unwrap_or_default() + kernels_took.unwrap_or_default();
        recorder.summary.startup = Startup {
            corpus_s: self.zero.map(|zero| zero.corpus_took.as_secs_f64()),
            device_s: device_took.map(|took| took.as_secs_f64()),
            kernels_s: kernels_took.map(|took| took.as_secs_f64()),
            state_s: Some(self.began.elapsed().saturating_sub(before_state).as_secs_f64()),
        };
        if let Some(gpu) = rank.engine().gpu() {
            recorder.algorithms(&gpu.products.algorithms())?;
            recorder.clock.gauges = Gauges::new(&self.job.plan, &self.job.programs, rank);
        }
        recorder.prepare_saves(rank)
    }

    /// Closes the rank after its last step, together with all other ranks.
    fn close(&self, rank: &Rank, recorder: Option<&mut Recorder>) -> Result<()> {
        let comm = &self.comm;
        if let Some(recorder) = recorder {
            recorder.allocated((rank.state_bytes() + rank.engine().transient().0) as u64);
            // The copy of the state must be freed before the device is closed.
            recorder.saves.held = None;
        }
        comm.barrier("the end of the run")?;
        rank.shutdown()?;
        // A rank may free its memory only when no other rank has it open.
        comm.barrier("the end of the exchange")?;
        // Rank 0 still has to close its files and draw its plots.
        comm.set_status(rank.done(), if comm.rank() == 0 { WRITES } else { RankPhase::Finished });
        Ok(())
    }
}

/// The log of a rank other than 0, `logs/rank-N.log`. Rank 0 uses the log of the run.
struct RankLog(Option<std::fs::File>);

impl RankLog {
    /// Opens the log if this machine can see the folder of the run. Skips a log that cannot be written,
    /// because that must not end a rank.
    fn open(run: &Path, rank: usize) -> Self {
        let logs = run.join("logs");
        let visible = rank > 0 && run.is_dir() && regular::create_folder(&logs).is_ok();
        let mut options = std::fs::File::options();
        let open = || {
            regular::open_own(options.append(true).create(true), &logs.join(format!("rank-{rank}.log"))).ok()
        };
        Self(visible.then(open).flatten())
    }

    fn line(&mut self, text: &str) {
        if let Some(file) = &mut self.0 {
            let now = crate::format::now().strftime("%FT%TZ");
            let _ = writeln!(file, "{now} {}", printable(text).replace('\n', "\n    "));
        }
    }
}
