//! What a task of an evaluation is.

use crate::data::{Batch, HeldOut};
use crate::device::Precision;
use crate::device::communicator::Communicator;
use crate::error::Result;
use crate::ir::{Builder, EvaluationSlot, SlotName, Spec, TensorId};
use crate::metrics::DocumentLoss;
use std::fmt;

/// A kind of figure that evaluations measure.
pub trait Task: fmt::Debug + Send + Sync {
    /// Returns the names of the figures that it reports of every set, which are in
    /// [`TASK_FIGURES`](crate::metrics::TASK_FIGURES).
    fn figures(&self) -> &'static [&'static str];

    /// Returns the slots that its part of the program writes, for micro-batches of this many rows.
    fn slots(&self, _rows: usize, _precision: Precision) -> Vec<(EvaluationSlot, Spec)> {
        Vec::new()
    }

    /// Records what it computes from the logits of a chunk of rows, which no other chunk's logits outlive.
    ///
    /// # Errors
    /// When the state lacks a slot, or an op refuses the rows.
    fn record_logits(&self, _b: &mut Builder, _rows: &LogitRows) -> Result<()> {
        Ok(())
    }

    /// Records what it computes from the losses of all rows of a micro-batch, `[rows]` in nats.
    ///
    /// # Errors
    /// When the state lacks a slot.
    fn record_losses(&self, _b: &mut Builder, _losses: TensorId) -> Result<()> {
        Ok(())
    }

    /// Begins to tally a set.
    ///
    /// # Errors
    /// When the set cannot be read.
    fn begin(&self, set: &HeldOut, pass: Pass, end_token: u32) -> Result<Box<dyn Tally>>;
}

/// A chunk of the rows of a micro-batch, with their logits as products leave them: `[count, vocabulary]`.
#[derive(Clone, Copy, Debug)]
pub struct LogitRows {
    /// The first row.
    pub start: usize,
    /// Number of rows.
    pub count: usize,
    /// The logits, before factor and cap, which keep their order.
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

/// Reads the slot of the state with this name, widened to f64.
pub type ReadSlot<'a> = dyn Fn(SlotName) -> Result<Vec<f64>> + 'a;

/// What a task has seen of a set on one rank.
pub trait Tally {
    /// Adds a batch, for which the program has just run.
    ///
    /// # Errors
    /// When the device failed.
    fn add(&mut self, set: &HeldOut, batch: &Batch, read: &ReadSlot<'_>) -> Result<()>;

    /// Returns the sums over the batches so far, as many as on every other rank. Ranks' sums are added in
    /// f64, in which counts are exact up to 2^53.
    fn sums(&self) -> Vec<f64>;

    /// Returns the figures that follow from the sums over all ranks, which predicted this many tokens,
    /// with their names.
    fn figures(&self, sums: &[f64], tokens: u64) -> Vec<(&'static str, f64)>;

    /// Puts the losses of single documents together over all ranks, which all call this.
    ///
    /// # Errors
    /// When a rank is lost.
    fn documents(&mut self, _comm: &dyn Communicator) -> Result<Vec<DocumentLoss>> {
        Ok(Vec::new())
    }
}
