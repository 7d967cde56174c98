//! Measures figures on held-out sets.
//!
//! A [`Task`] is one kind of figure, such as the held-out loss. It records its part of the evaluation program
//! for a batch, and each rank tallies the results over the batches of a set. The tallies are summed over
//! ranks, so that a figure depends on the division into batches only through rounding.

mod documents;
mod loss;
mod next_token_accuracy;
mod task;

pub use task::{LogitRows, Pass, ReadSlot, Tally, Task};

use crate::policy::EvaluationTask;
use std::sync::Arc;

/// Returns the evaluation tasks: the loss, for every document too if `documents`, and the tasks that a recipe
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
