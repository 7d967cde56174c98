//! Whether a process still works on a folder, and whether its files can be read.

use crate::error::Result;
use crate::results::{find, ledger};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time without anything new after which the lock of a folder is looked at.
const QUIET: Duration = Duration::from_secs(3);

/// Time between two looks at a lock that is held.
const AGAIN: Duration = Duration::from_secs(5);

/// Knows whether a process holds a folder. Looking at a lock takes it for an instant, in which a process that
/// wants it would be refused; so it is looked at seldom, and never while files grow.
#[derive(Debug)]
pub struct Liveness {
    folder: PathBuf,
    /// Tells whether a process holds the folder.
    look: fn(&Path) -> Result<bool>,
    /// When something new was last seen.
    written: Instant,
    /// What the last look at the lock found, and when that was.
    found: Option<(bool, Instant)>,
}

impl Liveness {
    /// Creates it for a folder.
    pub fn new(folder: &Path) -> Self {
        Self::with(folder, find::is_running)
    }

    fn with(folder: &Path, look: fn(&Path) -> Result<bool>) -> Self {
        Self { folder: folder.to_owned(), look, written: Instant::now(), found: None }
    }

    /// Tells that something new was written.
    pub fn wrote(&mut self) {
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
            Some((true, at)) => self.quiet() >= QUIET && at.elapsed() >= AGAIN.min(self.quiet()),
        };
        if is_due {
            // A lock that cannot be read says nothing: the process counts as there.
            let held = (self.look)(&self.folder).unwrap_or(true);
            self.found = Some((held, Instant::now()));
        }
        self.found.is_some_and(|(held, _)| held)
    }
}

/// How it stands with the files of a sweep or a comparison since the last look.
#[derive(Debug)]
pub struct Condition {
    liveness: Liveness,
    /// Why they could not be read.
    pub trouble: Option<String>,
    /// True while a process works on them, as far as is known.
    pub is_held: bool,
}

impl Condition {
    /// Creates it for the folder that a process holds.
    pub fn new(folder: &Path) -> Self {
        Self { liveness: Liveness::new(folder), trouble: None, is_held: true }
    }

    /// Creates it for the ledger of a results folder.
    pub fn of_ledger(results: &Path) -> Self {
        Self { liveness: Liveness::with(results, ledger::is_written), trouble: None, is_held: true }
    }

    /// Takes whether anything new was read, or why nothing was; returns true if there is something new to
    /// show.
    pub fn has_read(&mut self, read: Result<bool>) -> bool {
        let trouble = read.as_ref().err().map(|e| e.message().to_owned());
        let is_new = read.unwrap_or(false) || trouble != self.trouble;
        self.trouble = trouble;
        is_new
    }

    /// Looks whether a process works on what is not finished; returns true if that changed, or `is_new`.
    pub fn look(&mut self, is_new: bool, is_finished: bool) -> bool {
        if is_new {
            self.liveness.wrote();
        }
        let is_held = !is_finished && self.liveness.is_held();
        let changed = std::mem::replace(&mut self.is_held, is_held) != is_held;
        is_new || changed
    }
}
