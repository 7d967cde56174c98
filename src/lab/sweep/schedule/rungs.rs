//! Decides at the rungs of a sweep which cells continue, and from which run, according to the ledger.

use super::Schedule;
use crate::checkpoint;
use crate::error::Result;
use crate::results::columns::Figures;
use crate::results::folder::{CHECKPOINT, METRICS, read_summary};
use crate::results::ledger::{Attempt, CellStatus, Ledger, Measured};
use crate::results::rows::{self, MetricsRow};
use crate::sweep::attempt::measured;
use crate::sweep::cell::{Cell, KEEP};
use crate::sweep::design::Design;
use crate::sweep::halving::{CellResult, Halving, HalvingProgress, RankedBy};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

impl Schedule<'_> {
    /// Queues the cells to train to the next rung, or from the last rung to the end, and records which are
    /// dropped. Returns false if nothing is left to run.
    pub(super) fn climb(&mut self) -> Result<bool> {
        let Some(halving) = self.design.halving() else { return Ok(false) };
        let HalvingProgress { rung, open, dropped } = self.standing(halving);
        self.until = rung;
        for (at, why) in dropped {
            self.drop_cell(at, why)?;
        }
        // The end of training comes after every rung.
        let last = |rung: Option<u64>| rung.unwrap_or(u64::MAX);
        let stage = self.policy.task.and_then(|task| task.stage);
        if stage.is_some_and(|stage| last(rung) > last(stage.rung) || self.started.len() >= stage.cells) {
            return Ok(false);
        }
        self.leaves_claimed = stage.is_some_and(|stage| stage.rung == rung);
        let claimed = if self.leaves_claimed { self.ledger.claimed_by_others()? } else { Vec::new() };
        let mut queued = HashSet::new();
        for at in open {
            let cell = &self.cells[at];
            if claimed.contains(&cell.key) {
                continue;
            }
            // A cell that was started here but did not get there is left to the next sweep.
            let was_started = self.started.contains(&(cell.key.clone(), rung));
            if !was_started && !self.is_running(cell) && queued.insert(&cell.key) {
                self.waiting.push_back(at);
            }
        }
        if let Some(stage) = stage {
            self.waiting.truncate(stage.cells - self.started.len());
        }
        Ok(!self.waiting.is_empty())
    }

    /// Records that a cell is dropped at a rung, unless another process does so.
    fn drop_cell(&mut self, cell: usize, why: String) -> Result<()> {
        let cell = &self.cells[cell];
        let is_open = |ledger: &Ledger| ledger.last(&cell.key).is_some_and(|last| !last.status.is_final());
        if self.is_running(cell) || !is_open(&self.ledger) || !self.ledger.claim(&cell.key)? {
            return Ok(());
        }
        if let Some(last) = self.ledger.last(&cell.key).filter(|last| !last.status.is_final()).cloned() {
            let (status, reason) = (CellStatus::Dropped, Some(why));
            let line = Attempt { status, reason, at: super::now(), ..last };
            self.append(line.clone(), None)?;
            self.remove_checkpoints(&line);
        }
        self.ledger.release(&cell.key);
        Ok(())
    }

    /// Returns how far the sweep has come, according to its ledger.
    fn standing(&self, halving: &Halving) -> HalvingProgress {
        let mut lines: HashMap<&str, Vec<&Attempt>> = HashMap::new();
        for line in self.ledger.lines() {
            lines.entry(line.key.as_str()).or_default().push(line);
        }
        let of = |cell: usize| lines.get(self.cells[cell].key.as_str()).map_or(&[][..], Vec::as_slice);
        halving.standing(|cell, rung| self.result(of(cell), rung))
    }

    /// Returns the ledger lines of a cell.
    pub(super) fn cell_lines(&self, key: &str) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.ledger.lines().iter().filter(move |line| line.key == key)
    }

    /// Returns what a cell is ranked by at a rung, or at the end. These are its lines.
    pub(super) fn result(&self, lines: &[&Attempt], rung: Option<u64>) -> CellResult {
        let last = lines.last();
        let results = self.policy.results;
        let by = self.design.halving().map_or(&RankedBy::ValidationLoss, |halving| &halving.by);
        let loss = match rung {
            Some(step) => value_at(results, by, lines, step),
            None => {
                last.filter(|line| line.status == CellStatus::Ok).map(|line| final_value(results, by, line))
            }
        };
        match (loss, last) {
            (Some(loss), _) => CellResult::Loss(loss),
            (None, Some(line)) if line.status.ends_a_whole_run() && line.status != CellStatus::Ok => {
                if self.is_retried(line) { CellResult::Open } else { CellResult::Ended }
            }
            (None, _) => CellResult::Open,
        }
    }

    /// Returns the newest run of a cell if the cell continues from its checkpoint. That is so in a sweep with
    /// rungs or cooldowns and on a cluster, and in any sweep if the run was halted at a rung.
    pub(super) fn stopped_run(&self, key: &str) -> Option<String> {
        let was_halted = |line: &Attempt| matches!(line.status, CellStatus::Halted | CellStatus::Dropped);
        let is_grid = matches!(self.design, Design::Grid) && self.policy.task.is_none();
        if is_grid && !self.ledger.last(key).is_some_and(was_halted) {
            return None;
        }
        let run = self.cell_lines(key).rev().find_map(|line| line.run.clone())?;
        let folder = self.policy.results.join(&run);
        let is_unfinished = read_summary(&folder).is_ok_and(|summary| summary.status.is_unfinished());
        (is_unfinished && has_checkpoint(&folder)).then_some(run)
    }

    /// Returns the figures of a stopped run if it has been trained to the step `until` or further. The ledger
    /// may have lost the line that says so, and a run cannot be trained to a step that it has passed.
    pub(super) fn measured_at(&self, run: &str, until: u64) -> Option<Measured> {
        let folder = self.policy.results.join(run);
        let saved = checkpoint::steps(&folder.join(CHECKPOINT)).ok()?;
        saved.last().filter(|step| **step >= until)?;
        read_summary(&folder).ok().map(|summary| measured(&summary))
    }

    /// Removes the checkpoints of all done cells, because an earlier sweep may have been killed before it
    /// did.
    pub(super) fn remove_all_checkpoints(&mut self) {
        let last = |cell: &Cell| self.ledger.last(&cell.key).cloned();
        let done: Vec<Attempt> = self.cells.iter().filter_map(last).collect();
        done.iter().for_each(|line| self.remove_checkpoints(line));
    }

    /// Removes the checkpoints of a done cell, unless its settings ask to keep them. Cells on one trunk lose
    /// theirs together, once all of them are done.
    pub(super) fn remove_checkpoints(&mut self, line: &Attempt) {
        let lines = self.trunk_lines(&line.key).unwrap_or_else(|| vec![line.clone()]);
        if !lines.iter().all(|line| line.status.is_final()) {
            return;
        }
        for line in lines.iter().filter(|line| !line.settings.contains_key(KEEP)) {
            for run in self.runs_of(line) {
                let checkpoints = self.policy.results.join(run).join(CHECKPOINT);
                if checkpoints.is_dir()
                    && let Err(e) = std::fs::remove_dir_all(&checkpoints)
                    // Another process may be removing them too.
                    && checkpoints.is_dir()
                {
                    self.display.warn(&format!("cannot remove {}: {e}", checkpoints.display()));
                }
            }
        }
    }

    /// Returns the runs whose checkpoints a done cell no longer needs: its last run, or with trunks all of
    /// its runs.
    fn runs_of(&self, line: &Attempt) -> BTreeSet<String> {
        match self.design.trunks() {
            Some(_) => self.cell_lines(&line.key).filter_map(|other| other.run.clone()).collect(),
            None => line.run.iter().cloned().collect(),
        }
    }
}

/// Returns true if a run's folder has a checkpoint.
fn has_checkpoint(run: &Path) -> bool {
    let entries = std::fs::read_dir(run.join(CHECKPOINT)).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
}

/// Returns the validation loss of a line; NaN if it has none.
fn val_loss(line: &Attempt) -> f64 {
    line.measured.get("val_loss").unwrap_or(f64::NAN)
}

/// Returns what a cell is ranked by at the end; NaN if it has none.
fn final_value(results: &Path, by: &RankedBy, line: &Attempt) -> f64 {
    match by {
        RankedBy::ValidationLoss => val_loss(line),
        RankedBy::Score { column, sign } => {
            let summary = line.run.as_ref().and_then(|run| read_summary(&results.join(run)).ok());
            let value = summary.and_then(|summary| Figures::as_printed(&summary).score(column));
            value.map_or(f64::NAN, |value| sign * value)
        }
    }
}

/// Returns what a cell is ranked by at a step: from the line that halted it there, or from the rows of a run
/// that has the step.
fn value_at(results: &Path, by: &RankedBy, lines: &[&Attempt], step: u64) -> Option<f64> {
    let steps = |line: &Attempt| line.measured.get("steps");
    let halted = lines.iter().rev().find(|line| {
        matches!(line.status, CellStatus::Halted | CellStatus::Dropped) && steps(line) == Some(step as f64)
    });
    if let (Some(line), RankedBy::ValidationLoss) = (halted, by) {
        return Some(val_loss(line));
    }
    let reached = lines.iter().rev().find(|line| steps(line).is_some_and(|steps| steps >= step as f64))?;
    let file = results.join(reached.run.as_ref()?).join(METRICS);
    let rows: Vec<MetricsRow> = rows::read(&file).ok()?;
    let row = rows.iter().find(|row| row.step == step)?;
    // Round as the summary, and so the ledger, prints it.
    let printed = |value: f32| value.to_string().parse::<f64>().ok();
    match by {
        RankedBy::ValidationLoss => printed(row.val_loss?),
        RankedBy::Score { column, sign } => Some(sign * printed(*row.further.get(column)?)?),
    }
}
