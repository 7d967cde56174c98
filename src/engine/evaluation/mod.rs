//! What evaluations measure on held-out sets.
//!
//! A [`Task`] is a kind of figure: held-out loss is one. It records what its part of the evaluation program
//! computes for a batch, and tallies that over the batches of a set on every rank. Sums of tallies are added
//! over ranks, so that figures do not depend on how batches are divided, but for the rounding of the sums.

mod documents;
mod loss;
mod next_token_accuracy;
mod task;

pub use task::{LogitRows, Pass, ReadSlot, Tally, Task};

use crate::policy::EvaluationTask;
use std::sync::Arc;

/// Returns the tasks of evaluations: the loss, with that of every document if `documents`, and those that a recipe
/// names.
pub fn tasks(documents: bool, named: &[EvaluationTask]) -> Vec<Arc<dyn Task>> {
    let mut tasks: Vec<Arc<dyn Task>> = vec![Arc::new(loss::Loss { documents })];
    tasks.extend(named.iter().map(|named| -> Arc<dyn Task> {
        match named {
            EvaluationTask::NextTokenAccuracy => Arc::new(next_token_accuracy::NextTokenAccuracy),
        }
    }));
    tasks
}
