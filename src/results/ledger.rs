//! `ledger.jsonl`: every attempt at every cell of every sweep in a results folder, one JSON object per line.
//!
//! Lines are only ever added. An attempt is a line when it begins and one when it ends; one that never ended was killed
//! with the sweep, and the next sweep says so in a line of its own. The table of a sweep is what its cells' last lines say.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The ledger's name in a results folder.
pub const LEDGER: &str = "ledger.jsonl";

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// What makes two cells the same: hash over training and execution keys, corpus, build and device class.
    pub key: String,
    /// Number of the attempt at this cell, from 1.
    pub attempt: u64,
    /// How it stands.
    pub status: CellStatus,
    /// Why, where it is not `ok`.
    pub reason: Option<String>,
    /// The recipe's name.
    pub recipe: String,
    /// What the cell sets on top of the recipe, by key, as TOML values.
    pub settings: BTreeMap<String, String>,
    /// Hash of the resolved recipe.
    pub recipe_hash: String,
    /// Hash of the corpus.
    pub corpus_hash: Option<String>,
    /// Version and commit of the program.
    pub build: String,
    /// The device class, such as `NVIDIA H200` or `cpu avx512`.
    pub device: String,
    /// `RECIPE/RUN` of the run, where one began.
    pub run: Option<String>,
    /// UTC, when the line was written.
    pub at: String,
    /// What the run measured; blank where it did not.
    pub measured: Measured,
}

/// What a cell's run measured. Blank is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Steps done.
    pub steps: Option<u64>,
    /// Last training loss, in nats per token.
    pub loss: Option<f64>,
    /// Last held-out loss, in nats per token.
    pub val_loss: Option<f64>,
    /// Median tokens per second in the steady state.
    pub tok_s: Option<f64>,
    /// Median step time in the steady state, in milliseconds.
    pub step_ms: Option<f64>,
    /// Model FLOPs utilization, in percent.
    pub mfu_pct: Option<f64>,
    /// Bytes of state and activations by the plan.
    pub planned_bytes: Option<u64>,
    /// Bytes that were allocated.
    pub allocated_bytes: Option<u64>,
    /// Whether another process used the device, or it throttled.
    pub contended: Option<bool>,
}

/// How an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellStatus {
    /// Under way.
    Running,
    /// Every step was trained.
    Ok,
    /// Memory was refused while it ran.
    Oom,
    /// The plan says that it cannot fit; nothing was started.
    PredictedOom,
    /// The loss or the gradient became NaN or infinite.
    Diverged,
    /// No step for longer than the sweep allows.
    Hang,
    /// Longer than the sweep allows.
    Timeout,
    /// Ended by a signal, or with the sweep.
    Killed,
    /// Ended by another error.
    Failed,
    /// Left out: excluded, or no valid recipe.
    Skipped,
}
