//! Tells whether a process still works on a folder, and whether its files can be read.

use crate::error::Result;
use crate::results::folder::is_held;
use crate::results::ledger;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long nothing new must appear before the folder's lock is checked.
const QUIET_BEFORE_CHECK: Duration = Duration::from_secs(3);

/// Time between two checks of a lock that is held.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Tells whether a process holds a folder. Checking a lock takes it for an instant, and a process that wants
/// it then would be refused. So it is checked rarely, and never while files grow.
#[derive(Debug)]
pub struct Liveness {
    folder: PathBuf,
    /// Checks whether a process holds the folder.
    check_lock: fn(&Path) -> Result<bool>,
    /// When something new was last seen.
    written: Instant,
    /// What the last check of the lock found, and when.
    found: Option<(bool, Instant)>,
}

impl Liveness {
    /// Creates the liveness of a folder.
    pub fn new(folder: &Path) -> Self {
        Self::with(folder, is_held)
    }

    fn with(folder: &Path, look: fn(&Path) -> Result<bool>) -> Self {
        Self { folder: folder.to_owned(), check_lock: look, written: Instant::now(), found: None }
    }

    /// Records that something new was written.
    pub fn record_write(&mut self) {
        self.written = Instant::now();
        if self.found.is_some() {
            self.found = Some((true, self.written));
        }
    }

    /// Returns the time since something new was last seen.
    pub fn quiet(&self) -> Duration {
        self.written.elapsed()
    }

    /// Returns true if a process holds the folder, as far as is known.
    pub fn is_held(&mut self) -> bool {
        let is_due = match self.found {
            None => true,
            Some((false, _)) => false,
            Some((true, at)) => {
                self.quiet() >= QUIET_BEFORE_CHECK && at.elapsed() >= RECHECK_INTERVAL.min(self.quiet())
            }
        };
        if is_due {
            // If the lock cannot be checked, assume that the process is running.
            let held = (self.check_lock)(&self.folder).unwrap_or(true);
            self.found = Some((held, Instant::now()));
        }
        self.found.is_some_and(|(held, _)| held)
    }
}

/// The state of the files of a sweep or a comparison at the last poll.
#[derive(Debug)]
pub struct Condition {
    liveness: Liveness,
    /// Why the files could not be read.
    pub trouble: Option<String>,
    /// True while a process works on them, as far as is known.
    pub is_held: bool,
}

impl Condition {
    /// Creates the condition of a folder that one process holds.
    pub fn new(folder: &Path) -> Self {
        Self { liveness: Liveness::new(folder), trouble: None, is_held: true }
    }

    /// Creates the condition of the ledger in a results folder.
    pub fn for_ledger(results: &Path) -> Self {
        Self { liveness: Liveness::with(results, ledger::is_written), trouble: None, is_held: true }
    }

    /// Takes the result of a read: whether anything new was read, or why it failed. Returns true if there is
    /// something new to show.
    pub fn record_read(&mut self, read: Result<bool>) -> bool {
        let trouble = read.as_ref().err().map(|e| e.message().to_owned());
        let is_new = read.unwrap_or(false) || trouble != self.trouble;
        self.trouble = trouble;
        is_new
    }

    /// Checks whether a process works on an unfinished sweep or comparison. Returns true if `is_new`, or if
    /// that has changed.
    pub fn look(&mut self, is_new: bool, is_finished: bool) -> bool {
        if is_new {
            self.liveness.record_write();
        }
        let is_held = !is_finished && self.liveness.is_held();
        let changed = std::mem::replace(&mut self.is_held, is_held) != is_held;
        is_new || changed
    }
}
