//! The ranks of this process, from the first word to the last step.

use super::gauges::Gauges;
use super::rank::Rank;
use super::recorder::Recorder;
use super::{Outcome, train};
use crate::checkpoint::Loaded;
use crate::data::Dataset;
use crate::device::Device;
use crate::device::communicator::{Activity, Communicator};
use crate::device::cpu::Pool;
use crate::device::cuda::Algorithms;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::Plan;
use crate::ranks::{Party, Stop};
use crate::recipe::{self, Class, Recipe};
use crate::results::summary::Startup;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What every rank of a process has before it begins.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    pub resolved: Recipe,
    pub plan: Arc<Plan>,
    pub programs: Arc<Programs>,
    pub dataset: Arc<Dataset>,
    pub stop: Stop,
}

/// What rank 0 has besides.
pub(super) struct Lead<'a> {
    /// Its files, which the thread of rank 0 borrows.
    pub recorder: &'a Mutex<Option<Recorder>>,
    pub folder: PathBuf,
    pub corpus_took: Duration,
    pub from_step: u64,
    pub loaded: Option<&'a Loaded>,
    pub algorithms: Option<&'a Algorithms>,
}

/// What rank 0 tells all ranks before the first step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Beginning {
    version: String,
    recipe: String,
    corpus_hash: String,
    /// The run's folder, where other ranks write their logs if they see it.
    folder: PathBuf,
    /// Steps that are done; their state is shared before the next one.
    from_step: u64,
    /// Whether there is a state to share.
    restored: bool,
    /// Whether nothing is left to train.
    finished: bool,
    /// The table of matrix-product algorithms that all ranks compute with.
    algorithms: Option<String>,
}

impl Beginning {
    /// Of a run in `folder` whose first `from_step` steps are done.
    fn new(crew: &Crew, folder: &Path, from_step: u64) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            recipe: crew.resolved.to_toml(),
            corpus_hash: crew.dataset.hash.clone(),
            folder: folder.to_owned(),
            from_step,
            restored: false,
            finished: false,
            algorithms: None,
        }
    }

    fn of(crew: &Crew, lead: &Lead<'_>) -> Self {
        Self {
            restored: lead.loaded.is_some(),
            algorithms: lead.algorithms.map(Algorithms::to_json),
            ..Self::new(crew, &lead.folder, lead.from_step)
        }
    }

    /// Refuses to begin where this rank would train something else than rank 0.
    fn check(&self, crew: &Crew) -> Result<()> {
        if self.version != env!("CARGO_PKG_VERSION") {
            return Err(Error::usage(format!(
                "this is xrun {}, and rank 0 is {}",
                env!("CARGO_PKG_VERSION"),
                self.version
            )));
        }
        // Where a file lies may differ between machines; what is in it may not, which the next check sees.
        let place = |key: &str| ["data.corpus", "data.tokenizer", "data.validation"].contains(&key);
        let theirs = recipe::load_str(
            Path::new("the recipe of rank 0"),
            &self.recipe,
            &[],
            std::iter::empty(),
            &Machine::none(),
        )?;
        let changes = recipe::diff(theirs.values(), crew.resolved.values()).into_iter();
        let differ = changes.filter(|change| change.class != Class::Bookkeeping && !place(change.key));
        let differ: Vec<String> = differ
            .map(|change| format!("{} = {} ({} on rank 0)", change.key, change.new, change.old))
            .collect();
        if !differ.is_empty() {
            return Err(Error::usage(format!(
                "this rank has another recipe than rank 0: {}. Start all ranks with the same command and environment",
                differ.join(", ")
            )));
        }
        if self.corpus_hash != crew.dataset.hash {
            return Err(Error::usage(format!(
                "this rank's corpus has hash {}, and that of rank 0 {}: give both the same files",
                crew.dataset.hash, self.corpus_hash
            )));
        }
        Ok(())
    }
}

/// Trains on every rank of this process; rank 0 borrows the recorder.
///
/// # Errors
/// Of the rank that failed first.
pub(super) fn train_ranks(party: &Party, crew: &Crew, lead: Option<&Lead<'_>>) -> Result<Outcome> {
    let pool = Arc::new(Pool::new(crew.plan.execution.threads)?);
    party.run(|comm| {
        let lead = lead.filter(|_| comm.rank() == 0);
        let mut loan = lead.map(|lead| Loan::of(lead.recorder));
        let recorder = loan.as_mut().and_then(|loan| loan.recorder.as_mut());
        train_rank(party, crew, lead, &pool, &comm, recorder)
    })
}

/// A recorder that goes back to its place, also where its borrower panics.
struct Loan<'a> {
    place: &'a Mutex<Option<Recorder>>,
    recorder: Option<Recorder>,
}

impl<'a> Loan<'a> {
    fn of(place: &'a Mutex<Option<Recorder>>) -> Self {
        Self { place, recorder: place.lock().unwrap_or_else(PoisonError::into_inner).take() }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = self.recorder.take();
    }
}

fn train_rank(
    party: &Party,
    crew: &Crew,
    lead: Option<&Lead<'_>>,
    pool: &Arc<Pool>,
    comm: &Arc<dyn Communicator>,
    mut recorder: Option<&mut Recorder>,
) -> Result<Outcome> {
    let began = Instant::now();
    let plan = &crew.plan;
    let beginning = begin(comm, crew, lead.map(|lead| Beginning::of(crew, lead)))?;
    if beginning.finished {
        comm.now(beginning.from_step, Activity::Left);
        return Ok(Outcome::Finished);
    }
    let mut log = RankLog::open(&beginning.folder, comm.rank());
    let place = party.place_on_machine(comm.rank());
    let gpu = plan.execution.gpu_of(place);
    if gpu.is_none() && plan.execution.gpu.is_some() {
        return Err(Error::usage(format!(
            "rank {} is the {}th of its machine, which has {} GPUs for ranks: every rank needs one of its own",
            comm.rank(),
            place + 1,
            plan.execution.gpus().count()
        )));
    }
    let device = Device::open(gpu, Arc::clone(pool))?;
    if let (Some(gpu), Some(json)) = (device.gpu(), &beginning.algorithms) {
        gpu.products().merge(&Algorithms::from_json(json).map_err(Error::failed)?);
    }
    let (device_took, on_gpu) = (began.elapsed(), device.gpu().is_some());
    log.say(&format!(
        "rank {} of {} begins: process {}, {}",
        comm.rank(),
        comm.world(),
        std::process::id(),
        gpu.map_or_else(|| format!("{} threads of the CPU", pool.threads()), |gpu| format!("GPU {gpu}"))
    ));
    let (programs, dataset) = (Arc::clone(&crew.programs), Arc::clone(&crew.dataset));
    let mut rank = Rank::new(Arc::clone(plan), programs, dataset, device, Arc::clone(comm))?;
    if beginning.restored {
        rank.restore(beginning.from_step, lead.and_then(|lead| lead.loaded))?;
    }
    if let (Some(recorder), Some(lead)) = (&mut recorder, lead) {
        let kernels_took = rank.kernels_took();
        let state_took = began.elapsed() - device_took - kernels_took.unwrap_or_default();
        recorder.startup(Startup {
            corpus_s: Some(lead.corpus_took.as_secs_f64()),
            device_s: on_gpu.then_some(device_took.as_secs_f64()),
            kernels_s: kernels_took.map(|took| took.as_secs_f64()),
            state_s: Some(state_took.as_secs_f64()),
        });
        if let Some(gpu) = rank.engine().gpu() {
            recorder.algorithms(&gpu.algorithms())?;
            recorder.watch(Gauges::new(plan, &crew.programs, rank.engine()));
        }
    }
    let trained = train(&mut rank, plan, &crew.stop, recorder.as_deref_mut());
    match &trained {
        Ok(outcome) => log.say(&format!("{outcome:?} after step {}", rank.done())),
        Err(e) => log.say(&format!("ended at step {}: {e}", rank.done() + 1)),
    }
    let outcome = trained?;
    if let Some(recorder) = recorder {
        let engine = rank.engine();
        recorder.allocated((engine.state.bytes() + engine.transient().0) as u64);
    }
    comm.barrier("the end of the run")?;
    rank.part()?;
    comm.now(rank.done(), Activity::Left);
    Ok(outcome)
}

/// Tells the ranks of a run that all its steps are trained.
///
/// # Errors
/// When a rank is lost, or would train something else.
pub(super) fn dismiss(party: &Party, crew: &Crew, folder: &Path) -> Result<()> {
    let steps = crew.plan.steps as u64;
    party.run(|comm| {
        let said =
            (comm.rank() == 0).then(|| Beginning { finished: true, ..Beginning::new(crew, folder, steps) });
        begin(&comm, crew, said)?;
        comm.now(steps, Activity::Left);
        Ok(())
    })
}

/// Hears from rank 0 what is trained, and sees that it is the same here. Rank 0 says it.
fn begin(comm: &Arc<dyn Communicator>, crew: &Crew, said: Option<Beginning>) -> Result<Beginning> {
    comm.now(0, Activity::Begins);
    let mine = said.map(|said| serde_json::to_vec(&said)).transpose();
    let mine = mine.map_err(|e| Error::failed(format!("the beginning: {e}")))?.unwrap_or_default();
    let told = comm.broadcast("the beginning", mine)?;
    let beginning: Beginning =
        serde_json::from_slice(&told).map_err(|e| Error::failed(format!("what rank 0 said: {e}")))?;
    beginning.check(crew)?;
    Ok(beginning)
}

/// `logs/rank-N.log` of a rank other than 0, whose log is the run's own.
struct RankLog(Option<std::fs::File>);

impl RankLog {
    /// Opens it where this machine sees the run's folder. A log that cannot be written is none: it must not end a rank.
    fn open(run: &Path, rank: usize) -> Self {
        let logs = run.join("logs");
        let there = rank > 0 && run.is_dir() && std::fs::create_dir_all(&logs).is_ok();
        let open =
            || std::fs::File::options().append(true).create(true).open(logs.join(format!("rank-{rank}.log")));
        Self(there.then(open).and_then(Result::ok))
    }

    fn say(&mut self, text: &str) {
        if let Some(file) = &mut self.0 {
            use std::io::Write;
            let now = jiff::Timestamp::now().strftime("%FT%TZ");
            let _ = writeln!(file, "{now} {text}");
        }
    }
}
