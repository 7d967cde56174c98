//! What is known about something stored before it is replayed.

use super::stored_run::StoredRun;
use crate::format::{plural, wall_time};

/// What is known about something stored before it is replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Its name, contents, time and device, in a line.
    pub says: String,
    /// Number of runs.
    pub runs: usize,
    /// Wall time of those runs that are stored here, in seconds.
    pub wall_s: f64,
}

impl Recording {
    /// Describes these runs: `parts` says what they are, and `device` where they ran.
    pub(super) fn new<'a>(
        id: &str,
        parts: &str,
        count: usize,
        runs: impl Iterator<Item = &'a StoredRun>,
        device: &str,
    ) -> Self {
        let wall_s = runs.filter_map(|run| run.summary.wall_s).fold(0.0, |sum, wall_s| sum + wall_s);
        let took = if wall_s > 0.0 { format!(" in {}", wall_time(wall_s)) } else { String::new() };
        Self { says: format!("{id}: {parts}, recorded{took} on {device}"), runs: count, wall_s }
    }

    /// Describes the number of runs in several recordings, and the time they took.
    pub fn total(recordings: &[Self]) -> String {
        let runs = recordings.iter().map(|recording| recording.runs).sum();
        let wall_s: f64 = recordings.iter().map(|recording| recording.wall_s).sum();
        format!("{runs} run{} to train again, which took {} when recorded", plural(runs), wall_time(wall_s))
    }
}
