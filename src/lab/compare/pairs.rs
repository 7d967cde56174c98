//! Runs pairs as cells, with the scheduler and the ledger of sweeps: side by side, or in turns if a measure
//! depends on the clock.

use super::basis::{self, Records};
use super::cpu_load::CpuLoad;
use super::history;
use super::question::Question;
use super::setting::Setting;
use super::trials::turns;
use crate::error::{Error, Result};
use crate::executor::Limits;
use crate::executor::batch_system::BatchSystem;
use crate::ranks::Stop;
use crate::recipe::NO_CHECKPOINTS;
use crate::results::experiment::ExperimentRun;
use crate::results::ledger::{Attempt, CellStatus, Ledger};
use crate::results::measure::{Clock, Measure, MeasureValue, MeasuredRun};
use crate::results::progress::Mode;
use crate::sweep::{BatchPolicy, CellBatch, CellEnd, CellRequest, PlannedCell};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The runs of a list of pairs: both arms of the first pair, then both of the second, and so on.
pub struct PairRuns<'a> {
    batch: CellBatch,
    pairs: usize,
    measures: Vec<Measure>,
    /// True if the runs go one at a time, in the order A B B A, so that drift of the machine affects both
    /// arms alike. Stored runs are then not reused, because they were not measured in turns.
    take_turns: bool,
    /// The comparison's name, for messages.
    name: String,
    setting: &'a Setting<'a>,
    /// The batch system if stopped runs continue from their checkpoints.
    resuming: Option<&'a dyn BatchSystem>,
}

impl<'a> PairRuns<'a> {
    /// Resolves and plans the runs of pairs with these seeds.
    ///
    /// # Errors
    /// If a recipe cannot be planned on this machine.
    pub fn new(question: &Question, seeds: &[[u64; 2]], setting: &'a Setting<'a>) -> Result<Self> {
        let external = || Error::usage("an external command has no recipe to run in pairs");
        let arms: Vec<(PathBuf, Vec<String>)> = question
            .arms
            .both()
            .into_iter()
            .map(|arm| arm.recipe_and_settings().ok_or_else(external))
            .collect::<Result<_>>()?;
        let cells = seeds.iter().flat_map(|pair| arms.iter().zip(pair));
        // A task keeps the checkpoint that it continues from, until the run is done. Timed runs begin again.
        let resuming = setting.batch.filter(|_| !question.is_timed());
        let stays = |key_value: &&String| resuming.is_none() || *key_value != NO_CHECKPOINTS;
        let requests = cells.map(|((recipe, settings), seed)| {
            let seed = format!("training.seed={seed}");
            let settings = settings.iter().filter(stays).cloned().chain([seed]).collect();
            CellRequest { recipe: recipe.clone(), settings }
        });
        let requests: Vec<CellRequest> = requests.collect();
        let measures = question.findings.iter().map(|asked| asked.measure.clone()).collect();
        Ok(Self {
            batch: CellBatch::new(
                &requests,
                setting.results,
                &setting.machine,
                usize::from(resuming.is_some()),
            )?,
            pairs: seeds.len(),
            measures,
            take_turns: question.is_timed(),
            name: question.name.clone(),
            setting,
            resuming,
        })
    }

    /// Returns the cells of the first pair, the baseline's first.
    pub fn first_pair(&self) -> Option<[PlannedCell<'_>; 2]> {
        Some([self.batch.get(0)?, self.batch.get(1)?])
    }

    /// Checks that both arms fit in memory.
    ///
    /// # Errors
    /// [`DoesNotFit`](crate::error::ErrorKind::DoesNotFit), or the reason why no plan can be made.
    pub fn check_fit(&self) -> Result<()> {
        for cell in self.first_pair().iter().flatten() {
            cell.work.fit()?.refusal.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Returns the cells, pair by pair, with whether each is already stored and will be reused.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn cells(&self) -> Result<Vec<(PlannedCell<'_>, bool)>> {
        let ledger = Ledger::read(self.setting.results)?;
        let cells = (0..2 * self.pairs).filter_map(|at| self.batch.get(at));
        let is_stored = |cell: &PlannedCell<'_>| !self.take_turns && self.usable(ledger.last(cell.key));
        Ok(cells.map(|cell| (cell, is_stored(&cell))).collect())
    }

    /// Returns how many runs are already stored and will be reused.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn stored(&self) -> Result<usize> {
        Ok(self.cells()?.iter().filter(|(_, is_stored)| *is_stored).count())
    }

    /// Runs some runs, by their indices, unless they are done. Waits for those that other processes run.
    ///
    /// # Errors
    /// After a signal, or if the ledger cannot be written.
    pub fn run_some(&self, runs: &[usize], stop: &Stop) -> Result<()> {
        runs.iter().try_for_each(|at| self.start(*at..at + 1, false, stop, &mut |_| Ok(())))
    }

    /// Runs a range of pairs. Calls `ended` for every run that ends, with its index in the list of planned
    /// runs.
    ///
    /// # Errors
    /// After a signal, or if the ledger or the record cannot be written.
    pub fn run(
        &self,
        pairs: Range<usize>,
        stop: &Stop,
        ended: &mut dyn FnMut(usize, ExperimentRun) -> Result<()>,
    ) -> Result<()> {
        let mut before = CpuLoad::sample().filter(|_| self.take_turns);
        let ended = &mut |end: CellEnd<'_>| {
            let now = before.and_then(|_| CpuLoad::sample());
            let other_load = now.zip(before).and_then(|(now, before)| now.since(&before));
            before = now;
            ended(end.at, ExperimentRun { other_load, ..self.run_record(&end) })
        };
        if self.take_turns {
            for at in pairs.flat_map(|pair| turns(pair).map(|arm| 2 * pair + arm)) {
                self.start(at..at + 1, true, stop, ended)?;
            }
            return Ok(());
        }
        // A stored run may be gone; such a run is repeated on its own.
        let ledger = Ledger::read(self.setting.results)?;
        let stored = history::stored(self.setting.results)?;
        let records = Records { ledger: &ledger, stored: &stored };
        for at in 2 * pairs.start..2 * pairs.end {
            let Some(cell) = self.batch.get(at) else { continue };
            let Some(line) = ledger.last(cell.key).filter(|line| is_result(line.status)) else { continue };
            if !basis::check_reused(self.setting.results, line, &cell, &records)? {
                self.start(at..at + 1, true, stop, &mut |_| Ok(()))?;
            }
        }
        self.start(2 * pairs.start..2 * pairs.end, false, stop, ended)
    }

    fn start(
        &self,
        cells: Range<usize>,
        again: bool,
        stop: &Stop,
        ended: &mut dyn FnMut(CellEnd<'_>) -> Result<()>,
    ) -> Result<()> {
        let policy = BatchPolicy {
            name: &self.name,
            results: self.setting.results,
            jobs: self.setting.jobs,
            rerun_done: again,
            needs_idle_machine: self.take_turns,
            batch: self.resuming,
            limits: Limits { hang: None, timeout: self.setting.timeout },
            progress: Mode::Auto,
        };
        self.batch.run(cells, &policy, stop, ended)
    }

    /// Returns true if a ledger line names a run that counts and has all its rows.
    fn usable(&self, line: Option<&Attempt>) -> bool {
        let Some(run) = line.filter(|line| is_result(line.status)).and_then(|line| line.run.as_ref()) else {
            return false;
        };
        MeasuredRun::open(&self.setting.results.join(run)).is_ok_and(|run| run.is_complete())
    }

    /// Records a run that has ended.
    fn run_record(&self, end: &CellEnd<'_>) -> ExperimentRun {
        let line = end.line;
        let run = ExperimentRun {
            arm: end.at % 2,
            seed: self.batch.get(end.at).map(|cell| cell.work.recipe.values().training.seed),
            run: line.run.clone(),
            status: Some(line.status.as_str().to_owned()),
            reason: line.reason.clone(),
            reused: end.reused,
            ..ExperimentRun::default()
        };
        if !is_result(line.status) {
            return run;
        }
        let folder = self.setting.results.join(line.run.as_deref().unwrap_or_default());
        with_values(run, &folder, &self.measures)
    }
}

/// Fills in the values of a run's measures from its folder.
pub fn with_values(mut run: ExperimentRun, folder: &Path, measures: &[Measure]) -> ExperimentRun {
    match MeasuredRun::open(folder) {
        Ok(measured) => {
            let value = |measure: &Measure| (measure.to_string(), measured.measure(measure));
            run.values = measures.iter().map(value).collect();
            run.metrics_hash = measured.metrics_hash().ok();
            let in_seconds =
                |measure: &Measure| matches!(measure, Measure::Until { clock: Clock::Seconds, .. });
            run.training_s = measures.iter().any(in_seconds).then(|| measured.training_seconds()).flatten();
        }
        Err(error) => {
            let missing = MeasureValue::Missing(error.message().to_owned());
            run.values = measures.iter().map(|measure| (measure.to_string(), missing.clone())).collect();
        }
    }
    run
}

/// Returns true if this end is a result: running it again would end the same way.
fn is_result(status: CellStatus) -> bool {
    matches!(status, CellStatus::Ok | CellStatus::Diverged)
}
