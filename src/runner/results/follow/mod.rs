//! Follows the files of a live run: returns what was appended or replaced since the last poll.
//!
//! ```text
//! metrics.csv, timing.csv, log, ledger.jsonl   appended to ─▶ AppendedLines ─▶ RowFollower: typed rows
//! summary.json, experiment.json, …             replaced    ─▶ ReplacedFile: the new content
//! ```
//!
//! A follower only reads files and never talks to a process. Each poll opens the file anew, because a network
//! file system guarantees a fresh view of another machine's writes only on open. Polling an unchanged file
//! costs an open, its size and the bytes of its last row.

mod lines;
mod replaced;
mod rows;

pub use lines::{AppendedLines, MAX_READ, NewLines};
pub use replaced::ReplacedFile;
pub use rows::{NewRows, RowFollower};

use super::folder::parse_summary;
use super::names::{METRICS, SUMMARY, TIMING};
use super::rows::{MetricsRow, TimingRow};
use super::summary::Summary;
use crate::error::Result;
use std::path::Path;

/// Follows the rows and the summary of a run.
#[derive(Debug)]
pub struct RunFollower {
    metrics: RowFollower<MetricsRow>,
    timing: RowFollower<TimingRow>,
    summary: ReplacedFile,
}

/// What a run has written since the last poll.
#[derive(Debug)]
pub struct RunNews {
    /// New rows of `metrics.csv`.
    pub metrics: NewRows<MetricsRow>,
    /// New rows of `timing.csv`.
    pub timing: NewRows<TimingRow>,
    /// The summary, if it was replaced.
    pub summary: Option<Summary>,
}

impl RunNews {
    /// Returns true if there is anything new.
    pub fn is_any(&self) -> bool {
        self.metrics.is_any() || self.timing.is_any() || self.summary.is_some()
    }

    /// Returns true if unread rows are left, so the next poll need not wait.
    pub fn has_more(&self) -> bool {
        self.metrics.has_more || self.timing.has_more
    }
}

impl RunFollower {
    /// Creates a follower for the run in a folder, which may still be empty.
    pub fn new(run: &Path) -> Self {
        Self {
            metrics: RowFollower::new(&run.join(METRICS)),
            timing: RowFollower::new(&run.join(TIMING)),
            summary: ReplacedFile::new(&run.join(SUMMARY)),
        }
    }

    /// Returns what is new: at most [`MAX_READ`] bytes of each row file, and the summary if it was replaced.
    ///
    /// # Errors
    /// If a file is a link, cannot be read, or has content that no run writes. The next poll then starts over
    /// with all files, so that nothing is lost from those that could be read.
    pub fn poll(&mut self) -> Result<RunNews> {
        let news = self.poll_all();
        if news.is_err() {
            self.summary.forget();
            self.metrics.restart();
            self.timing.restart();
        }
        news
    }

    fn poll_all(&mut self) -> Result<RunNews> {
        // The summary is read first, so that the rows which it counts exist by the time rows are read.
        let summary = match self.summary.poll()? {
            Some(bytes) => Some(parse_summary(self.summary.path(), &bytes)?),
            None => None,
        };
        Ok(RunNews { metrics: self.metrics.poll()?, timing: self.timing.poll()?, summary })
    }
}

#[cfg(test)]
mod tests;
