//! The loop of a sweep: attempts of earlier sweeps first, then every cell that is not done, on whatever device is free.

use super::cell::{Cell, Work, headline};
use super::child::{ATTEMPTS, Child, Limits, Order, Verdict};
use super::display::Display;
use super::place::Place;
use super::rerun;
use super::table::Tables;
use crate::device::cuda;
use crate::error::{Error, IoContext, Kind, Result};
use crate::format::plural;
use crate::ranks::Stop;
use crate::results::ledger::{Attempt, CellStatus, Ledger, Measured, SWEEPS};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::Path;
use std::time::Duration;

/// The ledger's key of the planned bytes, which are known before a cell runs.
const PLANNED: &str = "planned_bytes";

/// Between two looks at the attempts under way.
const TICK: Duration = Duration::from_millis(20);

/// How cells are run.
#[derive(Debug)]
pub struct Policy<'a> {
    /// The recipe, as given.
    pub recipe: &'a Path,
    /// Its name.
    pub name: &'a str,
    /// The results folder.
    pub results: &'a Path,
    /// Cells at once on the CPU.
    pub jobs: usize,
    /// What a cell that is done is run again for.
    pub retry: &'a [CellStatus],
    /// How long an attempt may take.
    pub limits: Limits,
    /// The program that runs the cells.
    pub build: &'a str,
}

/// A sweep under way.
pub struct Schedule<'a> {
    policy: &'a Policy<'a>,
    cells: &'a [Cell],
    ledger: Ledger,
    tables: Tables,
    display: Display,
    /// Indices of cells that wait for a device.
    waiting: VecDeque<usize>,
    /// Attempts under way, with their first lines.
    running: Vec<(Attempt, Child)>,
    /// GPUs that cells may have.
    gpus: usize,
}

impl<'a> Schedule<'a> {
    /// A sweep over these cells. Whoever calls it holds the folder of sweeps.
    pub fn new(
        policy: &'a Policy<'a>,
        cells: &'a [Cell],
        ledger: Ledger,
        tables: Tables,
        display: Display,
    ) -> Self {
        let gpus = cuda::usable().unwrap_or_default();
        Self { policy, cells, ledger, tables, display, waiting: VecDeque::new(), running: Vec::new(), gpus }
    }

    /// Runs what is not done, until all is, or a signal comes.
    ///
    /// # Errors
    /// [`Kind::Interrupted`] after a signal; a failure when a cell failed, hung, took too long or was killed, or when
    /// the ledger or a table cannot be written.
    pub fn run(mut self, stop: &Stop) -> Result<()> {
        let attempts = self.policy.results.join(SWEEPS).join(ATTEMPTS);
        std::fs::create_dir_all(&attempts).at("create", &attempts)?;
        self.settle()?;
        self.queue()?;
        self.tables.write(self.cells, &self.ledger)?;
        while !self.running.is_empty() || !self.waiting.is_empty() {
            if stop.asked() {
                self.waiting.clear();
                self.running.iter_mut().for_each(|(_, child)| child.stop());
            }
            self.fill()?;
            self.look()?;
            if !self.running.is_empty() {
                std::thread::sleep(TICK);
            }
        }
        self.conclude(stop.asked())
    }

    /// Finds what became of attempts that earlier sweeps began and saw no end of. Those that live are watched further.
    fn settle(&mut self) -> Result<()> {
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
            let ago = began.and_then(|at| Duration::try_from(at.duration_until(Timestamp::now())).ok());
            let child =
                Child::adopt(self.policy.results, &attempt.key, attempt.attempt, ago.unwrap_or_default())?;
            match child {
                Some(child) => {
                    self.display.line(&attempt, self.done(), None);
                    self.running.push((attempt, child));
                }
                None => {
                    let verdict = Verdict {
                        status: CellStatus::Killed,
                        reason: Some("ended with an earlier sweep".to_owned()),
                        run: None,
                        measured: Measured::default(),
                    };
                    self.end(&attempt, verdict, None)?;
                }
            }
        }
        // Those that are over are settled before anything is queued.
        self.look()
    }

    /// Queues every cell that is not done, and writes down those that are left out.
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
            let again = |status: CellStatus| !status.is_final() || self.policy.retry.contains(&status);
            let under_way = self.running.iter().any(|(attempt, _)| attempt.key == cell.key);
            if !under_way && status.is_none_or(again) {
                self.waiting.push_back(at);
            }
            if status.is_none() {
                let next = self.attempt_of(cell, CellStatus::Running, None);
                if let Some(reason) = rerun::reason(&self.ledger, &next) {
                    *reruns.entry(reason).or_default() += 1;
                }
            }
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
        let open = self.waiting.len() + self.running.len();
        let done = self.done();
        self.display.note(&format!(
            "{}: {} cell{}, {done} done, {open} to run; rows in {}",
            self.policy.name,
            self.cells.len(),
            plural(self.cells.len()),
            self.tables.for_people().display()
        ));
        Ok(())
    }

    /// Starts cells as long as one finds a device.
    fn fill(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let cell = &self.cells[index];
            let Ok(work) = &cell.work else {
                self.waiting.remove(at);
                continue;
            };
            let taken: Vec<Vec<usize>> = self.running.iter().map(|(_, child)| child.gpus.clone()).collect();
            let Some(place) = Place::find(work, &taken, self.gpus, self.policy.jobs) else {
                at += 1;
                continue;
            };
            self.waiting.remove(at);
            self.begin(cell, work, &place)?;
        }
        Ok(())
    }

    /// Starts an attempt at a cell, unless its plan says that it cannot fit.
    fn begin(&mut self, cell: &Cell, work: &Work, place: &Place) -> Result<()> {
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
        line.recipe_hash = work.hash_at(place);
        // The line comes first: a process that nobody knows of would never be found again.
        self.append(line.clone(), None)?;
        let order = Order {
            results: self.policy.results,
            recipe: self.policy.recipe,
            arguments: &cell.arguments(place),
            gpus: &place.gpus,
            recipe_hash: &line.recipe_hash,
        };
        match Child::start(&line.key, line.attempt, &order) {
            Ok(child) => self.running.push((line, child)),
            Err(e) => {
                let verdict = Verdict {
                    status: CellStatus::Failed,
                    reason: Some(e.message().to_owned()),
                    run: None,
                    measured: Measured::default(),
                };
                self.end(&line, verdict, None)?;
            }
        }
        Ok(())
    }

    /// Looks at every attempt under way, and writes down those that are over.
    fn look(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some((attempt, child)) = self.running.get_mut(at) {
            match child.poll(self.policy.results, self.policy.limits)? {
                None => {
                    self.display.step(&attempt.key, child);
                    at += 1;
                }
                Some(verdict) => {
                    let (attempt, child) = self.running.remove(at);
                    self.end(&attempt, verdict, Some(child.took()))?;
                    child.forget();
                }
            }
        }
        Ok(())
    }

    /// Writes down how an attempt ended.
    fn end(&mut self, begun: &Attempt, verdict: Verdict, took: Option<Duration>) -> Result<()> {
        let Verdict { status, reason, run, mut measured } = verdict;
        if measured.get(PLANNED).is_none() {
            // A whole number of bytes below 2^53.
            measured.figures.set(PLANNED, begun.measured.get(PLANNED).map(|bytes| bytes as u64));
        }
        let line = Attempt { status, reason, run, measured, at: now(), ..begun.clone() };
        self.append(line, took)
    }

    /// Adds a line to the ledger, and brings the tables and the display up to date.
    fn append(&mut self, line: Attempt, took: Option<Duration>) -> Result<()> {
        self.ledger.append(line.clone())?;
        self.tables.write(self.cells, &self.ledger)?;
        self.display.line(&line, self.done(), took);
        Ok(())
    }

    /// The next attempt at a cell.
    fn attempt_of(&self, cell: &Cell, status: CellStatus, reason: Option<String>) -> Attempt {
        Attempt {
            key: cell.key.clone(),
            attempt: self.ledger.last(&cell.key).map_or(0, |last| last.attempt) + 1,
            status,
            reason,
            recipe: self.policy.name.to_owned(),
            settings: cell.settings.clone(),
            recipe_hash: cell.recipe_hash.clone().unwrap_or_default(),
            corpus_hash: cell.corpus_hash.clone(),
            build: self.policy.build.to_owned(),
            device: cell.device.clone().unwrap_or_default(),
            run: None,
            at: now(),
            measured: Measured::default(),
        }
    }

    /// Cells with a final row.
    fn done(&self) -> usize {
        let last = |cell: &Cell| self.ledger.last(&cell.key).is_some_and(|last| last.status.is_final());
        self.cells.iter().filter(|cell| last(cell)).count()
    }

    /// Says how the sweep ended.
    fn conclude(mut self, stopped: bool) -> Result<()> {
        let mut counts: BTreeMap<CellStatus, usize> = BTreeMap::new();
        for cell in self.cells {
            if let Some(last) = self.ledger.last(&cell.key) {
                *counts.entry(last.status).or_default() += 1;
            }
        }
        let words: Vec<String> = counts.iter().map(|(status, n)| format!("{n} {status}")).collect();
        let (done, cells) = (self.done(), self.cells.len());
        let table = self.tables.for_people();
        self.display.finish(&format!(
            "{done} of {cells} cell{} done: {}; {}",
            plural(cells),
            words.join(", "),
            table.display()
        ));
        if stopped {
            return Err(Error::new(
                Kind::Interrupted,
                format!("stopped by a signal with {done} of {cells} cells done; the same command goes on"),
            ));
        }
        let bad = [CellStatus::Failed, CellStatus::Hang, CellStatus::Timeout, CellStatus::Killed];
        let bad: Vec<String> =
            bad.iter().filter(|status| counts.contains_key(status)).map(|s| s.to_string()).collect();
        if bad.is_empty() {
            return Ok(());
        }
        Err(Error::failed(format!(
            "some cells did not end well; `--retry {}` runs them again",
            bad.join(",")
        )))
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
