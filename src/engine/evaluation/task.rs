//! The traits of an evaluation task.

use crate::data::{Batch, HeldOut};
use crate::device::Precision;
use crate::device::communicator::Communicator;
use crate::error::Result;
use crate::ir::{Builder, EvaluationSlot, SlotName, Spec, TensorId};
use crate::metrics::DocumentLoss;
use std::fmt;

/// A kind of figure that evaluations measure.
pub trait Task: fmt::Debug + Send + Sync {
    /// Returns the names of the figures that it reports for every set. Each name is in
    /// [`TASK_FIGURES`](crate::metrics::TASK_FIGURES).
    fn figures(&self) -> &'static [&'static str];

    /// Returns the slots that the task's part of the program writes, for micro-batches with this many rows.
    fn slots(&self, _rows: usize, _precision: Precision) -> Vec<(EvaluationSlot, Spec)> {
        Vec::new()
    }

    /// Records what the task computes from the logits of one chunk of rows. The logits are freed before the
    /// next chunk.
    ///
    /// # Errors
    /// If the state lacks a slot, or an op rejects the rows.
    fn record_logits(&self, _b: &mut Builder, _rows: &LogitRows) -> Result<()> {
        Ok(())
    }

    /// Records what the task computes from the losses of all rows of a micro-batch, `[rows]` in nats.
    ///
    /// # Errors
    /// If the state lacks a slot.
    fn record_losses(&self, _b: &mut Builder, _losses: TensorId) -> Result<()> {
        Ok(())
    }

    /// Begins to tally a set.
    ///
    /// # Errors
    /// If the set cannot be read.
    fn begin(&self, set: &HeldOut, pass: Pass, end_token: u32) -> Result<Box<dyn Tally>>;
}

/// A chunk of the rows of a micro-batch, with their raw logits `[count, vocabulary]`.
#[derive(Clone, Copy, Debug)]
pub struct LogitRows {
    /// The first row.
    pub start: usize,
    /// Number of rows.
    pub count: usize,
    /// The logits before scaling and capping, neither of which changes their order.
    pub logits: TensorId,
}

/// A pass over the held-out sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// True if programs read the moving average of the weights.
    pub is_average: bool,
    /// True after the last step of a run.
    pub is_last: bool,
}

/// Reads the slot with this name, widened to f64.
pub type ReadSlot<'a> = dyn Fn(SlotName) -> Result<Vec<f64>> + 'a;

/// What a task has accumulated for a set on one rank.
pub trait Tally {
    /// Adds a batch right after the program ran for it.
    ///
    /// # Errors
    /// If the device failed.
    fn add(&mut self, set: &HeldOut, batch: &Batch, read: &ReadSlot<'_>) -> Result<()>;

    /// Returns the sums over the batches so far; every rank returns the same number of sums. They are added
    /// over ranks in f64, in which counts are exact up to 2^53.
    fn sums(&self) -> Vec<f64>;

    /// Returns the figures and their names from the sums over all ranks, which predicted `tokens` tokens.
    fn figures(&self, sums: &[f64], tokens: u64) -> Vec<(&'static str, f64)>;

    /// Gathers the losses of single documents from all ranks. Every rank must call it.
    ///
    /// # Errors
    /// If a rank is lost.
    fn documents(&mut self, _comm: &dyn Communicator) -> Result<Vec<DocumentLoss>> {
        Ok(Vec::new())
    }
}
