//! Saves checkpoints of a run.

use super::Recorder;
use crate::checkpoint::FileRecord;
use crate::error::Result;
use crate::plan::Interval;
use crate::results::Phase;
use crate::results::folder::{METRICS, TIMING};
use crate::results::rows::SavedRows;
use crate::train::rank::Rank;
use std::time::Instant;

impl Recorder {
    /// Returns true if the run saves checkpoints.
    pub(in crate::train) fn saves(&self) -> bool {
        self.plan.intervals.keep > 0
    }

    /// Saves a checkpoint, if the run saves any. If saving fails, earlier checkpoints stay as they are, and
    /// training continues with a warning; if it was the last save, the run ends as `unsaved`.
    pub(in crate::train) fn save(&mut self, rank: &Rank) -> Result<()> {
        if !self.saves() {
            return Ok(());
        }
        let started = Instant::now();
        self.progress.pause(Phase::Save, 0, 1);
        let saved = self.save_now(rank);
        // Other ranks wait for this, whether it was saved or not.
        rank.end_snapshot()?;
        match saved {
            Ok(warnings) => {
                (self.saved_step, self.unsaved) = (rank.done(), None);
                for warning in warnings {
                    self.warn(&warning)?;
                }
            }
            Err(e) => {
                let text = e.message().to_owned();
                self.summary.notes.push(text.clone());
                self.unsaved = Some(e);
                self.warn(&text)?;
            }
        }
        self.last_save = Instant::now();
        self.time(rank.done(), Phase::Save, started.elapsed())
    }

    /// Returns true if the run saves by time and the last save is long enough ago.
    pub(in crate::train) fn save_is_due(&self) -> bool {
        match self.plan.intervals.checkpoint {
            Interval::Time(period) => self.saves() && self.last_save.elapsed() >= period,
            Interval::Steps(_) => false,
        }
    }

    /// Saves a checkpoint; returns warnings.
    fn save_now(&mut self, rank: &Rank) -> Result<Vec<String>> {
        // A checkpoint must never be ahead of its rows.
        let synced = self.metrics.sync().and_then(|()| self.timing.sync());
        synced.map_err(|e| e.context(format_args!("checkpoint of step {} not saved", rank.done())))?;
        self.meta.step = rank.done();
        self.meta.tokens_seen = self.tokens_at(rank.done());
        self.meta.rows = [(METRICS, self.metrics.content()), (TIMING, self.timing.content())]
            .map(|(file, SavedRows { bytes, blake3 })| (file.to_owned(), FileRecord { bytes, blake3 }))
            .into();
        let mut warnings = self.store.save(&self.meta, &rank.snapshot())?.warnings;
        let tidied = self.metrics.saved(rank.done()).and_then(|()| self.timing.saved(rank.done()));
        warnings.extend(tidied.err().map(|e| e.to_string()));
        Ok(warnings)
    }
}
