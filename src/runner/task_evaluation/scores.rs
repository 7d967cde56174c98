//! Scores a task with a model.

use crate::error::Result;
use crate::scoring::{Grouping, Scorer, Usage};
use crate::tasks::{Prepared, PreparedItem, Request, Score, TaskResult};

/// A task that has been scored.
#[derive(Clone, Debug)]
pub struct TaskScores {
    /// Its items and figures.
    pub result: TaskResult,
    /// How much of the batches' room was used.
    pub usage: Usage,
    /// Hash of the algorithms of a GPU's products; `None` on the CPU.
    pub algorithms: Option<String>,
    /// Items whose prompts were cut to what the model reads.
    pub cut_items: usize,
}

/// Scores a task. Calls `on_batch` after each batch with the number of requests that are done.
///
/// # Errors
/// If a request does not fit the model, a score is not finite, or the device or `on_batch` fails.
pub fn score_task(
    prepared: &Prepared,
    scorer: &mut Scorer,
    on_batch: impl FnMut(usize) -> Result<()>,
) -> Result<TaskScores> {
    let items: Vec<&PreparedItem> = prepared.items.iter().collect();
    let (scores, usage) = score_items(&items, scorer, on_batch)?;
    Ok(TaskScores {
        result: prepared.result(&scores)?,
        usage,
        algorithms: scorer.algorithms(),
        cut_items: prepared.cut_items(),
    })
}

/// Scores items: the requests of each, in their order. Calls `on_batch` after each batch with the number of
/// requests that are done.
///
/// # Errors
/// If a request does not fit the model, or the device or `on_batch` fails.
pub fn score_items(
    items: &[&PreparedItem],
    scorer: &mut Scorer,
    on_batch: impl FnMut(usize) -> Result<()>,
) -> Result<(Vec<Score>, Usage)> {
    let requests: Vec<&[Request]> = items.iter().map(|item| &item.requests[..]).collect();
    let (scores, usage) = scorer.score(&requests, Grouping::Packed, on_batch)?;
    Ok((scores.concat(), usage))
}
