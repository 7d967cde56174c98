//! `comparison.json`: a before and an after, measured in turns, and what came of it.
//!
//! A comparison lies in `RESULTS/comparisons/NAME/<UTC>-<hash8>/` (kept: in `RESULTS/kept/comparisons/…`, beside the kept
//! runs that it names). It holds every block of every turn, so that the statistics can be done again from the file.

use super::atomic;
use super::folder::json;
use crate::error::{Error, IoContext, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The folder of comparisons in a results folder; no recipe may be called so.
pub const COMPARISONS: &str = "comparisons";

/// The folder of binaries that were compared, each under its BLAKE3, in a results folder; no recipe may be called so.
pub const BINARIES: &str = "binaries";

/// The file of a comparison in its folder.
pub const COMPARISON: &str = "comparison.json";

/// A before and an after, measured in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What it is called: the recipe's name unless the user gave another.
    pub name: String,
    /// Its folder's name.
    pub id: String,
    /// Why the change should matter, written down before the first turn.
    pub hypothesis: Option<String>,
    /// The prediction as it was written, such as `tok_s +30..+60%`.
    pub predicts: Option<String>,
    /// Whether the prediction held; blank without one, and where that cannot be said: times that are not comparable, a
    /// column that a side lacks, or an inconclusive verdict with an interval that reaches over an end of the range.
    pub prediction_held: Option<bool>,
    /// The side that is measured against.
    pub before: Side,
    /// The changed side.
    pub after: Side,
    /// Training and execution keys that differ between the sides, as `key: before → after`.
    pub changes: Vec<String>,
    /// Whether all turns have run; false in the file that is written before the first one, and where a turn failed.
    pub finished: bool,
    /// All turns, in the order in which they ran.
    pub turns: Vec<Turn>,
    /// Tokens per second, after over before; blank when a side has no steady state.
    pub ratio: Option<Interval>,
    /// Relative differences smaller than this do not count.
    pub min_effect: f64,
    /// What follows from the interval.
    pub verdict: Verdict,
    /// Whether the changed side learns the same.
    pub gate: Gate,
    /// Why times are not comparable: another process on the GPU, throttling, clocks that moved, a run that never settled.
    /// Any of these makes the verdict [`Verdict::Inconclusive`].
    pub contended: Vec<String>,
    /// Remarks that do not change the verdict, as on the load of the CPU's other users.
    pub notes: Vec<String>,
    /// How the interval and the verdict were found, in words.
    pub rule: String,
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// What it is called in tables.
    pub label: String,
    /// What was run: the recipe with its changed keys, or the command.
    pub command: String,
    /// Hash of the resolved recipe; blank for an external command.
    pub recipe_hash: Option<String>,
    /// Commit of the program; blank for an external command.
    pub commit: Option<String>,
    /// BLAKE3 of the binary; blank for an external command.
    pub binary: Option<String>,
    /// The device class, such as `NVIDIA H200` or `cpu avx512`.
    pub device: String,
    /// What runs measured, median over the turns: named columns of the summaries, with units in the names.
    pub measured: std::collections::BTreeMap<String, f64>,
}

/// A run of one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Whether it is of the changed side.
    pub after: bool,
    /// `RECIPE/RUN` of the stored run; blank for an external command, whose rows are in `turn-N.jsonl` beside this file.
    pub run: Option<String>,
    /// How it ended: `ok`, or a word and the reason.
    pub status: String,
    /// Median tokens per second of consecutive blocks of steps in the steady state.
    pub blocks: Vec<f64>,
    /// BLAKE3 of `metrics.csv` (or of the losses of an external command): equal hashes are equal bits.
    pub metrics_hash: Option<String>,
    /// The last training loss.
    pub final_loss: Option<f64>,
}

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate.
    pub estimate: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// What follows from an interval of the ratio and the smallest difference that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval is above 1, and the estimate above 1 + the smallest difference.
    Faster,
    /// The whole interval is below 1, and the estimate below 1 - the smallest difference.
    Slower,
    /// The whole interval is inside 1 ± the smallest difference.
    NoDifference,
    /// None of these, or times are not comparable, or a turn failed.
    Inconclusive,
}

impl Verdict {
    /// The verdict in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no difference",
            Verdict::Inconclusive => "inconclusive",
        }
    }
}

/// Whether the changed side learns what the other one learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// The largest difference in training loss that is allowed at any step, in nats per token; blank asks for the same bits.
    pub tolerance: Option<f64>,
    /// Whether it held; blank when it could not be judged, as where losses of a side are missing.
    pub holds: Option<bool>,
    /// What was found, in words: `the same bits`, or where and by how much the curves part.
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
    /// When it cannot be read, or is no comparison.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(COMPARISON);
        let text = std::fs::read(&path).at("read", &path)?;
        serde_json::from_slice(&text)
            .map_err(|e| Error::failed(format!("{}:{}: not a comparison: {e}", path.display(), e.line())))
    }

    /// The folders `RECIPE/RUN` of the runs that it rests on, each once.
    pub fn runs(&self) -> Vec<&str> {
        let mut runs: Vec<&str> = Vec::new();
        for run in self.turns.iter().filter_map(|turn| turn.run.as_deref()) {
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        runs
    }
}
