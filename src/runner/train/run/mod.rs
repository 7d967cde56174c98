//! A run, from its folder to its summary.

mod record;

pub use record::cpu_fallback_warning;

use super::companions;
use super::conclude::{Ended, conclude, follower_outcome, mark_failed};
use super::device_order::DeviceOrder;
use super::generate::check_prompt;
use super::initial::InitialValues;
use super::job::{Job, RunData};
use super::recorder::Recorder;
use super::request::{Origin, Request};
use super::run_ranks::{RankZero, run_ranks};
use super::start::{Start, resolve_origin};
use crate::device::host_allocator::on_refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::forecast::memory::peak_bytes;
use crate::forecast::{Planned, smaller};
use crate::format::binary;
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::{Plan, choose_gpus};
use crate::ranks::{ExitGuard, LocalRanks, Stop, fault, process};
use crate::recipe::Recipe;
use crate::results::folder::overwrite_running;
use crate::results::progress::{Mode, Progress};
use crate::results::{RunFolder, Status, Summary};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A run that was opened but not planned. Its origin is known and, for a resume, locked.
#[derive(Debug)]
pub struct Run {
    /// The request, with its origin resolved, for the machine as the ranks of this process share it.
    request: Request,
    /// The folder of the run to resume, if rank 0 is in this process.
    resumed: Option<RunFolder>,
    opened: Instant,
    /// The devices of this process's ranks, whose contexts are being created.
    devices: Arc<DeviceOrder>,
}

impl Run {
    /// Opens a run. With `checkpoint.resume = "auto"`, a fresh start becomes a resume of the newest
    /// unfinished run of the same recipe. The folder to resume is locked before the corpus is opened, so that
    /// a second process on the same run ends at once.
    ///
    /// # Errors
    /// If the folder of a run to resume cannot be read, or another process uses it.
    pub fn open(mut request: Request, ranks: &LocalRanks) -> Result<Self> {
        request.machine = request.machine.with_ranks(ranks.on_machine, ranks.processes_on_machine());
        let mut resumed = None;
        if ranks.has_rank_zero() {
            request.origin = resolve_origin(request.origin, &request.recipe, &request.results)?;
            if let Origin::Resume(path) = &request.origin {
                resumed = Some(RunFolder::open(path)?);
            }
        }
        let opened = Instant::now();
        let devices = Arc::new(DeviceOrder::start(&own_gpus(&request.recipe, &request.machine, ranks)));
        Ok(Self { request, resumed, opened, devices })
    }

    /// Returns the recipe.
    pub fn recipe(&self) -> &Recipe {
        &self.request.recipe
    }

    /// Returns the machine, as the ranks of this process share it.
    pub fn machine(&self) -> &Machine {
        &self.request.machine
    }

    /// Trains until the last step or a signal on the ranks of this process: finds where the run starts, opens
    /// its folder, starts its record, runs the ranks, and concludes. Leaves a finished run unchanged. `guard`
    /// ends this process if a rank hangs.
    ///
    /// # Errors
    /// If the corpus or a prompt does not suit the recipe or the run to resume (exit code 2, before anything
    /// is written). Later errors are in [`Ended`] and the summary, unless the folder cannot be written.
    pub fn train(
        mut self,
        planned: Planned,
        data: RunData,
        ranks: &LocalRanks,
        stop: &Stop,
        guard: &ExitGuard,
    ) -> Result<Ended> {
        let mut job = self.job(planned, data, ranks, stop)?;
        if !ranks.has_rank_zero() {
            return follow(ranks, &job);
        }
        let corpus_took = self.opened.elapsed();
        let mut start = Start::find(&self.request, &job)?;
        let (floor, val_part) = (job.plan.corpus.floor, record::held_out_part(&job.plan));
        let progress = Progress::new(self.request.progress, job.steps(), floor, val_part);
        let (folder, summary) =
            record::open(self.resumed.take(), &self.request.results, &mut job, &mut start)?;
        if summary.is_finished() {
            return record::leave_finished(folder, ranks, &job, &start, progress);
        }
        let path = folder.path().to_owned();
        let recorder = self.begin_record((&job, &start), folder, summary, progress, &ranks.notes)?;
        record_sudden_ends(guard, &path);
        process::report_run_folder(ranks, path.clone());
        let recorder = Mutex::new(recorder);
        let zero = RankZero { recorder: &recorder, folder: &path, start: &start, corpus_took };
        let outcome = run_ranks(ranks, &job, Some(&zero))
            .map_err(|e| explain_out_of_memory(e, &job.plan, &job.programs));
        // A panic of rank 0 is the error in `outcome`.
        let mut recorder = recorder.into_inner().unwrap_or_else(PoisonError::into_inner);
        for warning in job.dataset.late_warnings() {
            recorder.warn(&warning)?;
        }
        conclude(recorder, outcome)
    }

    /// Returns the work for the ranks of this process.
    fn job(&self, planned: Planned, data: RunData, ranks: &LocalRanks, stop: &Stop) -> Result<Job> {
        let RunData { dataset, tasks } = data;
        let Planned { recipe, plan, programs } = planned;
        if plan.generation.samples > 0 {
            // Rejects a bad prompt now, because the first samples may come only after a long training.
            check_prompt(&plan, &dataset.tokenizer)?;
        }
        Ok(Job {
            recipe_hash: recipe.hash(),
            recipe,
            machine: self.request.machine.clone(),
            plan: Arc::new(plan),
            programs: Arc::new(programs),
            dataset: Arc::new(dataset),
            tasks: Arc::new(tasks),
            stop: stop.clone(),
            until: self.request.until,
            initial_values: Arc::new(InitialValues::new(ranks.in_process())),
            devices: Arc::clone(&self.devices),
        })
    }

    /// Writes everything that the run depends on, and opens its files with notes about its start.
    fn begin_record(
        &self,
        (job, start): (&Job, &Start),
        folder: RunFolder,
        summary: Summary,
        mut progress: Progress,
        launch: &[String],
    ) -> Result<Recorder> {
        progress.begin(folder.path());
        let is_new = !matches!(self.request.origin, Origin::Resume(_));
        record::write_provenance(&folder, (job, start), is_new, &self.request.command)?;
        companions::begin(folder.path(), &self.request.origin, &job.recipe, start)?;
        let summary = record::describe(summary, job, start)?;
        let meta = record::meta(job, start);
        // Comes before the recorder starts the run's clock.
        let may_measure = self.request.progress != Mode::Quiet && job.plan.batch.world_size == 1;
        let needs = (start.step() == 0).then(|| record::run_needs(job, may_measure));
        let path = folder.path().to_owned();
        let begun = Recorder::open((job, start), folder, summary, meta, progress);
        let begun = begun.and_then(|mut recorder| {
            record::write_notes(&mut recorder, job, start, launch, needs.as_ref())?;
            Ok(recorder)
        });
        // The summary may already say that the run is running.
        begun.inspect_err(|error| mark_failed(&path, error))
    }
}

/// Trains on the ranks of a process without rank 0. Rank 0 records the run.
fn follow(ranks: &LocalRanks, job: &Job) -> Result<Ended> {
    fault::check(job.plan.batch.world_size, 0, job.steps())?;
    let outcome = follower_outcome(run_ranks(ranks, job, None)?);
    Ok(Ended { folder: None, was_finished: false, outcome })
}

/// Records in the summary how the run ended if rank 0 cannot.
fn record_sudden_ends(guard: &ExitGuard, folder: &Path) {
    let (failed, refused) = (folder.to_owned(), folder.to_owned());
    guard.before_exit(move |error| mark_failed(&failed, error));
    // Overwrites in place, because there may be no memory for a new summary.
    on_refusal(move |_| _ = overwrite_running(&refused, Status::Oom));
}

/// Returns the GPUs of this process's ranks, in rank order; none if planning will report an error.
fn own_gpus(recipe: &Recipe, machine: &Machine, ranks: &LocalRanks) -> Vec<usize> {
    let gpus = choose_gpus(recipe, machine).unwrap_or_default();
    ranks.indexes_on_machine().filter_map(|index| gpus.get(index).copied()).collect()
}

/// Adds the planned sizes, and the keys that reduce them, to an out-of-memory error.
fn explain_out_of_memory(error: Error, plan: &Plan, programs: &Programs) -> Error {
    if error.kind() != ErrorKind::DoesNotFit {
        return error;
    }
    Error::does_not_fit(format!(
        "{}. The plan is {} of state and {} of activations (placement {:?}). {}",
        error.message(),
        binary(programs.state_bytes()),
        binary(peak_bytes(plan, programs) - programs.state_bytes()),
        plan.execution.placement,
        smaller(plan)
    ))
}
