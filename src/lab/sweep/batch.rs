//! Runs cells for other modules: any recipes with any settings, recorded like the cells of a sweep.

use super::axes::{GridPoint, naming_keys};
use super::cell::{Cell, Corpora, Source, build_name};
use super::design::Design;
use super::display::Display;
use super::prepare;
use super::schedule::{Output, Schedule, SweepPolicy, TaskPolicy};
use super::work::Work;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::batch_system::BatchSystem;
use crate::executor::{Executor, Limits, LocalProcesses};
use crate::machine::Machine;
use crate::ranks::Stop;
use crate::recipe;
use crate::results::ledger::{Attempt, CellStatus, Ledger, machine_claim};
use crate::results::progress::Mode;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Statuses that the machine may have caused; the cell may end well if it runs again.
const MACHINE_FAULTS: [CellStatus; 9] = [
    CellStatus::Oom,
    CellStatus::HostOom,
    CellStatus::Killed,
    CellStatus::Preempted,
    CellStatus::TimeLimit,
    CellStatus::NodeFailed,
    CellStatus::Unsaved,
    CellStatus::Hang,
    CellStatus::Failed,
];

/// How often a run that the machine ended (memory, disk, a signal) is run again with its seed.
const RETRIES: usize = 2;

/// A cell to run.
#[derive(Clone, Debug)]
pub struct CellRequest {
    /// A recipe file, or the name of a built-in recipe.
    pub recipe: PathBuf,
    /// `section.key=value` settings on top of the recipe.
    pub settings: Vec<String>,
}

/// Cells, resolved and planned for this machine.
#[derive(Debug)]
pub struct CellBatch {
    cells: Vec<Cell>,
    build: String,
    /// The ledger of the last results folder, kept open because a process may open its ledger file only once.
    ledger: RefCell<Option<Ledger>>,
}

/// A cell of a batch.
#[derive(Clone, Copy, Debug)]
pub struct PlannedCell<'a> {
    /// Its key in the ledger.
    pub key: &'a str,
    /// The hash of its corpus.
    pub corpus_hash: &'a str,
    /// Hashes of the further held-out sets, by name.
    pub held_out: &'a BTreeMap<String, String>,
    /// The device class that it runs on.
    pub device: &'a str,
    /// Its resolved recipe and its plan.
    pub work: &'a Work,
}

/// How the cells of a batch are run.
#[derive(Clone, Copy, Debug)]
pub struct BatchPolicy<'a> {
    /// The comparison that the cells are for.
    pub name: &'a str,
    /// The results folder.
    pub results: &'a Path,
    /// Cells at once on the CPU; each GPU has one at a time.
    pub jobs: usize,
    /// Whether to run cells again that are done.
    pub rerun_done: bool,
    /// True if nothing else may run on this machine meanwhile, because times are judged.
    pub needs_idle_machine: bool,
    /// The batch system if this is one of its tasks: a cell that was stopped continues from its checkpoint.
    pub batch: Option<&'a dyn BatchSystem>,
    /// Time limits of each run.
    pub limits: Limits,
    /// How to show progress.
    pub progress: Mode,
}

/// The end of a cell.
#[derive(Clone, Copy, Debug)]
pub struct CellEnd<'a> {
    /// The cell's index in the batch.
    pub at: usize,
    /// Its ledger line, with status, reason and run.
    pub line: &'a Attempt,
    /// True if the cell had ended before the batch ran.
    pub reused: bool,
}

impl CellBatch {
    /// Resolves and plans cells for a machine, which keep `checkpoints` checkpoints until they are done. Runs
    /// whose weights they begin with are found in `results`.
    ///
    /// # Errors
    /// If a recipe is wrong or a corpus cannot be opened.
    pub fn new(
        requests: &[CellRequest],
        results: &Path,
        machine: &Machine,
        checkpoints: usize,
    ) -> Result<Self> {
        let build = build_name();
        let mut corpora = Corpora::default();
        let mut cells = Vec::with_capacity(requests.len());
        for request in requests {
            // The value becomes TOML.
            let read =
                |setting: &String| recipe::setting(setting).map(|(key, value)| (key.path.to_owned(), value));
            let settings = request.settings.iter().map(read).collect::<Result<_>>()?;
            let point = GridPoint { settings, excluded: None };
            let base = recipe::load(&request.recipe, &request.settings, recipe::environment(), machine)?;
            let source = Source { path: &request.recipe, name: base.name(), machine, results, checkpoints };
            let cell = Cell::new(&source, &point, &build, &mut corpora);
            cell.work.as_ref().map_err(Error::clone)?;
            cells.push(cell);
        }
        Ok(Self { cells, build, ledger: RefCell::default() })
    }

    /// Returns a cell; `None` if the index is too large.
    pub fn get(&self, at: usize) -> Option<PlannedCell<'_>> {
        let Cell { key, corpus_hash, held_out, device, work, .. } = self.cells.get(at)?;
        let (corpus_hash, device) = (corpus_hash.as_deref()?, device.as_deref()?);
        Some(PlannedCell { key, corpus_hash, held_out, device, work: work.as_ref().ok()? })
    }

    /// Runs the cells of a range that are not done, or all of them. Calls `ended` once for every end of a
    /// cell: again if the cell is rerun after a fault of the machine. Cells that end badly are left to the
    /// caller.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] after a signal. Fails if the ledger cannot be written, or if `ended` fails.
    pub fn run(
        &self,
        range: Range<usize>,
        policy: &BatchPolicy<'_>,
        stop: &Stop,
        ended: &mut dyn FnMut(CellEnd<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut executor = LocalProcesses::new(policy.results, policy.jobs, stop);
        self.run_on(&mut executor, range, policy, stop, ended)
    }

    fn run_on(
        &self,
        executor: &mut dyn Executor,
        range: Range<usize>,
        policy: &BatchPolicy<'_>,
        stop: &Stop,
        ended: &mut dyn FnMut(CellEnd<'_>) -> Result<()>,
    ) -> Result<()> {
        prepare(policy.results)?;
        let cells = &self.cells[range.clone()];
        let mut ledger = match self.ledger.take() {
            Some(ledger) => ledger,
            None => Ledger::open(policy.results)?,
        };
        ledger.refresh()?;
        if policy.needs_idle_machine {
            claim_machine(&mut ledger)?;
        }
        let all = [&[CellStatus::Ok, CellStatus::Diverged][..], &MACHINE_FAULTS].concat();
        let mut retry = if policy.rerun_done { &all[..] } else { &MACHINE_FAULTS };
        let none = BTreeMap::new();
        let mut output = EndReporter::new(range.start, cells, &ledger, retry, ended);
        for _ in 0..=RETRIES {
            let display = Display::new(
                policy.progress,
                &naming_keys(cells.iter().map(|cell| &cell.settings)),
                cells.len(),
            );
            let sweep = SweepPolicy {
                name: policy.name,
                results: policy.results,
                retry,
                limits: policy.limits,
                build: &self.build,
                comparison: Some(policy.name),
                task: policy.batch.map(|system| TaskPolicy { system, retried: &none, stage: None }),
            };
            let schedule =
                Schedule::new(&sweep, cells, &Design::Grid, ledger, executor, &mut output, display);
            ledger = schedule.run_for_caller(stop)?;
            let is_faulty = output.seen.iter().flatten().any(|(_, status)| MACHINE_FAULTS.contains(status));
            if stop.requested() || !is_faulty {
                break;
            }
            retry = &MACHINE_FAULTS;
        }
        self.ledger.replace(Some(ledger));
        if stop.requested() {
            return Err(Error::new(
                ErrorKind::Interrupted,
                "stopped by a signal; the same command continues with what is left",
            ));
        }
        Ok(())
    }
}

/// Claims this machine for runs whose times are judged.
///
/// # Errors
/// If another process is running cells.
fn claim_machine(ledger: &mut Ledger) -> Result<()> {
    if ledger.claim(&machine_claim("alone"))? && ledger.claimed_by_others()?.is_empty() {
        return Ok(());
    }
    Err(Error::failed(
        "another sweep or comparison runs in this results folder, and speeds must be measured alone; wait \
         for it to end, or stop it",
    ))
}

/// Reports to a caller how cells end.
struct EndReporter<'a> {
    /// Index of the first cell in the batch.
    first: usize,
    /// The attempt that ended before, for cells that do not run again.
    before: Vec<Option<u64>>,
    /// Attempt and status of the last ledger line seen for each cell.
    seen: Vec<Option<(u64, CellStatus)>>,
    ended: &'a mut dyn FnMut(CellEnd<'_>) -> Result<()>,
}

impl<'a> EndReporter<'a> {
    fn new(
        first: usize,
        cells: &[Cell],
        ledger: &Ledger,
        retry: &[CellStatus],
        ended: &'a mut dyn FnMut(CellEnd<'_>) -> Result<()>,
    ) -> Self {
        let lines = || cells.iter().map(|cell| ledger.last(&cell.key));
        let keeps_result = |line: &&Attempt| line.status.ends_a_whole_run() && !retry.contains(&line.status);
        Self {
            first,
            before: lines().map(|line| Some(line.filter(keeps_result)?.attempt)).collect(),
            // Cells that stay as they are are reported at once, cells that run again when they have ended.
            seen: lines()
                .map(|line| line.filter(|line| !keeps_result(line)).map(attempt_and_status))
                .collect(),
            ended,
        }
    }
}

fn attempt_and_status(line: &Attempt) -> (u64, CellStatus) {
    (line.attempt, line.status)
}

impl Output for EndReporter<'_> {
    fn write(&mut self, cells: &[Cell], ledger: &Ledger) -> Result<()> {
        for (index, cell) in cells.iter().enumerate() {
            let Some(line) = ledger.last(&cell.key) else { continue };
            if line.status == CellStatus::Running || self.seen[index] == Some(attempt_and_status(line)) {
                continue;
            }
            self.seen[index] = Some(attempt_and_status(line));
            let reused = self.before[index] == Some(line.attempt);
            (self.ended)(CellEnd { at: self.first + index, line, reused })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::simulation::{Fate, Simulation};
    use crate::executor::{Capacity, RunSpec};
    use crate::ranks::environment;

    const RECIPE: &str = "[model]\ndim = 32\nn_heads = 2\nn_layers = 1\nffn_dim = 64\n[training]\nseq_len = 32\nsteps = 4\n\
                          [lr_scheduler]\nwarmup_steps = 0\n[data]\ntrain_tokens = 20_000\nvalidation_tokens = 600\n\
                          [validation]\ninterval = 1\nsteps = 1\n[engine]\ndevice = \"cpu\"\n";

    #[test]
    fn a_run_that_ended_well_is_reported_once_although_another_one_runs_again() {
        use CellStatus::{Killed, Ok as Done};
        let dir = tempfile::tempdir().unwrap();
        let recipe = dir.path().join("tiny.toml");
        std::fs::write(&recipe, RECIPE).unwrap();
        let requests = ["training.seed=1", "training.seed=2"]
            .map(|seed| CellRequest { recipe: recipe.clone(), settings: vec![seed.to_owned()] });
        let mut batch = CellBatch::new(&requests, dir.path(), &environment::machine(), 0).unwrap();
        // Without a machine, no CPU speed is measured to predict times.
        let works = batch.cells.iter_mut().filter_map(|cell| cell.work.as_mut().ok());
        works.for_each(|work| work.machine = Machine::none());
        let was_killed = std::cell::Cell::new(false);
        let fate = |spec: &RunSpec| {
            let is_second = spec.arguments.iter().any(|argument| argument == "training.seed=2");
            if is_second && !was_killed.replace(true) { Fate::Killed(1) } else { Fate::Completes(1.0) }
        };
        let mut simulation = Simulation::new(Capacity { gpus: 0, cpu_runs: 1 }, 4, fate);
        let policy = BatchPolicy {
            name: "tiny",
            results: dir.path(),
            jobs: 1,
            rerun_done: false,
            needs_idle_machine: false,
            batch: None,
            limits: Limits::default(),
            progress: Mode::Quiet,
        };
        let mut run = || {
            let mut ends = Vec::new();
            let mut ended = |end: CellEnd<'_>| {
                ends.push((end.at, end.line.status, end.reused));
                Ok(())
            };
            batch.run_on(&mut simulation, 0..2, &policy, &Stop::default(), &mut ended).unwrap();
            ends
        };
        assert_eq!(run(), [(0, Done, false), (1, Killed, false), (1, Done, false)]);
        assert_eq!(run(), [(0, Done, true), (1, Done, true)]);
    }
}
