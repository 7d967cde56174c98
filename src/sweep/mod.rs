//! Sweeps: every cell of a grid run once, each in its own process, and a ledger that survives crashes.
//!
//! ```text
//! recipe + arguments ─▶ axes ─▶ cells (resolved, planned, keyed) ─▶ schedule ─▶ child processes
//!                                             ledger.jsonl ◀── one line per start and end ──┘
//! ```
//!
//! The ledger decides which cells are done; the tables are written from it after every line. When the sweep
//! ends, its configurations are compared over their seeds, and the best one is confirmed with fresh ones.

mod arguments;
mod assignment;
mod attempt;
mod axes;
mod batch;
mod cell;
mod configuration_table;
mod confirm;
mod cooldowns;
mod display;
mod halving;
mod keep;
mod rerun;
mod samples;
mod schedule;
mod sobol;
mod table;
mod trunk;
mod work;

use crate::error::{Error, IoContext, Result};
use crate::executor::{ATTEMPTS, Executor, Limits, LocalProcesses};
use crate::forecast::TotalNeeds;
use crate::format::{Column, Table, binary, wall_time};
use crate::machine::Machine;
use crate::metrics;
use crate::ranks::Stop;
use crate::ranks::environment;
use crate::recipe::{self, Layer, Recipe};
use crate::results::atomic;
use crate::results::configurations::SEED;
use crate::results::confirmation::CONFIRMATION;
use crate::results::folder;
use crate::results::ledger::{CellStatus, Ledger, SWEEPS};
use crate::results::progress::{Mode, eprint_line};
use arguments::Arguments;
pub use attempt::output_of;
use axes::{Axes, name_of};
pub use batch::{BatchPolicy, CellBatch, CellEnd, CellRequest, PlannedCell};
use cell::{Cell, Corpora, Source, build_name, headline};
use configuration_table::Measure;
use confirm::{CELLS_FOLDER, Contest};
use display::Display;
use halving::Halving;
pub use keep::{cells, find, keep};
use schedule::{Schedule, SweepPolicy};
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use table::SweepCell;
use table::Tables;
use trunk::Trunks;

/// The request of a sweep.
#[derive(Debug)]
pub struct Request<'a> {
    /// The recipe.
    pub recipe: &'a Path,
    /// `section.key=value`, or several values with commas between.
    pub arguments: &'a [String],
    /// The results folder.
    pub results: &'a Path,
    /// Cells at once on the CPU.
    pub jobs: usize,
    /// Statuses of done cells that run again.
    pub retry: &'a [CellStatus],
    /// The longest time without a new row.
    pub hang: Option<Duration>,
    /// The longest time that a cell may take.
    pub timeout: Option<Duration>,
    /// The display of progress.
    pub progress: Mode,
}

/// A sweep that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its folder, with tables and configurations.
    pub folder: PathBuf,
    /// `Ok` if every cell is done and none ended badly; a failure otherwise, and
    /// [`Interrupted`](crate::error::ErrorKind::Interrupted) after a signal.
    pub outcome: Result<()>,
}

/// The cells of a sweep.
struct Sweep {
    base: Recipe,
    build: String,
    measure: Measure,
    axes: Axes,
    cells: Vec<Cell>,
    /// The rungs, of a sweep with some.
    halving: Option<Halving>,
    /// The trunks, of a sweep with cooldowns.
    trunks: Option<Trunks>,
    /// What the user should know of its axes.
    notes: Vec<String>,
}

/// Returns a sentence where `[sweep]` is that of a recipe which this one extends.
fn inherited(base: &Recipe) -> Option<String> {
    let (top, _) = base.files().last()?;
    let sweep = &base.values().sweep;
    let set = [
        ("sweep.grid", !sweep.grid.is_empty()),
        ("sweep.pairs", !sweep.pairs.is_empty()),
        ("sweep.range", !sweep.range.is_empty()),
        ("sweep.log_range", !sweep.log_range.is_empty()),
        ("sweep.cooldowns", sweep.cooldowns.is_some()),
    ];
    let from_below = |key: &str| match base.layer(key) {
        Layer::File { path, line } if path != *top => Some(format!("{}:{line}", path.display())),
        _ => None,
    };
    let (key, place) =
        set.into_iter().filter(|(_, set)| *set).find_map(|(key, _)| Some((key, from_below(key)?)))?;
    Some(format!("{key} is that of {place}, which {} extends; set {key} there to replace it", top.display()))
}

impl Sweep {
    fn new(request: &Request<'_>) -> Result<Self> {
        let arguments = Arguments::read(request.arguments)?;
        let base = recipe::load(request.recipe, &arguments.sweep, recipe::environment(), &Machine::none())?;
        folder::folder_name(base.name())?;
        let axes = Axes::new(&base, &arguments)?;
        let notes = inherited(&base).into_iter().chain(axes.notes.iter().cloned()).collect();
        let build = build_name();
        let mut corpora = Corpora::default();
        let machine = environment::machine();
        let rungs = base.values().sweep.rungs.as_deref().unwrap_or_default();
        let has_cooldowns = base.values().sweep.cooldowns.is_some();
        let checkpoints = usize::from(!rungs.is_empty() || has_cooldowns);
        let recipe = Source { path: request.recipe, name: base.name(), machine: &machine, checkpoints };
        let cell = |point| Cell::new(&recipe, point, &build, &mut corpora);
        let mut cells: Vec<Cell> = axes.points.iter().map(cell).collect();
        // An error of every cell is an error of the command.
        if cells.iter().all(|cell| cell.work.is_err())
            && let Some(wrong) = cells.iter().position(|cell| !cell.excluded)
        {
            cells.swap_remove(wrong).work?;
        }
        let sweep = &base.values().sweep;
        let halving = Halving::new(rungs, sweep.eta, &cells)?;
        let trunks = if has_cooldowns { Some(Trunks::new(&mut cells)?) } else { None };
        let metric = metrics::find(&sweep.on)
            .ok_or_else(|| Error::usage(format!("sweep.on: no run has a figure {:?}", sweep.on)))?;
        let measure = Measure { metric, confidence: sweep.confidence };
        Ok(Self { base, build, measure, axes, cells, halving, trunks, notes })
    }

    /// Returns the highest seed of its cells.
    fn last_seed(&self) -> u64 {
        let own = self.base.values().training.seed;
        let seeds = self.cells.iter().filter_map(|cell| cell.settings.get(SEED)?.parse().ok());
        // A cell that sets none has the recipe's.
        seeds.max().map_or(own, |highest: u64| highest.max(own))
    }
}

/// Runs the cells that are not done, compares their configurations, and confirms the best one.
///
/// # Errors
/// A usage error for a wrong recipe or argument; a failure when another sweep works in the results folder,
/// when a line of the ledger is damaged, or a table cannot be written. How the cells ended is in [`Ended`].
pub fn run(request: &Request<'_>) -> Result<Ended> {
    // The display acknowledges a signal.
    let stop = Stop::on_signals(None)?;
    let sweep = Sweep::new(request)?;
    let _held = lock(request.results)?;
    let (ledger, warning) = Ledger::open(request.results)?;
    let mut display = Display::new(request.progress, &sweep.axes.keys, sweep.cells.len());
    if let Some(warning) = warning {
        display.warn(&warning);
    }
    for note in &sweep.notes {
        display.note(note);
    }
    let name = sweep.base.name();
    let mut tables = Tables::new(request.results, name, &sweep.axes, &sweep.cells)?;
    let folder = tables.folder().to_owned();
    let policy = SweepPolicy {
        name,
        results: request.results,
        retry: request.retry,
        limits: Limits { hang: request.hang, timeout: request.timeout },
        build: &sweep.build,
    };
    let table = tables.markdown_path();
    let mut executor = LocalProcesses::new(request.results, request.jobs, &stop);
    let mut schedule = Schedule::new(&policy, &sweep.cells, ledger, &mut executor, &mut tables, display)
        .with_rungs(sweep.halving.as_ref())
        .with_trunks(sweep.trunks.as_ref());
    let outcome = schedule.run(&table, &stop);
    let (ledger, display) = schedule.into_parts();
    let outcome =
        conclude(request, &sweep, &policy, (ledger, display), &folder, outcome, (&mut executor, &stop))?;
    Ok(Ended { folder, outcome })
}

/// Creates the folder of sweeps, and holds it while the ledger is written.
fn lock(results: &Path) -> Result<File> {
    let folder = results.join(SWEEPS);
    std::fs::create_dir_all(&folder).at("create", &folder)?;
    // Before the lock, so that a folder that cannot be written has its own error message.
    let ignored = folder.join(".gitignore");
    atomic::write(&ignored, format!("/lock\n/{ATTEMPTS}/\n").as_bytes())?;
    folder::lock(&folder).map_err(|e| {
        e.context("another sweep or comparison writes the ledger; wait for it to end, or stop it")
    })
}

/// Compares the configurations of a sweep that has ended with `outcome`, and confirms the best one if that is
/// good. Returns how it ended then.
fn conclude(
    request: &Request<'_>,
    sweep: &Sweep,
    policy: &SweepPolicy<'_>,
    (ledger, mut display): (Ledger, Display),
    folder: &Path,
    outcome: Result<()>,
    (executor, stop): (&mut dyn Executor, &Stop),
) -> Result<Result<()>> {
    let (keys, measure) = (&sweep.axes.keys, &sweep.measure);
    let found =
        configuration_table::summarize(policy.name, keys, measure, &sweep.cells, &ledger, request.results);
    configuration_table::write(folder, &found, measure, None)?;
    if let Some(words) = configuration_table::best_in_words(&found) {
        display.result(&words);
    }
    let count = sweep.base.values().sweep.confirm;
    if outcome.is_err() || count == 0 {
        return Ok(outcome);
    }
    let machine = environment::machine();
    let source = Source { path: request.recipe, name: policy.name, machine: &machine, checkpoints: 0 };
    let seeds = (sweep.last_seed(), count);
    let Some(contest) = Contest::new(&found, &sweep.cells, &ledger, seeds, (&source, &sweep.build))? else {
        display.warn("there are no two configurations to confirm one against the other");
        return Ok(outcome);
    };
    let mut columns = found.keys.clone();
    columns.push(SEED.to_owned());
    let mut tables = Tables::within(folder.join(CELLS_FOLDER), &columns, &contest.cells)?;
    let table = tables.markdown_path();
    let shown = Display::new(request.progress, &columns, contest.cells.len());
    let mut schedule = Schedule::new(policy, &contest.cells, ledger, executor, &mut tables, shown);
    let outcome = schedule.run(&table, stop);
    let (ledger, mut display) = schedule.into_parts();
    if outcome.is_ok() {
        let confirmation = contest.judge(measure, found.direction, &ledger, request.results);
        atomic::write(&folder.join(CONFIRMATION), &atomic::json(&confirmation)?)?;
        let words = confirmation.in_words(&found.keys, measure.metric.decimals);
        configuration_table::write(folder, &found, measure, Some(&words))?;
        display.result(&words);
    }
    Ok(outcome)
}

/// Returns the cells with their plans, as a table or as JSON lines. Nothing is run or written.
///
/// # Errors
/// As [`run`], before anything is run.
pub fn dry_run(request: &Request<'_>, as_json: bool) -> Result<String> {
    let sweep = Sweep::new(request)?;
    for note in &sweep.notes {
        eprint_line(note);
    }
    let ledger = Ledger::read(request.results)?;
    let mut lines = String::new();
    let mut total = TotalNeeds::default();
    let mut table = Table::new(&[
        Column::Right,
        Column::Left,
        Column::Left,
        Column::Right,
        Column::Right,
        Column::Right,
        Column::Left,
    ]);
    table.row(["", "CELL", "STATUS", "MEMORY", "TIME", "DISK", ""]);
    for (at, cell) in sweep.cells.iter().enumerate() {
        let last = ledger.last(&cell.key).map(|last| last.status);
        let (fit, reason) = match cell.work.as_ref().map(|work| work.fit()) {
            Err(e) => (None, Some(headline(e).to_owned())),
            Ok(Err(e)) => (None, Some(headline(&e).to_owned())),
            Ok(Ok(fit)) => {
                let refusal = fit.refusal.as_ref().map(|e| headline(e).to_owned());
                (Some(fit), refusal)
            }
        };
        let fits = fit.as_ref().map(|fit| fit.refusal.is_none());
        let planned = fit.as_ref().map(|fit| fit.planned_bytes);
        let ends = |status: CellStatus| match sweep.halving {
            Some(_) => status.is_final(),
            None => status.ends_a_whole_run(),
        };
        let done = last.filter(|&status| ends(status) && !request.retry.contains(&status));
        let status = match (done, &cell.work, fits) {
            (Some(done), ..) => format!("done: {done}"),
            (None, Err(_), _) => CellStatus::Skipped.to_string(),
            (None, Ok(_), Some(false)) => CellStatus::PredictedOom.to_string(),
            (None, Ok(_), _) => "to run".to_owned(),
        };
        let needs = fit.filter(|_| done.is_none() && fits == Some(true)).map(|fit| fit.needs);
        if let Some(needs) = &needs {
            total.add(needs, 1);
        }
        if as_json {
            let row = json!({
                "key": cell.key, "settings": cell.settings, "status": status, "planned_bytes": planned,
                "fits": fits, "reason": reason, "needs": needs,
            });
            lines += &format!("{row}\n");
            continue;
        }
        table.row([
            (at + 1).to_string(),
            name_of(&sweep.axes.keys, &cell.settings),
            status,
            planned.map(|bytes| binary(bytes as usize)).unwrap_or_default(),
            needs
                .as_ref()
                .and_then(|needs| Some(wall_time(needs.time.as_ref()?.total_s)))
                .unwrap_or_default(),
            needs.as_ref().map(|needs| binary(needs.disk.total_bytes as usize)).unwrap_or_default(),
            // The rest, advice on keys to change, is in the line of the ledger.
            reason.as_deref().and_then(|reason| reason.split(';').next()).unwrap_or_default().to_owned(),
        ]);
    }
    let needed = match (&sweep.halving, &sweep.trunks) {
        (Some(halving), _) => Some(halving.in_words(&sweep.cells)),
        (None, Some(trunks)) => Some(trunks.in_words(&sweep.cells)),
        (None, None) => total.in_words(),
    };
    let needed = needed.map(|words| format!("{words}\n")).unwrap_or_default();
    Ok(if as_json { lines } else { table.render(0) + &needed })
}
