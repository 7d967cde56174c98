//! The loop of a sweep: attempts of earlier sweeps first, then every cell that is not done, on any free
//! device.

mod branches;
mod messages;
mod rungs;

use super::assignment::Assignment;
use super::attempt::{AttemptResult, Header, RunningAttempt, output_name};
use super::cell::{Cell, headline};
use super::display::Display;
use super::halving::Halving;
use super::rerun;
use super::trunk::{Beginning, Trunks};
use super::work::Work;
use crate::error::Result;
use crate::executor::{Executor, Limits, Output as RunOutput, RunSpec, Task};
use crate::ranks::Stop;
use crate::results::ledger::{Attempt, CellStatus, Ledger, Measured};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::Path;
use std::time::Duration;

/// The ledger's key of the planned bytes, which are known before a cell runs.
const PLANNED: &str = "planned_bytes";

/// The settings of a sweep.
#[derive(Debug)]
pub struct SweepPolicy<'a> {
    /// The sweep's name.
    pub name: &'a str,
    /// The results folder.
    pub results: &'a Path,
    /// Statuses of done cells that run again.
    pub retry: &'a [CellStatus],
    /// Time limits of an attempt.
    pub limits: Limits,
    /// The program that runs the cells.
    pub build: &'a str,
}

/// What is written from the ledger after every line.
pub trait Output {
    /// Writes it.
    ///
    /// # Errors
    /// When it cannot be written.
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
    /// Running attempts, with their first lines.
    running: Vec<(Attempt, RunningAttempt)>,
    /// The rungs, of a sweep with some.
    halving: Option<&'a Halving>,
    /// The trunks, of a sweep with cooldowns.
    trunks: Option<&'a Trunks>,
    /// The step to which the waiting cells are trained; `None` for the last one.
    until: Option<u64>,
    /// Keys of cells that were started here, with the step.
    started: HashSet<(String, Option<u64>)>,
}

impl<'a> Schedule<'a> {
    /// Creates a sweep over these cells. The caller holds the lock of the folder of sweeps.
    pub fn new(
        policy: &'a SweepPolicy<'a>,
        cells: &'a [Cell],
        ledger: Ledger,
        executor: &'a mut dyn Executor,
        output: &'a mut dyn Output,
        display: Display,
    ) -> Self {
        let (waiting, running, started) = (VecDeque::new(), Vec::new(), HashSet::new());
        let (halving, trunks, until) = (None, None, None);
        Self {
            policy,
            cells,
            ledger,
            executor,
            output,
            display,
            waiting,
            running,
            halving,
            trunks,
            until,
            started,
        }
    }

    /// Lets cells begin where they leave a trunk.
    pub fn with_trunks(self, trunks: Option<&'a Trunks>) -> Self {
        Self { trunks, ..self }
    }

    /// Lets configurations train from rung to rung.
    pub fn with_rungs(self, halving: Option<&'a Halving>) -> Self {
        Self { halving, ..self }
    }

    /// Returns the ledger and the display, for what follows.
    pub fn into_parts(self) -> (Ledger, Display) {
        (self.ledger, self.display)
    }

    /// Runs the cells that are not done, until all are done or a signal arrives. `table` is where their rows
    /// are.
    ///
    /// # Errors
    /// [`Interrupted`](crate::error::ErrorKind::Interrupted) after a signal; a failure when a cell failed,
    /// hung, took too long or was killed, or when the ledger or the output cannot be written.
    pub fn run(&mut self, table: &Path, stop: &Stop) -> Result<()> {
        self.begin()?;
        self.say_heading(table);
        self.display.release();
        self.say_needs();
        self.work(stop)?;
        self.conclude(table, stop.requested())
    }

    /// As [`run`](Self::run), for a caller that says itself what runs and how it ended: a cell that does not
    /// end well is no error.
    ///
    /// # Errors
    /// When the ledger or the output cannot be written.
    pub fn run_for_caller(mut self, stop: &Stop) -> Result<()> {
        self.begin()?;
        self.display.release();
        self.work(stop)?;
        self.display.clear();
        Ok(())
    }

    /// Attaches to running attempts and queues the cells that are not done. Lines are held back.
    fn begin(&mut self) -> Result<()> {
        self.display.hold();
        self.reattach()?;
        self.queue()
    }

    /// Runs what is queued, rung by rung.
    fn work(&mut self, stop: &Stop) -> Result<()> {
        self.output.write(self.cells, &self.ledger)?;
        loop {
            self.run_waiting(stop)?;
            if stop.requested() || !self.climb()? {
                return Ok(());
            }
        }
    }

    /// Runs the waiting cells, until all have ended or a signal arrives.
    fn run_waiting(&mut self, stop: &Stop) -> Result<()> {
        let mut is_told = false;
        while !self.running.is_empty() || !self.waiting.is_empty() {
            if stop.requested() {
                if !is_told {
                    self.display.note(
                        "stopping: the runs end after their step and save; a second signal (Ctrl-C) stops at once",
                    );
                }
                is_told = true;
                self.waiting.clear();
                self.running.iter_mut().for_each(|(_, run)| run.stop(self.executor));
            }
            self.start_waiting()?;
            self.poll_running()?;
            if !self.running.is_empty() {
                self.executor.pause();
            }
        }
        Ok(())
    }

    /// Attaches to attempts of earlier sweeps that are still running, and records the results of those that
    /// have ended.
    fn reattach(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        let open: Vec<Attempt> = self
            .ledger
            .lines()
            .iter()
            .rev()
            .filter(|line| seen.insert(line.key.clone()))
            .filter(|line| line.status == CellStatus::Running)
            .cloned()
            .collect();
        for attempt in open.into_iter().rev() {
            let began: Option<Timestamp> = attempt.at.parse().ok();
            let ago = began.and_then(|at| Duration::try_from(at.duration_until(crate::format::now())).ok());
            let name = output_name(&attempt.key, attempt.attempt);
            let child = RunningAttempt::reattach(self.executor, &name, ago.unwrap_or_default())?;
            match child {
                Some(child) => {
                    self.display.line(&attempt, self.done(), None);
                    self.running.push((attempt, child));
                }
                None => {
                    let (status, reason) = (CellStatus::Killed, "ended with an earlier sweep");
                    let result = AttemptResult::without_run(status, reason);
                    self.end(&attempt, result, None)?;
                }
            }
        }
        // Results of those that have ended are recorded before anything is queued.
        self.poll_running()
    }

    /// Queues every cell that is not done, and records those that are skipped.
    fn queue(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        let mut shared = 0;
        let mut reruns: BTreeMap<String, usize> = BTreeMap::new();
        for (at, cell) in self.cells.iter().enumerate() {
            if !seen.insert(cell.key.as_str()) {
                shared += 1;
                continue;
            }
            let status = self.ledger.last(&cell.key).map(|last| last.status);
            if let Err(e) = &cell.work {
                if status != Some(CellStatus::Skipped) {
                    let line = self.attempt_of(cell, CellStatus::Skipped, Some(headline(e).to_owned()));
                    self.ledger.append(line.clone())?;
                    self.display.line(&line, self.done(), None);
                }
                continue;
            }
            let again =
                |status: CellStatus| !status.ends_a_whole_run() || self.policy.retry.contains(&status);
            if self.halving.is_none() && !self.is_running(cell) && status.is_none_or(again) {
                self.waiting.push_back(at);
            }
            if status.is_none() {
                let next = self.attempt_of(cell, CellStatus::Running, None);
                if let Some(reason) = rerun::reason(&self.ledger, &next) {
                    *reruns.entry(reason).or_default() += 1;
                }
            }
        }
        if self.halving.is_some() || self.trunks.is_some() {
            self.remove_all_checkpoints();
        }
        if self.halving.is_some() {
            self.climb()?;
        }
        for (reason, count) in reruns {
            let (cells, run) = if count == 1 { ("cell", "runs") } else { ("cells", "run") };
            self.display.note(&format!("{count} {cells} that ended before {run} again: {reason}"));
        }
        if shared > 0 {
            self.display.warn(&format!(
                "{shared} of {} cells differ from another one in bookkeeping keys alone; they share its row",
                self.cells.len()
            ));
        }
        Ok(())
    }

    fn is_running(&self, cell: &Cell) -> bool {
        self.running.iter().any(|(attempt, _)| attempt.key == cell.key)
    }

    /// Starts waiting cells while there are free devices.
    fn start_waiting(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let cell = &self.cells[index];
            let Ok(work) = &cell.work else {
                self.waiting.remove(at);
                continue;
            };
            let in_use: Vec<Vec<usize>> = self.running.iter().map(|(_, run)| run.gpus().to_vec()).collect();
            let Some(assignment) = Assignment::find_free(work, &in_use, self.executor.capacity()) else {
                at += 1;
                continue;
            };
            let beginning = self.beginning(index);
            if beginning == Beginning::Later {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            self.start(cell, work, &assignment, &beginning)?;
        }
        Ok(())
    }

    /// Starts an attempt at a cell, unless its plan does not fit.
    fn start(
        &mut self,
        cell: &Cell,
        work: &Work,
        assignment: &Assignment,
        beginning: &Beginning,
    ) -> Result<()> {
        self.started.insert((cell.key.clone(), self.until));
        let fit = match work.fit() {
            Ok(fit) => fit,
            Err(e) => {
                let line = self.attempt_of(cell, CellStatus::Failed, Some(e.message().to_owned()));
                return self.append(line, None);
            }
        };
        let mut line = self.attempt_of(cell, CellStatus::Running, None);
        line.measured.figures.set(PLANNED, fit.planned_bytes);
        if let Some(refusal) = fit.refusal {
            line.status = CellStatus::PredictedOom;
            line.reason = Some(refusal.message().to_owned());
            return self.append(line, None);
        }
        line.recipe_hash = assignment.recipe_hash(work)?;
        let (task, arguments) = match beginning {
            // It has its recipe already.
            Beginning::Stopped(run) => (Task::Resume(run.clone()), assignment.arguments().collect()),
            Beginning::Trunk { run, step } => {
                (Task::Fork { run: run.clone(), step: *step }, cell.arguments(assignment))
            }
            Beginning::Start | Beginning::Later => {
                (Task::Train(cell.recipe.clone()), cell.arguments(assignment))
            }
        };
        let resumes = matches!(task, Task::Resume(_));
        let recipe_hash = (!resumes).then(|| line.recipe_hash.clone());
        let header = Header { gpus: assignment.gpus.clone(), recipe_hash, until: self.until };
        // The line comes first: a process without a line would never be found again.
        self.append(line.clone(), None)?;
        let name = output_name(&line.key, line.attempt);
        let spec = RunSpec {
            task,
            results: self.policy.results.to_owned(),
            binary: None,
            arguments: [arguments, vec!["--json".to_owned()]].concat(),
            until: self.until,
            gpus: assignment.gpus.clone(),
            output: RunOutput::Kept { name, header: header.line()? },
        };
        match RunningAttempt::start(self.executor, header, &spec) {
            Ok(child) => self.running.push((line, child)),
            Err(e) => {
                self.end(&line, AttemptResult::without_run(CellStatus::Failed, e.message()), None)?;
            }
        }
        Ok(())
    }

    /// Polls every running attempt, and records those that have ended.
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
                    self.end(&attempt, result, Some(child.elapsed()))?;
                    child.forget(self.executor);
                }
            }
        }
        Ok(())
    }

    /// Records the result of an attempt.
    fn end(&mut self, begun: &Attempt, result: AttemptResult, took: Option<Duration>) -> Result<()> {
        let AttemptResult { status, reason, run, mut measured } = result;
        if measured.get(PLANNED).is_none() {
            // A whole number of bytes below 2^53.
            measured.figures.set(PLANNED, begun.measured.get(PLANNED).map(|bytes| bytes as u64));
        }
        let line = Attempt { status, reason, run, measured, at: now(), ..begun.clone() };
        self.append(line.clone(), took)?;
        self.remove_checkpoints(&line);
        Ok(())
    }

    /// Adds a line to the ledger, and updates the output and the display.
    fn append(&mut self, line: Attempt, took: Option<Duration>) -> Result<()> {
        self.ledger.append(line.clone())?;
        self.output.write(self.cells, &self.ledger)?;
        self.display.line(&line, self.done(), took);
        Ok(())
    }

    /// Returns the line of the next attempt at a cell.
    fn attempt_of(&self, cell: &Cell, status: CellStatus, reason: Option<String>) -> Attempt {
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
            build: self.policy.build.to_owned(),
            device: cell.device.clone().unwrap_or_default(),
            run: None,
            at: now(),
            measured: Measured::default(),
        }
    }

    /// Returns the number of cells that are done.
    fn done(&self) -> usize {
        let is_done = |status: CellStatus| match self.halving {
            Some(_) => status.is_final(),
            None => status.ends_a_whole_run(),
        };
        let last = |cell: &Cell| self.ledger.last(&cell.key).is_some_and(|last| is_done(last.status));
        self.cells.iter().filter(|cell| last(cell)).count()
    }
}

fn now() -> String {
    crate::format::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
