//! A line of the ledger.

use crate::results::numbers::{LedgerFigures, NamedNumbers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One line of the ledger: the start or the end of an attempt at a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Key of the cell: a hash over the settings that change what is trained or measured, the corpus, the
    /// build and the device class.
    pub key: String,
    /// Number of the attempt at this cell, from 1.
    pub attempt: u64,
    pub status: CellStatus,
    /// Why the status is not `ok`.
    pub reason: Option<String>,
    /// The recipe's name.
    pub recipe: String,
    /// TOML values that the cell sets on top of the recipe, by key.
    pub settings: BTreeMap<String, String>,
    /// TOML values of the recipe's measuring keys, by key. Empty in lines from earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measuring: BTreeMap<String, String>,
    /// Hash of the resolved recipe.
    pub recipe_hash: String,
    /// Hash of the corpus.
    pub corpus_hash: Option<String>,
    /// Hashes of the further held-out sets that the run is measured on, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held_out: BTreeMap<String, String>,
    /// Version, commit and binary of xrun.
    pub build: String,
    /// The device class, such as `NVIDIA H200` or `cpu avx512`.
    pub device: String,
    /// `RECIPE/RUN` of the run, if one started.
    pub run: Option<String>,
    /// BLAKE3 of the run's `metrics.csv` when the run ended; `None` before, and in lines from earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<String>,
    /// The comparison that ran the cell; `None` for a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<String>,
    /// When the line was written, UTC.
    pub at: String,
    /// Figures of the run; `None` if they were not measured.
    pub measured: Measured,
}

impl Attempt {
    /// Returns true if the cell was planned for a device. A skipped cell has none, and its build is only the
    /// program that wrote the line.
    pub fn has_device(&self) -> bool {
        !self.device.is_empty()
    }

    /// Returns true if both are attempts at the same row of the same sweep. The key alone does not tell,
    /// because cells share it if they differ only in settings that change nothing that is measured.
    pub fn is_same_cell(&self, other: &Self) -> bool {
        self.key == other.key && self.settings == other.settings
    }
}

/// Figures of a cell's run, under the keys in [`metrics::ledger_metrics`](crate::metrics::ledger_metrics).
/// Missing figures are not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Figures of the run's summary.
    #[serde(flatten)]
    pub figures: NamedNumbers<LedgerFigures>,
    /// True if another process used the device, or if the device throttled.
    pub contended: Option<bool>,
}

impl Measured {
    /// Returns the figure that the ledger stores under `key`.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.figures.get(key)
    }
}

words! {
    /// The status of an attempt.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
    #[serde(rename_all = "snake_case")]
    #[value(rename_all = "snake_case")]
    pub enum CellStatus {
        /// The attempt has started and not ended.
        Running = "running",
        /// Every step was trained.
        Ok = "ok",
        /// Trained to a rung of successive halving, with its state saved.
        Halted = "halted",
        /// Trained to a rung of successive halving, and not chosen to continue.
        Dropped = "dropped",
        /// An allocation failed during the run.
        Oom = "oom",
        /// The run was killed because the memory of the host ran out.
        HostOom = "host_oom",
        /// The plan does not fit in memory; nothing was started.
        PredictedOom = "predicted_oom",
        /// The loss or the gradient became NaN or infinite.
        Diverged = "diverged",
        /// The run did no step within the sweep's time limit for a step.
        Hang = "hang",
        /// The run took longer than the sweep's time limit.
        Timeout = "timeout",
        /// A signal ended the run, or the sweep did.
        Killed = "killed",
        /// The time of the batch system's task ended, and the run saved its state.
        TimeLimit = "time_limit",
        /// The batch system took the run's node for another job, or somebody ended the task.
        Preempted = "preempted",
        /// The run's node failed.
        NodeFailed = "node_failed",
        /// The run trained, but its last state or its results could not be saved.
        Unsaved = "unsaved",
        /// Another error ended the run.
        Failed = "failed",
        /// The cell was not run: it is excluded, or its recipe is invalid.
        Skipped = "skipped",
    }
}

impl CellStatus {
    /// Returns true if a cell with this status is done: the sweep that recorded it does not run the cell
    /// again unless told to.
    pub fn is_final(self) -> bool {
        let is_begun = matches!(self, CellStatus::Running | CellStatus::Halted);
        !is_begun && !self.was_interrupted() && self != CellStatus::Unsaved
    }

    /// Returns true if something outside ended the run before its last step. It would end well if it went on.
    pub fn was_interrupted(self) -> bool {
        use CellStatus::{Killed, NodeFailed, Preempted, TimeLimit};
        matches!(self, Killed | TimeLimit | Preempted | NodeFailed)
    }

    /// Returns true if the run is a result: it completed, was dropped at a rung, or would end the same way
    /// again.
    pub fn is_result(self) -> bool {
        matches!(self, CellStatus::Ok | CellStatus::Diverged | CellStatus::Dropped)
    }

    /// Returns true if a cell with this status was trained to the end or cannot be. A sweep without rungs
    /// does not run it again unless told to.
    pub fn ends_a_whole_run(self) -> bool {
        self.is_final() && self != CellStatus::Dropped
    }
}

impl fmt::Display for CellStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns the attempt if its key can begin a file name, as every hash can.
pub(super) fn with_key(attempt: Attempt) -> std::result::Result<Attempt, String> {
    let is_plain = !attempt.key.is_empty() && attempt.key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { Ok(attempt) } else { Err(format!("its key {:?} is not a hash", attempt.key)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_keys_their_order_and_its_digits() {
        let line = concat!(
            r#"{"steps":40,"train_loss":2.3125,"loss":2.3078,"val_loss":2.2611,"tok_s":45227.0,"step_ms":45.125,"mfu_pct":null,"#,
            r#""planned_bytes":43620761,"allocated_bytes":43620761,"val_batches":2,"val_batches_of":40,"contended":false}"#
        );
        let measured: Measured = serde_json::from_str(line).unwrap();
        assert_eq!((measured.get("tok_s"), measured.get("mfu_pct")), (Some(45227.0), None));
        assert_eq!(serde_json::to_string(&measured).unwrap(), line);
        assert_eq!(serde_json::from_str::<Measured>("{}").unwrap(), Measured::default());
        assert!(
            serde_json::from_str::<Measured>(r#"{"loss":"low"}"#).unwrap_err().to_string().contains("loss")
        );
    }

    #[test]
    fn a_status_reads_as_it_is_written() {
        for status in CellStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            let value = clap::ValueEnum::to_possible_value(status).unwrap();
            assert_eq!(value.get_name(), status.as_str());
        }
    }
}
