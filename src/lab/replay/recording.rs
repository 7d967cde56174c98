//! What is known of something stored before it runs again.

use super::stored_run::StoredRun;
use crate::format::{plural, wall_time};

/// What is known of something stored before it runs again.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Its name, what it consists of, its time and its device, in a line.
    pub says: String,
    /// Number of runs.
    pub runs: usize,
    /// Wall time of those of its runs that are here, in seconds.
    pub wall_s: f64,
}

impl Recording {
    /// Returns the recording of these runs: `parts` says what they are, and `device` what they ran on.
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

    /// Returns how many runs several recordings have, and the time that they took.
    pub fn total(recordings: &[Self]) -> String {
        let runs = recordings.iter().map(|recording| recording.runs).sum();
        let wall_s: f64 = recordings.iter().map(|recording| recording.wall_s).sum();
        format!("{runs} run{} to train again, which took {} when recorded", plural(runs), wall_time(wall_s))
    }
}
