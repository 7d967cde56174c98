//! Scores a task with a model.

use crate::error::{Error, Result};
use crate::scoring::{Grouping, Scorer, TextEnds, Usage};
use crate::tasks::{Answer, Asked, Prepared, PreparedItem, Request, TaskResult};

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

/// Scores a task. Calls `on_batch` after each batch with how often the model has been asked.
///
/// # Errors
/// If a request does not fit the model, a score is not finite, or the device or `on_batch` fails.
pub fn score_task(
    prepared: &Prepared,
    scorer: &mut Scorer,
    on_batch: impl FnMut(usize) -> Result<()>,
) -> Result<TaskScores> {
    let items: Vec<&PreparedItem> = prepared.items.iter().collect();
    let (answers, usage) = score_items(prepared, &items, scorer, on_batch)?;
    Ok(TaskScores {
        result: prepared.result(&answers)?,
        usage,
        algorithms: scorer.algorithms(),
        cut_items: prepared.cut_items(),
    })
}

/// Returns the model's answers to items of a task, in their order. Calls `on_batch` after each batch with how
/// often the model has been asked.
///
/// # Errors
/// If a request does not fit the model, or the device or `on_batch` fails.
pub fn score_items(
    task: &Prepared,
    items: &[&PreparedItem],
    scorer: &mut Scorer,
    on_batch: impl FnMut(usize) -> Result<()>,
) -> Result<(Vec<Answer>, Usage)> {
    let Some(generation) = task.generation() else {
        let requests: Vec<&[Request]> = items.iter().map(|item| item.asked.requests()).collect();
        let (scores, usage) = scorer.score(&requests, Grouping::Packed, on_batch)?;
        return Ok((scores.into_iter().map(Answer::Scores).collect(), usage));
    };
    let prompt = |item: &&PreparedItem| match &item.asked {
        Asked::Text(prompt) => Ok(prompt.clone()),
        Asked::Scores(_) => Err(Error::failed("a task that generates has an item that is scored")),
    };
    let prompts: Vec<Vec<u32>> = items.iter().map(prompt).collect::<Result<_>>()?;
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let is_complete = |tokens: &[u32]| task.is_stopped(tokens);
    let ends = TextEnds { token: task.end_token(), tokens: generation.max_tokens, is_complete: &is_complete };
    let (texts, usage) = scorer.generate(&prompts, &ends, on_batch)?;
    let answers = texts.iter().map(|tokens| task.text(tokens).map(Answer::Text));
    Ok((answers.collect::<Result<_>>()?, usage))
}
