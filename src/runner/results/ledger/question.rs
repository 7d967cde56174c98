//! A line of the ledger about a question: that a comparison asked it, or how it was answered.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A question of a comparison. Its first line stands before the lines of every run that it made; a second one
/// has the answer. Both stay if the comparison's folder is deleted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuestionLine {
    /// `NAME/ID` of the comparison.
    pub comparison: String,
    /// Hash of arms, measures, smallest effects, confidence, design, seeds and prediction. The same question
    /// asked again has the same hash.
    pub question: String,
    /// The arms, the baseline first.
    pub arms: Vec<AskedArm>,
    /// What is judged.
    pub measures: Vec<String>,
    /// The seeds of each pair, the baseline's first; empty for trials.
    pub seeds: Vec<[u64; 2]>,
    /// Why the answer is exploratory, whatever becomes of the runs: their outcome may have been known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// How it ended, such as `val_loss: better`; `None` in the line that asks.
    pub answer: Option<String>,
    /// When the line was written, UTC.
    pub at: String,
}

/// An arm of a question, by what changes its losses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedArm {
    /// Hash of the recipe without its seed and, for trials, of its program.
    pub hash: String,
    /// Training keys that have a value, as TOML, without `training.seed`.
    pub training: BTreeMap<String, String>,
    /// Execution keys that change bits and have a value.
    pub execution: BTreeMap<String, String>,
}
