//! What runs need before they begin: time and disk, for one run and for several.

use super::run_time::seconds_in_words;
use super::{Disk, RunTime, Saving};
use crate::format::{about_bytes, plural, thousands};
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::Plan;
use serde::Serialize;

/// Time and disk of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunNeeds {
    /// The time; `None` if the machine's speed is unknown.
    pub time: Option<RunTime>,
    /// Whether checkpoints are written in the background.
    pub saving: Saving,
    /// The files.
    pub disk: Disk,
}

impl RunNeeds {
    /// Predicts what a run on a machine needs. `plots` is true if the run draws plots.
    pub fn new(plan: &Plan, programs: &Programs, machine: &Machine, plots: bool) -> Self {
        let saving = Saving::new(plan, programs, machine);
        let time = RunTime::new(plan, programs, machine, &saving, plots);
        let seconds = time.as_ref().map(|time| time.total_s);
        Self { disk: Disk::new(plan, programs, seconds, plots), saving, time }
    }

    /// Describes the needs as in `time: about 2m09s; disk: about 23 MiB`, or only the disk if the time is
    /// unknown.
    pub fn in_words(&self) -> String {
        let disk = format!("disk: about {}", about_bytes(self.disk.peak_bytes));
        match &self.time {
            Some(time) => format!("time: {}; {disk}", time.in_words()),
            None => disk,
        }
    }
}

/// Time and disk of several runs, one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TotalNeeds {
    runs: usize,
    /// Seconds of the runs with a known time: expected, and at the fastest and the slowest pace.
    seconds: (f64, f64, f64),
    unknown: usize,
    bytes: u64,
    /// The most that any run needs beyond what it leaves behind.
    passing_bytes: u64,
}

impl TotalNeeds {
    /// Adds `times` runs with the same needs.
    pub fn add(&mut self, needs: &RunNeeds, times: usize) {
        self.runs += times;
        match &needs.time {
            Some(time) => {
                let n = times as f64;
                self.seconds.0 += n * time.total_s;
                self.seconds.1 += n * time.range_s.0;
                self.seconds.2 += n * time.range_s.1;
            }
            None => self.unknown += times,
        }
        self.bytes = self.bytes.saturating_add(needs.disk.total_bytes.saturating_mul(times as u64));
        self.passing_bytes = self.passing_bytes.max(needs.disk.peak_bytes - needs.disk.total_bytes);
    }

    /// Describes the needs as in `20 runs: about 6m12s; disk: about 3.1 MiB`; `None` if there are no runs.
    pub fn in_words(&self) -> Option<String> {
        if self.runs == 0 {
            return None;
        }
        let (seconds, low, high) = self.seconds;
        let known = seconds_in_words(seconds, (low, high));
        let time = match self.unknown {
            0 => known,
            unknown if unknown == self.runs => "for an unknown time".to_owned(),
            unknown => {
                format!("{known} and the unknown time of {}", thousands(unknown))
            }
        };
        let bytes = about_bytes(self.bytes.saturating_add(self.passing_bytes));
        Some(format!("{} run{}: {time}; disk: about {bytes}", thousands(self.runs), plural(self.runs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::Basis;

    fn needs(total_s: Option<f64>, spread: (f64, f64)) -> RunNeeds {
        let time = total_s.map(|total_s| RunTime {
            step_s: 0.1,
            training_s: total_s,
            evaluations: 0,
            evaluating_s: 0.0,
            checkpoints: 0,
            saving_s: None,
            task_evaluations: 0,
            scoring_s: None,
            sampling_s: 0.0,
            around_s: 0.0,
            total_s,
            range_s: (total_s * spread.0, total_s * spread.1),
            basis: Basis::MeasuredCpu,
        });
        let disk = Disk {
            checkpoint_bytes: 1 << 20,
            checkpoints: 1,
            weights_only: 0,
            weights_bytes: 0,
            text_bytes: 0,
            picture_bytes: 0,
            total_bytes: 1 << 20,
            peak_bytes: 2 << 20,
        };
        let saving =
            Saving { beside_training: false, copy_bytes: 0, place: "host memory", reason: String::new() };
        RunNeeds { time, saving, disk }
    }

    #[test]
    fn runs_add_up_and_one_checkpoint_at_a_time_is_replaced() {
        let mut total = TotalNeeds::default();
        assert_eq!(total.in_words(), None);
        total.add(&needs(Some(60.0), (1.0, 1.0)), 3);
        assert_eq!(total.in_words().unwrap(), "3 runs: about 3m00s; disk: about 4 MiB");
        total.add(&needs(Some(60.0), (0.5, 1.5)), 1);
        assert_eq!(total.in_words().unwrap(), "4 runs: about 4m00s (3m30s to 4m30s); disk: about 5 MiB");
    }

    #[test]
    fn a_run_alone_says_its_time_and_its_disk() {
        let words = needs(Some(60.0), (0.5, 1.5)).in_words();
        assert_eq!(words, "time: about 1m00s (30 s to 1m30s); disk: about 2 MiB");
        assert_eq!(needs(None, (1.0, 1.0)).in_words(), "disk: about 2 MiB");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let mut total = TotalNeeds::default();
        total.add(&needs(None, (1.0, 1.0)), 2);
        let words = total.in_words().unwrap();
        assert_eq!(words, "2 runs: for an unknown time; disk: about 3 MiB");
        total.add(&needs(Some(5.0), (1.0, 1.0)), 1);
        assert!(total.in_words().unwrap().contains("about 5.0 s and the unknown time of 2"));
    }
}
