//! The tasks on which a recipe's model is scored during training: reads them, and counts what they ask.

use crate::data::{TaskFacts, Tokenizer};
use crate::error::Result;
use crate::metrics::ScoreColumn;
use crate::recipe::{MAX_SHOTS, Recipe};
use crate::regular;
use crate::tasks::{self, Asked, Beginning, Definition, Encoder, Loaded, Metric, Prepared, PreparedItem};
use std::path::Path;

const _: () = assert!(MAX_SHOTS as usize == tasks::MAX_SHOTS);

const TASKS: &str = "evaluation.tasks";
const DATA: &str = "evaluation.data";

/// Reads the tasks of a recipe and makes their requests, with the prompts that `xrun eval` makes for a run.
/// Returns none if the recipe has none.
///
/// # Errors
/// If there is no such task, or its files are missing or wrong (the message has file and line).
pub fn read_tasks(recipe: &Recipe, tokenizer: &Tokenizer) -> Result<Vec<Prepared>> {
    let evaluation = &recipe.values().evaluation;
    // A checked recipe names the folder if it has tasks.
    let Some(data) = evaluation.data.as_ref().filter(|_| !evaluation.tasks.is_empty()) else {
        return Ok(Vec::new());
    };
    let definitions = tasks::select(evaluation.tasks.iter().map(String::as_str)).map_err(|error| {
        recipe.error(&[TASKS], error.message(), "`xrun tasks list` shows the tasks and sets that xrun brings")
    })?;
    let data = Path::new(data);
    if !regular::is_folder(data) {
        return Err(recipe.error(
            &[DATA],
            format!("{} is not a folder", data.display()),
            "evaluation.data is the folder with the files of the tasks; docs/tasks.md says how they are found",
        ));
    }
    let encoder = Encoder::new(tokenizer, Beginning::of_run(tokenizer), recipe.values().training.seq_len);
    let read = |definition: &Definition| {
        let shots = evaluation.shots.unwrap_or(definition.examples.count);
        let loaded = Loaded::read(definition, data, shots, evaluation.limit)?;
        loaded.prepare(&encoder, shots, evaluation.limit)
    };
    let read: Vec<Prepared> = definitions.iter().map(read).collect::<Result<_>>()?;
    let columns = |task: &Prepared| {
        let name = task.definition().name.clone();
        column_metrics(task).map(move |metric| format!("{name}/{}", metric.word())).collect::<Vec<_>>()
    };
    let is_taken =
        |column: &String| ScoreColumn::parse(column).is_none_or(|parsed| parsed.to_string() != *column);
    match read.iter().flat_map(columns).find(is_taken) {
        Some(column) => Err(recipe.error(
            &[TASKS],
            format!("{column} cannot be a column of a run, because it means something else"),
            "give the task another name (`name` in its definition)",
        )),
        None => Ok(read),
    }
}

/// Returns the figures of a task that are columns of a run: the one that stands for it, and bits per byte,
/// which changes before accuracy does.
pub fn column_metrics(task: &Prepared) -> impl Iterator<Item = Metric> + use<> {
    let definition = task.definition();
    let (headline, rule, rules) = (task.metric(), definition.request, definition.rules);
    let bits = Metric::BitsPerByte;
    std::iter::once(headline).chain((headline != bits && bits.applies(&rule, rules)).then_some(bits))
}

/// Returns the tokens that a model reads of an item: those with which all its requests begin once, and of
/// each request the others but for the last, after which nothing is predicted.
fn tokens_read(item: &PreparedItem) -> usize {
    let requests = match &item.asked {
        Asked::Scores(requests) => requests,
        Asked::Text(prompt) => return prompt.len(),
    };
    let all: Vec<Vec<u32>> = requests.iter().map(|request| request.inputs().collect()).collect();
    let Some(first) = all.first() else { return 0 };
    let same = |other: &Vec<u32>| first.iter().zip(other).take_while(|(a, b)| a == b).count();
    let shared = all.iter().map(same).min().unwrap_or(0);
    shared + all.iter().map(|tokens| tokens.len() - shared).sum::<usize>()
}

/// Counts what tasks ask a model.
pub fn task_facts(tasks: &[Prepared]) -> Vec<TaskFacts> {
    let facts = |task: &Prepared| TaskFacts {
        name: task.definition().name.clone(),
        hash: task.hash(),
        items: task.items.len(),
        accuracy_clusters: task.metric().is_accuracy().then(|| task.clusters()),
        requests: task.asked(),
        tokens: task.items.iter().map(tokens_read).sum(),
        scored: task.requests().map(|request| request.continuation.len()).sum(),
        generated: task.generation().map_or(0, |generation| task.items.len() * generation.max_tokens),
    };
    tasks.iter().map(facts).collect()
}

/// Returns what the tasks of a recipe ask, before its corpus is opened.
///
/// # Errors
/// Fails like [`read_tasks`], or if the tokenizer cannot be read.
pub fn facts_of_tasks(recipe: &Recipe) -> Result<Vec<TaskFacts>> {
    if recipe.values().evaluation.tasks.is_empty() {
        return Ok(Vec::new());
    }
    let data = &recipe.values().data;
    let tokenizer = Tokenizer::open_for(&data.tokenizer, data.begin_token.as_deref())?;
    Ok(task_facts(&read_tasks(recipe, &tokenizer)?))
}
