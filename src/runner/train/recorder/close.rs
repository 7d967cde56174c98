//! Closes a run: reads its files back, and records in the summary how it ended.

use super::Recorder;
use crate::error::{Error, ErrorKind, Result};
use crate::results::folder::{METRICS, TIMING, overwrite_running};
use crate::results::summary::UNSETTLED;
use crate::results::{MetricsRow, RunFolder, Status, TimingRow, memory, rows};

impl Recorder {
    /// Closes the run: reads its files back and writes the summary with its status.
    ///
    /// # Errors
    /// If the files cannot be read back or written. A run that trained well then becomes `unsaved`, and its
    /// summary says so if the disk accepts that much.
    pub fn finish(mut self, status: Status, reason: Option<String>) -> Result<RunFolder> {
        // Also for a run that ends with an error: a resume may need the checkpoint that is being written.
        let waited = self.wait_for_write();
        let trained = matches!(status, Status::Ok | Status::Interrupted | Status::Unsaved);
        let synced = waited.and_then(|()| self.files.sync());
        let (status, reason) = match &synced {
            Err(e) if trained => (Status::Unsaved, Some(e.message().to_owned())),
            _ => (status, reason),
        };
        if let Some(reason) = &reason {
            // The summary and the exit of the process say the same, so a failed log entry does not matter.
            let _ = self.folder.log(&format!("{}: {reason}", status.as_str()));
        }
        let path = self.folder.path().display().to_string();
        let closed = self.close(status, reason);
        if closed.is_err() {
            // The returned error matters more than an error of this last attempt.
            let left = if trained { Status::Unsaved } else { status };
            let _ = overwrite_running(self.folder.path(), left);
        }
        match synced.and(closed) {
            Ok(()) => {
                self.progress.finish(&self.summary, self.folder.path());
                Ok(self.folder)
            }
            Err(e) if trained => Err(Error::new(
                ErrorKind::Unsaved,
                format!(
                    "the results of the run are not complete: {e}. {}, then `xrun resume {path}`",
                    e.advice()
                ),
            )),
            Err(e) => Err(e),
        }
    }

    /// Reads the files back and writes the summary.
    fn close(&mut self, status: Status, reason: Option<String>) -> Result<()> {
        if status == Status::Ok {
            // A run without checkpoints has trained all its dropped rows again by now.
            if let Err(e) = self.files.saved(self.step) {
                self.log(&format!("warning: {e}"))?;
            }
        }
        let metrics: Vec<MetricsRow> = rows::read(&self.folder.path().join(METRICS))?;
        let timing: Vec<TimingRow> = rows::read(&self.folder.path().join(TIMING))?;
        self.summary.status = status;
        self.summary.reason = reason;
        self.summary.measure(&metrics, &timing, self.plan.intervals.metrics.warmup);
        self.summary.memory.peak_rss_bytes = memory::peak_rss_bytes();
        self.summary.rank_busy_pct = self.clock.busy_pct();
        if let Some(gauges) = &self.clock.gauges {
            let gpu = gauges.summary().merge_earlier(self.summary.gpu.as_ref());
            if let Some(reason) = gpu.contended_because.as_ref().filter(|_| gpu.contended == Some(true)) {
                let note = format!("contended: {reason}; its times do not show this GPU alone at full speed");
                if !self.summary.notes.contains(&note) {
                    self.summary.notes.push(note);
                }
            }
            self.summary.gpu = Some(gpu);
        }
        // A resumed run may have settled since.
        self.summary.notes.retain(|note| !note.starts_with(UNSETTLED));
        if let Some(unsettled) = self.summary.unsettled() {
            self.log(&format!("warning: {unsettled}"))?;
            self.summary.notes.push(unsettled);
        }
        if let Some(worse) = self.summary.worse_than_guessing() {
            self.log(&format!("warning: {worse}"))?;
        }
        self.folder.write_summary(&self.summary)
    }
}
