//! Whether a process still works on a folder.

use crate::results::find;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time without anything new after which the lock of a folder is looked at.
const QUIET: Duration = Duration::from_secs(3);

/// Time between two looks at a lock that is held.
const AGAIN: Duration = Duration::from_secs(5);

/// Knows whether a process holds a folder. Looking at a lock takes it for an instant, in which a process that wants
/// it would be refused; so it is looked at seldom, and never while files grow.
#[derive(Debug)]
pub struct Liveness {
    folder: PathBuf,
    /// When something new was last seen.
    written: Instant,
    /// What the last look at the lock found, and when that was.
    found: Option<(bool, Instant)>,
}

impl Liveness {
    /// Creates it for a folder.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), written: Instant::now(), found: None }
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
            let held = find::is_running(&self.folder).unwrap_or(true);
            self.found = Some((held, Instant::now()));
        }
        self.found.is_some_and(|(held, _)| held)
    }
}
