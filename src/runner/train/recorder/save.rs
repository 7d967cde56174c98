//! Saves checkpoints of a run, either while training waits or beside it.

use super::{Recorder, SAMPLES, samples_hash};
use crate::checkpoint::{Saved, Write, Written};
use crate::error::Result;
use crate::format::{binary, duration};
use crate::plan::Period;
use crate::policy::WeightsOnly;
use crate::ranks::fault;
use crate::results::Phase;
use crate::train::held::{CheckpointContents, SnapshotCopy};
use crate::train::rank::{Evaluation, Rank};
use std::time::{Duration, Instant};

/// A save that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) struct DueSave {
    /// True if the checkpoint includes the optimizer's state.
    pub whole: bool,
    /// True if the run ends after it.
    pub ends: bool,
}

impl Recorder {
    /// Returns true if the run saves checkpoints.
    pub(in crate::train) fn saves(&self) -> bool {
        self.plan.intervals.checkpoint.keep > 0
    }

    /// Returns true if none of the run's checkpoints can be resumed.
    pub(in crate::train) fn saves_weights_only(&self) -> bool {
        self.plan.intervals.checkpoint.weights_only == WeightsOnly::All
    }

    /// Allocates memory for saves beside training, if the run is known to save before its end.
    pub(in crate::train) fn prepare_saves(&mut self, rank: &Rank) -> Result<()> {
        match self.plan.intervals.saves_before_end(self.plan.steps as u64) {
            true => self.allocate_copy(rank),
            false => Ok(()),
        }
    }

    /// Allocates the copy of the state that a save beside training needs, unless there is one. If memory is
    /// short, training waits for saves from now on.
    fn allocate_copy(&mut self, rank: &Rank) -> Result<()> {
        if !self.saves.background || self.saves.held.is_some() {
            return Ok(());
        }
        match rank.allocate_held() {
            Ok(held) => self.saves.held = held,
            Err(e) => {
                self.saves.background = false;
                self.warn(&format!("training waits for saves: no memory for a copy of the state: {e}"))?;
            }
        }
        Ok(())
    }

    /// Saves a checkpoint, if the run saves any. The save runs beside training if training continues and the
    /// copy of the state fits in memory. At most one write is in flight; a save that comes before its end
    /// waits for it. If saving fails, earlier checkpoints stay untouched and training continues with a
    /// warning. If the last save fails, the run ends as `unsaved`.
    pub(in crate::train) fn save(&mut self, rank: &Rank, due: DueSave) -> Result<()> {
        if !self.saves() {
            return Ok(());
        }
        let started = Instant::now();
        self.progress.pause(Phase::Save, 0, 1);
        self.wait_for_write()?;
        let average = self.plan.ema.map(|ema| ema.slot(self.plan.precision).checkpoint_prefix);
        let contents =
            if due.whole { CheckpointContents::All } else { CheckpointContents::Weights { average } };
        self.describe_save(rank.done(), due);
        if !due.ends {
            self.allocate_copy(rank)?;
        }
        let beside = self.saves.background && !due.ends;
        let saved = if beside {
            self.begin_write(rank, contents).map(|()| None)
        } else {
            self.save_now(rank, contents).map(Some)
        };
        // Other ranks wait for this, whether or not the save succeeded.
        rank.end_snapshot()?;
        let took = started.elapsed();
        let phase = match saved.transpose() {
            // The row records the copy of the state. The save is recorded when it has finished.
            None => Phase::Snapshot,
            Some(saved) => {
                self.saved(rank.done(), saved, took)?;
                Phase::Save
            }
        };
        self.time(rank.done(), phase, took)
    }

    /// Records the write in flight if it has ended. Returns the step of the checkpoint that was in flight
    /// since the last call, or `None` if there was none.
    pub(in crate::train) fn collect_write(&mut self) -> Result<Option<u64>> {
        let step = self.saves.writer.in_flight();
        if let Some(written) = self.saves.writer.ended() {
            self.written(written)?;
        }
        Ok(step)
    }

    /// Waits for the write in flight, and records it.
    pub(super) fn wait_for_write(&mut self) -> Result<()> {
        match self.saves.writer.wait() {
            Some(written) => self.written(written),
            None => Ok(()),
        }
    }

    /// Returns true if the run saves by time and the period since the last save has passed.
    pub(in crate::train) fn save_is_due(&self) -> bool {
        let Period::Time(period) = self.plan.intervals.save_period else { return false };
        let saves = &self.saves;
        self.saves() && saves.writer.in_flight().is_none() && saves.last_save.elapsed() >= period
    }

    /// Returns true if a checkpoint is due because an evaluation found the lowest validation loss so far. A
    /// checkpoint in flight counts only once it is written; if the answer depends on it, this waits.
    pub(in crate::train) fn is_best(&mut self, evaluation: &Evaluation) -> Result<bool> {
        let Some(set) = evaluation.sets.first().filter(|_| self.saves()) else { return Ok(false) };
        let is_below = |best: Option<f32>| (set.loss() as f32) < best.unwrap_or(f32::INFINITY);
        if let Some(step) = self.saves.writer.in_flight()
            && !is_below(self.saves.best_loss)
            && is_below(self.saves.store.best_loss(step.saturating_sub(1))?)
        {
            self.wait_for_write()?;
        }
        Ok(is_below(self.saves.best_loss))
    }

    /// Records how a write ended.
    fn written(&mut self, written: Written<SnapshotCopy>) -> Result<()> {
        let Written { step, took, saved, state } = written;
        self.saves.held = state.or(self.saves.held.take());
        self.saved(step, saved, took)
    }

    /// Records how a save ended. Nothing may report a checkpoint of this step before this.
    fn saved(&mut self, step: u64, saved: Result<Saved>, took: Duration) -> Result<()> {
        self.saves.last_save = Instant::now();
        match saved {
            Ok(Saved { bytes, warnings, .. }) => {
                (self.saves.saved_step, self.saves.unsaved) = (step, None);
                let size = binary(bytes as usize);
                let line = format!("saved after step {step}: {size} in {}", duration(took.as_secs_f64()));
                self.log(&line)?;
                let tidied = self.files.saved(step);
                for warning in warnings.into_iter().chain(tidied.err().map(|e| e.to_string())) {
                    self.warn(&warning)?;
                }
            }
            Err(e) => {
                let text = e.message().to_owned();
                self.summary.notes.push(text.clone());
                self.saves.unsaved = Some(e);
                if self.plan.intervals.checkpoint.keep_best {
                    self.saves.best_loss = self.saves.store.best_loss(step)?;
                }
                self.warn(&text)?;
            }
        }
        Ok(())
    }

    /// Fills in the metadata of a checkpoint, except the rows.
    fn describe_save(&mut self, step: u64, due: DueSave) {
        self.saves.meta.step = step;
        self.saves.meta.tokens_seen = self.tokens_at(step);
        self.saves.meta.set_weights_only(!due.whole);
        self.saves.meta.extra.insert(SAMPLES.to_owned(), samples_hash(&self.summary.samples));
        if self.plan.intervals.checkpoint.keep_best {
            let loss = self.saves.evaluated.filter(|(evaluated, _)| *evaluated == step).map(|(_, loss)| loss);
            self.saves.meta.set_validation_loss(loss);
            let better = loss.filter(|loss| *loss < self.saves.best_loss.unwrap_or(f32::INFINITY));
            self.saves.best_loss = better.or(self.saves.best_loss);
        }
    }

    /// Saves a checkpoint while training waits.
    fn save_now(&mut self, rank: &Rank, contents: CheckpointContents) -> Result<Saved> {
        // A checkpoint must never be ahead of its rows.
        let synced = self.files.sync();
        synced.map_err(|e| e.context(format_args!("checkpoint of step {} not saved", rank.done())))?;
        self.saves.meta.rows = self.files.content();
        self.saves.store.save(&self.saves.meta, &contents.restrict(rank.snapshot()))
    }

    /// Copies the state and starts to write it beside training.
    fn begin_write(&mut self, rank: &Rank, contents: CheckpointContents) -> Result<()> {
        let held = self
            .files
            .later_sync()
            .and_then(|sync| Ok((sync, rank.copy_snapshot(self.saves.held.take(), contents)?)));
        let (sync, state) =
            held.map_err(|e| e.context(format_args!("checkpoint of step {} not saved", rank.done())))?;
        self.saves.meta.rows = self.files.content();
        let step = rank.done();
        // A checkpoint must never be ahead of its rows.
        let before = Box::new(move || {
            fault::inject_write_fault(step)?;
            sync()
        });
        self.saves.writer.start(Write { meta: self.saves.meta.clone(), state, before })
    }
}
