//! Sweeps: run every cell of a grid once, with a ledger that survives crashes.
//!
//! ```text
//! recipe + arguments ─▶ axes ─▶ cells (resolved, planned, keyed) ─▶ schedule ─▶ executor
//!                                             ledger ◀── one line per start and end ──┘
//! ```
//!
//! The ledger decides which cells are done, and the tables are rewritten from it after every line. When the
//! sweep ends, its configurations are compared over their seeds, and the best one is confirmed with fresh
//! seeds.

mod arguments;
mod assignment;
mod attempt;
mod axes;
mod batch;
mod cell;
mod cluster;
mod configuration_table;
mod confirm;
mod cooldowns;
mod design;
mod display;
mod dry_run;
mod halving;
mod keep;
mod membership;
mod rerun;
mod samples;
mod schedule;
mod sobol;
mod table;
mod trunk;
mod work;

use crate::error::{Error, IoContext, Result};
use crate::executor::batch_system::BatchSystem;
use crate::executor::{ATTEMPTS, Executor, Limits, LocalProcesses};
use crate::machine::Machine;
use crate::ranks::Stop;
use crate::recipe::{self, Recipe};
use crate::results::atomic;
use crate::results::configurations::SEED;
use crate::results::confirmation::CONFIRMATION;
use crate::results::folder;
use crate::results::ledger::{CLAIMS, CellStatus, Ledger, SWEEPS};
use crate::results::progress::Mode;
use crate::results::run_figure::RunFigure;
use arguments::Arguments;
pub use attempt::output_path;
use axes::Axes;
pub use batch::{BatchPolicy, CellBatch, CellEnd, CellRequest, PlannedCell};
use cell::{Cell, Corpora, Source, build_name};
pub use cluster::{
    Parts, START_TIME, SUBMITTED, Submission, Submitted, SubmittedCell, TASK_COMMAND, TaskGroup, TaskWork,
    cancel, create_folder, divide_independent, largest_needs, needs_of, queued_cells, run_task, status,
    status_of_cells, submit, submit_parts,
};
use configuration_table::Measure;
use confirm::{CELLS_FOLDER, Contest};
use design::Design;
use display::Display;
pub use dry_run::dry_run;
use halving::Halving;
pub use keep::{cells, find, keep};
pub use membership::Memberships;
use schedule::{Output, Schedule, SweepPolicy, TaskPolicy};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use table::Tables;
pub use table::{CELLS, SweepCell, TABLE};
use trunk::Trunks;
pub use work::Work;

/// What the user asks a sweep to run.
#[derive(Debug)]
pub struct Request<'a> {
    /// The recipe.
    pub recipe: &'a Path,
    /// `section.key=value`, or several values separated by commas.
    pub arguments: &'a [String],
    /// The results folder.
    pub results: &'a Path,
    /// Cells at once on the CPU.
    pub jobs: usize,
    /// Cells that are done with one of these statuses run again.
    pub retry: &'a [CellStatus],
    /// Time limits of each cell.
    pub limits: Limits,
    /// How to show progress.
    pub progress: Mode,
    /// The machine that the cells are planned for.
    pub machine: Machine,
    /// The batch system whose tasks run the cells; stopped cells then continue from their checkpoints. `None`
    /// for cells that run on this machine.
    pub batch: Option<&'a dyn BatchSystem>,
}

/// A sweep that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The sweep's folder, with tables and configurations.
    pub folder: PathBuf,
    /// `Ok` if every cell is done and none ended badly. [`Interrupted`](crate::error::ErrorKind::Interrupted)
    /// after a signal, and a failure otherwise.
    pub outcome: Result<()>,
}

/// The cells of a sweep.
struct Sweep {
    base: Recipe,
    build: String,
    measure: Measure,
    axes: Axes,
    cells: Vec<Cell>,
    design: Design,
}

/// Most remarks about cells that a sweep prints.
const MOST_REMARKS: usize = 5;

impl Sweep {
    fn new(request: &Request<'_>) -> Result<Self> {
        let arguments = Arguments::read(request.arguments)?;
        let base = recipe::load(request.recipe, &arguments.sweep, recipe::environment(), &Machine::none())?;
        folder::folder_name(base.name())?;
        let mut axes = Axes::new(&base, &arguments)?;
        let build = build_name();
        let mut corpora = Corpora::default();
        let rungs = base.values().sweep.rungs.as_deref().unwrap_or_default();
        let has_cooldowns = base.values().sweep.cooldowns.is_some();
        let checkpoints = usize::from(!rungs.is_empty() || has_cooldowns || request.batch.is_some());
        let recipe = Source {
            path: request.recipe,
            name: base.name(),
            machine: &request.machine,
            results: request.results,
            checkpoints,
        };
        let cell = |point| Cell::new(&recipe, point, &build, &mut corpora);
        let mut cells: Vec<Cell> = axes.points.iter().map(cell).collect();
        let mut remarks: Vec<String> = Vec::new();
        for work in cells.iter().filter_map(|cell| cell.work.as_ref().ok()) {
            for remark in work.recipe.remarks(work.plan.execution.gpu.is_none()) {
                if !remarks.contains(&remark) {
                    remarks.push(remark);
                }
            }
        }
        let more = remarks.len().saturating_sub(MOST_REMARKS);
        remarks.truncate(MOST_REMARKS);
        axes.notes.extend(remarks.into_iter().map(|remark| format!("in some cells, {remark}")));
        axes.notes.extend((more > 0).then(|| format!("{more} more keys have no effect in some cells")));
        // If every cell has an error, the command itself fails with it.
        if cells.iter().all(|cell| cell.work.is_err())
            && let Some(wrong) = cells.iter().position(|cell| !cell.excluded)
        {
            cells.swap_remove(wrong).work?;
        }
        let sweep = &base.values().sweep;
        let figure = RunFigure::find(&sweep.on)
            .ok_or_else(|| Error::usage(format!("sweep.on: no run has a figure {:?}", sweep.on)))?;
        let design = match Halving::new(rungs, sweep.eta, &figure, &cells)? {
            Some(halving) => Design::Halving(halving),
            None if has_cooldowns => Design::Cooldowns(Trunks::new(&mut cells)?),
            None => Design::Grid,
        };
        let measure = Measure { figure, confidence: sweep.confidence };
        Ok(Self { base, build, measure, axes, cells, design })
    }

    /// Returns the highest seed of the cells.
    fn last_seed(&self) -> u64 {
        let own = self.base.values().training.seed;
        let seeds = self.cells.iter().filter_map(|cell| cell.settings.get(SEED)?.parse().ok());
        // Cells without a seed of their own use the recipe's.
        seeds.max().map_or(own, |highest: u64| highest.max(own))
    }
}

/// Runs the cells that are not done, compares their configurations, and confirms the best one.
///
/// # Errors
/// A usage error for a wrong recipe or argument. Fails if a ledger line is damaged or a table cannot be
/// written. [`Ended`] tells how the cells ended.
pub fn run(request: &Request<'_>) -> Result<Ended> {
    // The display itself acknowledges a signal.
    let stop = Stop::on_signals(None)?;
    run_planned(request, &Sweep::new(request)?, &stop)
}

/// Like [`run`], for a caller that planned the sweep of the request and handles signals.
fn run_planned(request: &Request<'_>, sweep: &Sweep, stop: &Stop) -> Result<Ended> {
    prepare(request.results)?;
    let ledger = Ledger::open(request.results)?;
    let mut display = Display::new(request.progress, &sweep.axes.keys, sweep.cells.len());
    for note in &sweep.axes.notes {
        display.note(note);
    }
    let name = sweep.base.name();
    let mut tables = Tables::new(request.results, name, &sweep.axes, &sweep.cells)?;
    let folder = tables.folder.clone();
    let none = BTreeMap::new();
    let policy = SweepPolicy {
        name,
        results: request.results,
        retry: request.retry,
        limits: request.limits,
        build: &sweep.build,
        comparison: None,
        task: request.batch.map(|system| TaskPolicy { system, retried: &none, stage: None }),
    };
    let table = tables.markdown_path();
    let mut executor = LocalProcesses::new(request.results, request.jobs, stop);
    let Sweep { cells, design, .. } = sweep;
    let mut schedule = Schedule::new(&policy, cells, design, ledger, &mut executor, &mut tables, display);
    let outcome = schedule.run(&table, stop);
    let (ledger, display) = schedule.into_parts();
    let first = outcome.clone().err();
    let outcome =
        conclude(request, sweep, &policy, (ledger, display), &mut tables, outcome, (&mut executor, stop))
            // The first error is the cause, such as a full disk.
            .map_err(|later| first.unwrap_or(later))?;
    Ok(Ended { folder, outcome })
}

/// Creates the folder of sweeps and its `.gitignore`.
///
/// # Errors
/// If they cannot be written.
pub fn prepare(results: &Path) -> Result<()> {
    let folder = results.join(SWEEPS);
    std::fs::create_dir_all(&folder).at("create", &folder)?;
    atomic::write(&folder.join(".gitignore"), format!("/{ATTEMPTS}/\n/{CLAIMS}/\n/{SUBMITTED}/\n").as_bytes())
}

/// Compares the configurations of a sweep that ended with `outcome` and, if that is `Ok`, confirms the best
/// one. Returns the final outcome.
fn conclude(
    request: &Request<'_>,
    sweep: &Sweep,
    policy: &SweepPolicy<'_>,
    (ledger, mut display): (Ledger, Display),
    tables: &mut Tables,
    outcome: Result<()>,
    (executor, stop): (&mut dyn Executor, &Stop),
) -> Result<Result<()>> {
    let (keys, measure) = (&sweep.axes.keys, &sweep.measure);
    let folder = tables.folder.clone();
    let mut found =
        configuration_table::summarize(policy.name, keys, measure, &sweep.cells, &ledger, request.results);
    // The outermost of random points is no edge.
    if sweep.base.values().sweep.samples == 0 {
        found.at_edge = found.edges();
    }
    configuration_table::write(&folder, &found, measure, None)?;
    if let Some(words) = configuration_table::best_in_words(&found) {
        display.result(&words);
    }
    if let Some(words) = found.edges_in_words() {
        display.result(&words);
        tables.remark = Some(words);
        tables.write(&sweep.cells, &ledger)?;
    }
    let count = sweep.base.values().sweep.confirm;
    if outcome.is_err() || count == 0 {
        return Ok(outcome);
    }
    let source = Source {
        path: request.recipe,
        name: policy.name,
        machine: &request.machine,
        results: request.results,
        checkpoints: 0,
    };
    let seeds = (sweep.last_seed(), count);
    let Some(contest) = Contest::new(&found, &sweep.cells, &ledger, seeds, (&source, &sweep.build))? else {
        display.warn("nothing is confirmed: that takes two configurations, and there are fewer");
        return Ok(outcome);
    };
    let mut columns = found.keys.clone();
    columns.push(SEED.to_owned());
    let mut tables = Tables::within(folder.join(CELLS_FOLDER), &columns, &contest.cells)?;
    let table = tables.markdown_path();
    let shown = Display::new(request.progress, &columns, contest.cells.len());
    let mut schedule =
        Schedule::new(policy, &contest.cells, &Design::Grid, ledger, executor, &mut tables, shown);
    let outcome = schedule.run(&table, stop);
    let (ledger, mut display) = schedule.into_parts();
    if outcome.is_ok() {
        let confirmation = contest.judge(measure, found.direction, &ledger, request.results);
        atomic::write(&folder.join(CONFIRMATION), &atomic::json(&confirmation)?)?;
        let words = confirmation.in_words(&found.keys, measure.figure.metric().decimals);
        configuration_table::write(&folder, &found, measure, Some(&words))?;
        display.result(&words);
    }
    Ok(outcome)
}
