//! Runs a sweep: first the attempts that dead processes left behind, then every cell that is not done.
//!
//! Several processes may run the same cells. A process claims a cell before it does anything with it, so each
//! cell runs once, and waits for the cells that others are working on.

mod branches;
mod messages;
mod policy;
mod rungs;
mod shared;
#[cfg(test)]
mod tests;

use super::assignment::Assignment;
use super::attempt::{AttemptResult, Header, RunningAttempt, output_name};
use super::cell::{Cell, headline};
use super::design::Design;
use super::display::Display;
use super::halving::CellResult;
use super::rerun;
use super::trunk::StartPoint;
use super::work::Work;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{Executor, Output as RunOutput, RunSpec, StopCause, Task};
use crate::ranks::Stop;
use crate::results::ledger::{Attempt, CellStatus, Ledger, Measured, machine_claim};
use crate::results::measure::rows_hash;
pub use policy::{SweepPolicy, TaskPolicy, TaskStage};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// The ledger's key for the planned bytes, which are known before a cell runs.
const PLANNED: &str = "planned_bytes";

/// How often to check what other processes did.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Something that is rewritten from the ledger after every line.
pub trait Output {
    /// Writes the output.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write(&mut self, cells: &[Cell], ledger: &Ledger) -> Result<()>;
}

/// A running sweep.
pub struct Schedule<'a> {
    policy: &'a SweepPolicy<'a>,
    cells: &'a [Cell],
    ledger: Ledger,
    executor: &'a mut dyn Executor,
    output: &'a mut dyn Output,
    display: Display,
    /// Indices of cells that wait for a device.
    waiting: VecDeque<usize>,
    /// Indices of cells that another process is working on.
    elsewhere: Vec<usize>,
    /// Running attempts, each with its first ledger line.
    running: Vec<(Attempt, RunningAttempt)>,
    /// GPUs that other processes use.
    gpus_elsewhere: Vec<usize>,
    /// When other processes were last checked.
    refreshed: Option<Instant>,
    design: &'a Design,
    /// The step that the waiting cells are trained to; `None` for the last step.
    until: Option<u64>,
    /// True if cells that other processes train are left to them.
    leaves_claimed: bool,
    /// Keys of cells that were started here, and the step they were to reach.
    started: HashSet<(String, Option<u64>)>,
    /// Number of the last attempt at each cell before the sweep began.
    last_before: HashMap<String, u64>,
}

/// The result of claiming a cell.
enum Claim {
    /// The cell and its GPUs belong to this process.
    Free,
    /// Another process is working on the cell.
    Elsewhere,
    /// Another process finished the cell first, or its attempt was found and now runs here.
    Done,
    /// A GPU is not available now: another process holds it, or a run was found on it.
    NoDevice,
}

impl<'a> Schedule<'a> {
    /// Creates a sweep over these cells, which depend on each other as `design` says.
    pub fn new(
        policy: &'a SweepPolicy<'a>,
        cells: &'a [Cell],
        design: &'a Design,
        ledger: Ledger,
        executor: &'a mut dyn Executor,
        output: &'a mut dyn Output,
        display: Display,
    ) -> Self {
        Self {
            policy,
            cells,
            ledger,
            executor,
            output,
            display,
            waiting: VecDeque::new(),
            elsewhere: Vec::new(),
            running: Vec::new(),
            gpus_elsewhere: Vec::new(),
            refreshed: None,
            design,
            until: None,
            leaves_claimed: false,
            started: HashSet::new(),
            last_before: HashMap::new(),
        }
    }

    /// Returns the ledger and the display, for whatever comes next.
    pub fn into_parts(self) -> (Ledger, Display) {
        (self.ledger, self.display)
    }

    /// Runs the cells that are not done, until all are done or a signal arrives. `table` is the file with
    /// their rows.
    ///
    /// # Errors
    /// [`Interrupted`](crate::error::ErrorKind::Interrupted) after a signal. Fails if a cell failed, hung,
    /// took too long or was killed, or if the ledger or the output cannot be written.
    pub fn run(&mut self, table: &Path, stop: &Stop) -> Result<()> {
        self.begin()?;
        self.print_heading(table);
        self.display.release();
        self.say_needs();
        self.work(stop)?;
        self.conclude(table, stop.requested())
    }

    /// Like [`run`](Self::run), for a caller that reports progress itself: a cell that ends badly is not an
    /// error.
    ///
    /// # Errors
    /// If the ledger or the output cannot be written.
    pub fn run_for_caller(mut self, stop: &Stop) -> Result<Ledger> {
        self.begin()?;
        self.display.release();
        self.work(stop)?;
        self.display.clear();
        Ok(self.ledger)
    }

    /// Attaches to running attempts and queues the cells that are not done. Their lines are held back.
    fn begin(&mut self) -> Result<()> {
        if self.ledger.claimed_by_others()?.contains(&machine_claim("alone")) {
            return Err(Error::failed(
                "a comparison measures speeds on this machine and needs it alone; wait for it to end, or \
                 stop it",
            ));
        }
        self.display.hold();
        self.refresh()?;
        let attempt = |cell: &Cell| Some((cell.key.clone(), self.ledger.last(&cell.key)?.attempt));
        self.last_before = self.cells.iter().filter_map(attempt).collect();
        self.queue()
    }

    /// Runs the queued cells, rung by rung.
    fn work(&mut self, stop: &Stop) -> Result<()> {
        self.output.write(self.cells, &self.ledger)?;
        loop {
            self.run_waiting(stop)?;
            if stop.requested() || !self.climb()? {
                return Ok(());
            }
        }
    }

    /// Runs the waiting cells until all have ended, here or elsewhere, or a signal arrives.
    fn run_waiting(&mut self, stop: &Stop) -> Result<()> {
        let mut has_notified = false;
        while !(self.running.is_empty() && self.waiting.is_empty() && self.elsewhere.is_empty()) {
            if stop.requested() {
                if !has_notified {
                    self.display.note(
                        "stopping: the runs end after their step and save; a second signal (Ctrl-C) stops at once",
                    );
                }
                has_notified = true;
                self.waiting.clear();
                self.elsewhere.clear();
                let cause = match self.policy.task {
                    None => StopCause::Signal,
                    Some(_) if stop.was_announced() => StopCause::TimeLimit,
                    Some(_) => StopCause::Preempted,
                };
                self.running.iter_mut().for_each(|(_, run)| run.stop(cause, self.executor));
            } else if self.refreshed.is_none_or(|looked| looked.elapsed() >= REFRESH_INTERVAL) {
                self.refresh()?;
            }
            self.ledger.renew();
            self.start_waiting()?;
            self.poll_running()?;
            self.show_news()?;
            if !(self.running.is_empty() && self.elsewhere.is_empty()) {
                self.executor.pause();
            }
        }
        Ok(())
    }

    /// Queues every cell that is not done, and records the skipped ones.
    fn queue(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        let mut shared = 0;
        let mut reruns: BTreeMap<String, usize> = BTreeMap::new();
        for (at, cell) in self.cells.iter().enumerate() {
            if !seen.insert(cell.key.as_str()) {
                shared += 1;
                continue;
            }
            if let Err(e) = &cell.work {
                self.skip(cell, headline(e))?;
                continue;
            }
            if self.design.halving().is_none() && !self.is_running(cell) && self.is_wanted(at) {
                self.waiting.push_back(at);
            }
            if self.ledger.last(&cell.key).is_none() {
                let next = self.next_attempt(cell, CellStatus::Running, None);
                if let Some(reason) = rerun::reason(&self.ledger, &next) {
                    *reruns.entry(reason).or_default() += 1;
                }
            }
        }
        if !matches!(self.design, Design::Grid) {
            self.remove_all_checkpoints();
        }
        self.climb()?;
        for (reason, count) in reruns {
            let (cells, run) = if count == 1 { ("cell", "runs") } else { ("cells", "run") };
            self.display.note(&format!("{count} {cells} that ended before {run} again: {reason}"));
        }
        if shared > 0 {
            self.display.warn(&format!(
                "{shared} of {} cells differ from another one only in bookkeeping keys; they share its row",
                self.cells.len()
            ));
        }
        Ok(())
    }

    fn is_running(&self, cell: &Cell) -> bool {
        self.running.iter().any(|(attempt, _)| attempt.key == cell.key)
    }

    /// Starts waiting cells while devices are free.
    fn start_waiting(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let cell = &self.cells[index];
            let Ok(work) = &cell.work else {
                self.waiting.remove(at);
                continue;
            };
            let own = self.running.iter().map(|(_, run)| run.header.gpus.clone());
            let others = (!self.gpus_elsewhere.is_empty()).then(|| self.gpus_elsewhere.clone());
            let in_use: Vec<Vec<usize>> = own.chain(others).collect();
            let Some(assignment) = Assignment::find_free(work, &in_use, self.executor.capacity()) else {
                at += 1;
                continue;
            };
            if self.beginning(index) == StartPoint::Later {
                at += 1;
                continue;
            }
            match self.claim(index, &assignment.gpus)? {
                Claim::Free if self.ledger.lease_has_ended() => {
                    // Another machine may have run the cell while this process was stopped.
                    self.release_cell(&cell.key, &assignment.gpus);
                    self.ledger.renew();
                    self.ledger.refresh()?;
                }
                Claim::Free => {
                    self.waiting.remove(at);
                    // The run that the cell starts from may have changed before the cell was claimed.
                    let beginning = self.beginning(index);
                    self.start(cell, work, &assignment, &beginning)?;
                }
                Claim::Elsewhere => {
                    self.waiting.remove(at);
                    if !self.leaves_claimed {
                        self.elsewhere.push(index);
                    }
                }
                Claim::Done => _ = self.waiting.remove(at),
                Claim::NoDevice => at += 1,
            }
        }
        Ok(())
    }

    /// Starts an attempt at a cell, unless its plan does not fit.
    fn start(
        &mut self,
        cell: &Cell,
        work: &Work,
        assignment: &Assignment,
        beginning: &StartPoint,
    ) -> Result<()> {
        self.started.insert((cell.key.clone(), self.until));
        let fit = match work.fit() {
            Ok(fit) => fit,
            Err(e) => {
                let line = self.next_attempt(cell, CellStatus::Failed, Some(e.message().to_owned()));
                return self.append_last(line, None, &assignment.gpus);
            }
        };
        let mut line = self.next_attempt(cell, CellStatus::Running, None);
        line.measured.figures.set(PLANNED, fit.planned_bytes);
        if let Some(refusal) = fit.refusal {
            line.status = CellStatus::PredictedOom;
            line.reason = Some(refusal.message().to_owned());
            return self.append_last(line, None, &assignment.gpus);
        }
        line.recipe_hash = assignment.recipe_hash(work)?;
        if let (StartPoint::Stopped(run), Some(until)) = (beginning, self.until)
            && let Some(measured) = self.measured_at(run, until)
        {
            let rows = rows_hash(&self.policy.results.join(run)).ok();
            let run = Some(run.clone());
            let result = AttemptResult { status: CellStatus::Halted, reason: None, run, rows, measured };
            return self.end(&line, result, None, &assignment.gpus);
        }
        let (task, arguments) = match beginning {
            // The run already has its recipe.
            StartPoint::Stopped(run) => (Task::Resume(run.clone()), assignment.arguments().collect()),
            StartPoint::Trunk { run, step } => {
                (Task::Fork { run: run.clone(), step: *step }, cell.arguments(assignment))
            }
            StartPoint::Start | StartPoint::Later => {
                (Task::Train(cell.recipe.clone()), cell.arguments(assignment))
            }
        };
        let resumes = matches!(task, Task::Resume(_));
        let recipe_hash = (!resumes).then(|| line.recipe_hash.clone());
        let header = Header { gpus: assignment.gpus.clone(), recipe_hash, until: self.until };
        // Write the line first; a process without a line would never be found again.
        self.append(line.clone(), None)?;
        let name = output_name(&line.key, line.attempt);
        let spec = RunSpec {
            task,
            results: self.policy.results.to_owned(),
            binary: None,
            arguments: [arguments, vec!["--json".to_owned()]].concat(),
            until: self.until,
            output: RunOutput::Kept { name, header: header.line()? },
        };
        match RunningAttempt::start(self.executor, header, &spec) {
            Ok(child) => self.running.push((line, child)),
            Err(e) => {
                let is_full = e.kind() == ErrorKind::Unsaved;
                let status = if is_full { CellStatus::Unsaved } else { CellStatus::Failed };
                let result = AttemptResult::without_run(status, e.message());
                self.end(&line, result, None, &assignment.gpus)?;
            }
        }
        Ok(())
    }

    /// Polls every running attempt and records those that have ended.
    fn poll_running(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some((attempt, child)) = self.running.get_mut(at) {
            match child.poll(self.executor, self.policy.results, self.policy.limits)? {
                None => {
                    self.display.step(attempt, child);
                    at += 1;
                }
                Some(result) => {
                    let (attempt, child) = self.running.remove(at);
                    self.end(&attempt, result, Some(child.elapsed()), &child.header.gpus)?;
                    child.forget(self.executor);
                }
            }
        }
        Ok(())
    }

    /// Records the result of an attempt, and releases its cell and GPUs.
    fn end(
        &mut self,
        begun: &Attempt,
        result: AttemptResult,
        took: Option<Duration>,
        gpus: &[usize],
    ) -> Result<()> {
        let AttemptResult { status, reason, run, rows, mut measured } = result;
        if measured.get(PLANNED).is_none() {
            // A whole number of bytes below 2^53.
            measured.figures.set(PLANNED, begun.measured.get(PLANNED).map(|bytes| bytes as u64));
        }
        let line = Attempt { status, reason, run, rows, measured, at: now(), ..begun.clone() };
        self.append_last(line.clone(), took, gpus)?;
        self.remove_checkpoints(&line);
        Ok(())
    }

    /// Appends the last line of an attempt, and releases its cell and GPUs.
    fn append_last(&mut self, line: Attempt, took: Option<Duration>, gpus: &[usize]) -> Result<()> {
        let key = line.key.clone();
        self.append(line, took)?;
        self.release_cell(&key, gpus);
        Ok(())
    }

    /// Appends a line to the ledger, and updates the output and the display.
    fn append(&mut self, line: Attempt, took: Option<Duration>) -> Result<()> {
        self.ledger.append(line.clone())?;
        self.output.write(self.cells, &self.ledger)?;
        self.display.line(&line, self.done(), took);
        Ok(())
    }

    /// Makes the line of the next attempt at a cell.
    fn next_attempt(&self, cell: &Cell, status: CellStatus, reason: Option<String>) -> Attempt {
        Attempt {
            key: cell.key.clone(),
            attempt: self.ledger.last(&cell.key).map_or(0, |last| last.attempt) + 1,
            status,
            reason,
            recipe: cell.name.clone(),
            settings: cell.settings.clone(),
            measuring: cell.measuring.clone(),
            recipe_hash: cell.recipe_hash.clone().unwrap_or_default(),
            corpus_hash: cell.corpus_hash.clone(),
            held_out: cell.held_out.clone(),
            rows: None,
            comparison: self.policy.comparison.map(str::to_owned),
            build: self.policy.build.to_owned(),
            device: cell.device.clone().unwrap_or_default(),
            run: None,
            at: now(),
            measured: Measured::default(),
        }
    }

    /// Returns true if the cell still has to run, as far as the ledger knows.
    fn is_wanted(&self, cell: usize) -> bool {
        let key = &self.cells[cell].key;
        match (self.design.halving(), self.ledger.last(key)) {
            (Some(_), _) => {
                self.result(&self.cell_lines(key).collect::<Vec<_>>(), self.until) == CellResult::Open
            }
            (None, None) => true,
            (None, Some(last)) => !last.status.ends_a_whole_run() || self.is_retried(last),
        }
    }

    /// Returns true if the user asked to rerun the cell of this line, and it has not been rerun yet.
    fn is_retried(&self, line: &Attempt) -> bool {
        if self.policy.task.is_some_and(|task| task.retried.get(&line.key) == Some(&line.attempt)) {
            return true;
        }
        let was_before = self.last_before.get(&line.key) == Some(&line.attempt);
        was_before && self.policy.retry.contains(&line.status)
    }

    /// Returns the number of cells that are done.
    fn done(&self) -> usize {
        let last =
            |cell: &Cell| self.ledger.last(&cell.key).is_some_and(|last| self.design.is_done(last.status));
        self.cells.iter().filter(|cell| last(cell)).count()
    }
}

fn now() -> String {
    crate::format::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
