//! The settings of replays.

use crate::ranks::Stop;
use std::path::Path;
use std::time::Duration;

/// The settings of replays.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The results folder that the replayed runs are stored in.
    pub results: &'a Path,
    /// The results folder that new runs are written to.
    pub into: &'a Path,
    /// True if the commands that a comparison recorded may be run with `sh -c`.
    pub runs_commands: bool,
    /// Time limit of each run.
    pub timeout: Option<Duration>,
    /// Signals to this process.
    pub stop: &'a Stop,
}
