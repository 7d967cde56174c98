//! How replays are run.

use crate::ranks::Stop;
use std::path::Path;
use std::time::Duration;

/// How replays are run.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The folder of results in which the replayed runs are stored.
    pub results: &'a Path,
    /// The folder of results that new runs are written to.
    pub into: &'a Path,
    /// True if commands that a comparison recorded may be run with `sh -c`.
    pub runs_commands: bool,
    /// Time limit of a run.
    pub timeout: Option<Duration>,
    /// Signals to this process.
    pub stop: &'a Stop,
}
