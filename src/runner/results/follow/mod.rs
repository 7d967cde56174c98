//! Follows the files of a run while it goes on: what was appended or replaced since the last look.
//!
//! ```text
//! metrics.csv, timing.csv, log, ledger.jsonl   appended to ─▶ AppendedLines ─▶ RowFollower: typed rows
//! summary.json, experiment.json, …             replaced    ─▶ ReplacedFile: the new content
//! ```
//!
//! A follower reads files alone, never a process. It opens a file anew at each look: network file systems
//! promise to show what another machine has written to those who open it, and to no others. A look at a file
//! that did not change costs an open, its size and the bytes of its last row.

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

/// Follows rows and summary of a run.
#[derive(Debug)]
pub struct RunFollower {
    metrics: RowFollower<MetricsRow>,
    timing: RowFollower<TimingRow>,
    summary: ReplacedFile,
}

/// What a run has written since the last look.
#[derive(Debug)]
pub struct RunNews {
    /// Rows of `metrics.csv`.
    pub metrics: NewRows<MetricsRow>,
    /// Rows of `timing.csv`.
    pub timing: NewRows<TimingRow>,
    /// The summary, where it was replaced.
    pub summary: Option<Summary>,
}

impl RunNews {
    /// Returns true if there is anything new.
    pub fn is_any(&self) -> bool {
        self.metrics.is_any() || self.timing.is_any() || self.summary.is_some()
    }

    /// Returns true if rows are left to be read by the next look, which need not wait.
    pub fn has_more(&self) -> bool {
        self.metrics.has_more || self.timing.has_more
    }
}

impl RunFollower {
    /// Creates a follower of the run in a folder, which need not have any file yet.
    pub fn new(run: &Path) -> Self {
        Self {
            metrics: RowFollower::new(&run.join(METRICS)),
            timing: RowFollower::new(&run.join(TIMING)),
            summary: ReplacedFile::new(&run.join(SUMMARY)),
        }
    }

    /// Returns what is new: at most [`MAX_READ`] bytes of each row file, and the summary where it was
    /// replaced.
    ///
    /// # Errors
    /// When a file is a link or cannot be read, or its content is not what a run writes. The next look begins
    /// with all files again, so that nothing is lost of those that were read.
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
        // The summary first: rows that it counts are then there.
        let summary = match self.summary.poll()? {
            Some(bytes) => Some(parse_summary(self.summary.path(), &bytes)?),
            None => None,
        };
        Ok(RunNews { metrics: self.metrics.poll()?, timing: self.timing.poll()?, summary })
    }
}

#[cfg(test)]
mod tests;
