//! Measures figures on held-out sets.
//!
//! A [`Task`] is one kind of figure, such as the held-out loss. It records its part of the evaluation program
//! for a batch, and each rank tallies the results over the batches of a set. The tallies are summed over
//! ranks, so that a figure depends on the division into batches only through rounding.

mod documents;
mod loss;
mod next_token_accuracy;
mod preference;
mod task;

pub use task::{LogitRows, Pass, ReadSlot, Tally, Task};

use crate::policy::{EvaluationTask, PairLoss};
use std::sync::Arc;

/// What the held-out loss is a mean of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeldOutLoss {
    /// The losses of tokens. With `documents`, the loss of every document is reported too.
    Tokens {
        /// Report documents.
        documents: bool,
    },
    /// The losses of pairs of answers, one in each row of `seq_len` tokens.
    Pairs {
        /// The formula.
        loss: PairLoss,
        /// How closely the model is held to the reference.
        beta: f64,
        /// Tokens of a row.
        seq_len: usize,
    },
}

/// Returns the evaluation tasks: the loss, and the tasks that a recipe names.
pub fn tasks(loss: HeldOutLoss, named: &[EvaluationTask]) -> Vec<Arc<dyn Task>> {
    let loss: Arc<dyn Task> = match loss {
        HeldOutLoss::Tokens { documents } => Arc::new(loss::Loss { documents }),
        HeldOutLoss::Pairs { loss, beta, seq_len } => {
            Arc::new(preference::Preferences { loss, beta, seq_len })
        }
    };
    let mut tasks = vec![loss];
    tasks.extend(named.iter().map(|named| -> Arc<dyn Task> {
        match named {
            EvaluationTask::NextTokenAccuracy => Arc::new(next_token_accuracy::NextTokenAccuracy),
        }
    }));
    tasks
}
