//! `comparison.json`: a baseline and a candidate, measured in alternating trials, and the result.
//!
//! A comparison lies in `RESULTS/comparisons/NAME/<UTC>-<hash8>/` (kept: in `RESULTS/kept/comparisons/…`,
//! beside the kept runs that it names). It holds every block of every trial, so that the statistics can be
//! repeated from the file. The file calls the trials `turns`, the baseline `before` and the candidate
//! `after`.

use super::atomic::{self, json};
pub use super::names::{BINARIES, COMPARISON, COMPARISONS};
use crate::error::{Error, IoContext, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A baseline and a candidate, measured in alternating trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name: the recipe's unless the user gave another.
    pub name: String,
    /// Name of its folder.
    pub id: String,
    /// Reason why the change should matter, stored before the first trial.
    pub hypothesis: Option<String>,
    /// The prediction as it was written, such as `tok_s +30..+60%`.
    pub predicts: Option<String>,
    /// True if the prediction held. Blank without one, and where it cannot be judged: times that are not
    /// comparable, a column that an arm lacks, or an inconclusive verdict with an interval that crosses an
    /// end of the range.
    pub prediction_held: Option<bool>,
    /// The arm that is measured against.
    #[serde(rename = "before")]
    pub baseline: Arm,
    /// The changed arm.
    #[serde(rename = "after")]
    pub candidate: Arm,
    /// Training and execution keys that differ between the arms, as `key: baseline → candidate`.
    pub changes: Vec<String>,
    /// True if all trials have run; false in the file that is written before the first one, and if a trial
    /// failed.
    pub finished: bool,
    /// What the figures of the arms are of those of their trials.
    #[serde(default)]
    pub average: Average,
    /// The meaning of `train_loss` among the figures of the arms.
    #[serde(default)]
    pub train_loss: TrainLoss,
    /// Number of trials that were planned of both arms together; blank once it has finished, and in
    /// comparisons of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials_planned: Option<usize>,
    /// All trials, in the order in which they ran.
    #[serde(rename = "turns")]
    pub trials: Vec<Trial>,
    /// Tokens per second, candidate over baseline; blank if an arm has no steady state.
    pub ratio: Option<RatioInterval>,
    /// Relative differences smaller than this do not count.
    pub min_effect: f64,
    /// The conclusion from the interval.
    pub verdict: CompareVerdict,
    /// The comparison of the loss curves.
    pub gate: LossGate,
    /// Reasons why times are not comparable: another process on the GPU, throttling, clocks that moved, a run
    /// that never settled. Any of these makes the verdict [`CompareVerdict::Inconclusive`].
    pub contended: Vec<String>,
    /// Figures that the arms measured on different things, by name: they have no ratio, and predictions of
    /// them are not judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomparable: Vec<String>,
    /// Remarks that do not change the verdict, such as load of the CPU by other processes.
    pub notes: Vec<String>,
    /// The rule for the interval and the verdict, in words.
    pub rule: String,
}

/// What a figure of an arm is of those of its trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// Their median: comparisons of earlier versions, which do not say so.
    #[default]
    Median,
    /// Their mean; geometric for `tok_s` and `step_ms`, as in the ratio.
    Mean,
}

/// The training loss that a comparison states of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainLoss {
    /// That of the last batch: comparisons of earlier versions, which do not say so.
    #[default]
    LastBatch,
    /// The mean over the last steps, [`super::losses::SmoothedLoss`].
    Smoothed,
}

/// One arm of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Label in tables.
    pub label: String,
    /// The recipe with its changed keys, or the command.
    pub command: String,
    /// Hash of the resolved recipe; blank for an external command.
    pub recipe_hash: Option<String>,
    /// Commit of the program; blank for an external command.
    pub commit: Option<String>,
    /// BLAKE3 of the binary; blank for an external command.
    pub binary: Option<String>,
    /// The device class, such as `NVIDIA H200` or `cpu avx512`.
    pub device: String,
    /// Figures over the trials ([`Comparison::average`]), by name of the compared metric, units in the names.
    pub measured: std::collections::BTreeMap<String, f64>,
}

/// A run of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// True if it is of the changed arm.
    #[serde(rename = "after")]
    pub is_candidate: bool,
    /// `RECIPE/RUN` of the stored run; blank for an external command, whose rows are in `turn-N.jsonl` beside
    /// this file.
    pub run: Option<String>,
    /// `ok`, or another status and the reason.
    pub status: String,
    /// Median tokens per second of consecutive blocks of steps in the steady state.
    pub blocks: Vec<f64>,
    /// BLAKE3 of `metrics.csv` (or of the losses of an external command): equal hashes are equal bits.
    pub metrics_hash: Option<String>,
    /// The training loss of the last batch.
    pub final_loss: Option<f64>,
}

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioInterval {
    /// The estimate.
    pub estimate: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The conclusion from the interval of the ratio and the smallest difference that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareVerdict {
    /// The whole interval is above 1, and the estimate above 1 + the smallest difference.
    Faster,
    /// The whole interval is below 1, and the estimate below 1 - the smallest difference.
    Slower,
    /// The whole interval is inside 1 ± the smallest difference.
    NoDifference,
    /// None of these, or times are not comparable, an arm has a single run, or a trial failed.
    Inconclusive,
}

impl CompareVerdict {
    /// Returns the verdict in words.
    pub fn as_str(self) -> &'static str {
        match self {
            CompareVerdict::Faster => "faster",
            CompareVerdict::Slower => "slower",
            CompareVerdict::NoDifference => "no difference",
            CompareVerdict::Inconclusive => "inconclusive",
        }
    }
}

/// The comparison of the loss curves of both arms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossGate {
    /// The largest allowed difference in training loss at any step, in nats per token; blank requires equal
    /// bits.
    pub tolerance: Option<f64>,
    /// True if it held; blank if it could not be judged, as where an arm has no losses.
    pub holds: Option<bool>,
    /// The finding in words: `the same bits`, or where and by how much the curves differ.
    pub found: String,
}

impl Comparison {
    /// Writes `comparison.json` in the comparison's folder; a reader sees the old file or the new one.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        atomic::write(&folder.join(COMPARISON), &json(self)?)
    }

    /// Reads `comparison.json` from a comparison's folder.
    ///
    /// # Errors
    /// When it cannot be read, or is not a comparison.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(COMPARISON);
        let text = std::fs::read(&path).at("read", &path)?;
        serde_json::from_slice(&text)
            .map_err(|e| Error::failed(format!("{}:{}: not a comparison: {e}", path.display(), e.line())))
    }

    /// Returns true if an arm has a single trial, which does not show how runs of this arm differ.
    pub fn has_single_run(&self) -> bool {
        [false, true]
            .iter()
            .any(|arm| self.trials.iter().filter(|trial| trial.is_candidate == *arm).count() == 1)
    }

    /// Returns the folders `RECIPE/RUN` of its runs, each once.
    pub fn runs(&self) -> Vec<&str> {
        let mut runs: Vec<&str> = Vec::new();
        for run in self.trials.iter().filter_map(|trial| trial.run.as_deref()) {
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        runs
    }
}
