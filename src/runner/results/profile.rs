//! `profile.json`: where the time of a step goes, measured with a run's recipe and kept in its folder.

use super::atomic::{self, json};
use super::names::PROFILE;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A kept profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptProfile {
    /// When the profile was measured, UTC.
    pub made: String,
    /// The device class.
    pub device: String,
    /// Mean time of a step without any measurement inside it, in milliseconds.
    pub step_ms: f64,
    /// Tokens per step.
    pub tokens: usize,
    /// The nodes of one measured step, in order.
    pub spans: Vec<KeptSpan>,
    /// Times by op and phase, longest first.
    pub ops: Vec<KeptOp>,
}

/// A node of one measured step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptSpan {
    pub op: String,
    /// The node's scope in the model, such as `blocks.0`.
    pub scope: String,
    /// The part of the step.
    pub phase: String,
    /// Start, in microseconds since the step began.
    pub start_us: f64,
    /// Duration in microseconds.
    pub us: f64,
}

/// The time of an op in a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptOp {
    /// The op.
    pub op: String,
    /// The part of the step.
    pub phase: String,
    /// Nodes per step.
    pub calls: usize,
    /// Median over the measured steps, in milliseconds.
    pub ms: f64,
    /// The shortest time that the device's measured limits allow, in milliseconds; `None` on the CPU.
    pub budget_ms: Option<f64>,
    /// The shapes of the op's tensors; empty if nodes with different shapes are counted together.
    pub shapes: String,
}

impl KeptProfile {
    /// Writes `profile.json` into a run's folder. A reader sees the old file or the new one.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn write(&self, run: &Path) -> Result<()> {
        atomic::write(&run.join(PROFILE), &json(self)?)
    }
}
