//! The files of an evaluation: a row for every item, and a summary with what they were made from.
//!
//! ```text
//! evaluation.json             the model, and for each task its files, figures and the hash of its rows
//! hellaswag-0-shot.jsonl      a line for each item
//! ```

use crate::error::{Error, Result};
use crate::format::shortened;
use crate::regular::{self, MAX_TEXT};
use crate::results::atomic::{json, json_line, parse_json, write};
use crate::results::names::file_part;
use crate::scoring::Usage;
use crate::tasks::{Definition, Figure, ItemResult, TaskFile, TaskResult};
use crate::train::ScoredModel;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The summary in the folder of an evaluation.
const SUMMARY: &str = "evaluation.json";

/// The version of the files' form. Raise it when a field goes or changes its meaning.
const VERSION: u32 = 1;

/// The largest file of rows to read, in bytes: some 400 for each of five million items.
const MAX_ROWS_BYTES: u64 = 2 << 30;

/// Characters of a name that a message shows.
const SHOWN: usize = 80;

/// What a folder of an evaluation holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Version of the form.
    pub version: u32,
    /// The model, and how it was run.
    pub model: ScoredModel,
    /// The tasks that are finished.
    pub tasks: Vec<TaskRecord>,
}

/// What rows of a task are made from, apart from the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskKey {
    /// Name of the task.
    pub task: String,
    /// Hash of its definition.
    pub definition: String,
    /// Examples in front of each item.
    pub shots: usize,
    /// The most items of each configuration; `None` for all.
    pub limit: Option<usize>,
    /// Names and hashes of its files.
    pub files: Vec<FileRecord>,
}

/// A file that a task was read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its name.
    pub name: String,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
    /// Its number of rows.
    pub rows: usize,
}

/// A finished task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// What its rows are made from.
    #[serde(flatten)]
    pub key: TaskKey,
    /// The file of its rows, and the BLAKE3 of the file.
    pub rows: String,
    /// BLAKE3 of the rows' file, in hexadecimal.
    pub rows_blake3: String,
    /// The metric that stands for the task.
    pub metric: String,
    /// All figures.
    pub figures: Vec<FigureRecord>,
    /// Hash of the algorithms of a GPU's products; `None` on the CPU.
    pub algorithms: Option<String>,
    /// Items whose prompts were cut to what the model reads.
    pub cut_items: usize,
    /// Requests that were scored.
    pub requests: usize,
    /// Tokens that the model read, and those of them that were scored.
    pub tokens: usize,
    /// Tokens that were scored.
    pub scored_tokens: usize,
    /// The share of the batches that was padding, from 0 to 1.
    pub padding: f64,
}

/// A figure of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureRecord {
    /// Its name.
    pub metric: String,
    /// Its value; `None` if it is not finite.
    pub value: Option<f64>,
    /// Its standard error over items, or over groups of items that share a text.
    pub error: Option<f64>,
    /// The interval that contains the value over all items that could have been asked, at 95 %.
    pub interval: Option<[f64; 2]>,
    /// Number of items.
    pub items: usize,
    /// Number of groups of items that share a text.
    pub clusters: usize,
    /// The value of a model that knows nothing.
    pub chance: Option<f64>,
    /// True if the value could be chance.
    pub within_chance: Option<bool>,
}

/// A row: an item and its scores.
#[derive(Serialize)]
struct Row<'a> {
    /// Hash of the item.
    item: &'a str,
    /// Number of the group of items that share a text.
    cluster: usize,
    /// The right choice.
    gold: Option<usize>,
    /// The choice of the model by the task's metric.
    chosen: Option<usize>,
    /// The log-probability of each choice, in nats.
    log_probs: Vec<f64>,
    /// For each choice, whether greedy decoding gives it.
    greedy: Vec<bool>,
    /// Whether the training data has the item; null if nobody has looked.
    contaminated: Option<bool>,
}

/// How a task was scored.
#[derive(Clone, Debug)]
pub(super) struct ScoringFacts {
    /// How much of the batches' room was used.
    pub usage: Usage,
    /// Hash of the algorithms of a GPU's products.
    pub algorithms: Option<String>,
    /// Items whose prompts were cut.
    pub cut_items: usize,
}

/// The folder of an evaluation.
#[derive(Debug)]
pub(super) struct Folder {
    /// Its path.
    pub path: PathBuf,
    record: EvaluationRecord,
}

impl TaskKey {
    /// Returns the key of a task's rows.
    pub fn new(definition: &Definition, (shots, limit): (usize, Option<usize>), files: &[TaskFile]) -> Self {
        let file = |file: &TaskFile| FileRecord {
            name: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            blake3: file.hash.clone(),
            rows: file.rows,
        };
        Self {
            task: definition.name.clone(),
            definition: definition.hash.clone(),
            shots,
            limit,
            files: files.iter().map(file).collect(),
        }
    }

    /// Returns the name of the file with the task's rows.
    fn file(&self) -> String {
        let limit = self.limit.map_or(String::new(), |limit| format!("-limit-{limit}"));
        format!("{}-{}-shot{limit}.jsonl", file_part(&self.task), self.shots)
    }
}

impl TaskRecord {
    /// Returns the figure that stands for the task.
    pub fn headline(&self) -> Option<&FigureRecord> {
        self.figures.iter().find(|figure| figure.metric == self.metric)
    }
}

impl FigureRecord {
    fn new(figure: &Figure) -> Self {
        let interval = figure.interval().map(|interval| [interval.low, interval.high]);
        Self {
            metric: figure.metric.word().to_owned(),
            value: Some(figure.value).filter(|value| value.is_finite()),
            error: figure.error.filter(|error| error.is_finite()),
            interval: interval.filter(|ends| ends.iter().all(|end| end.is_finite())),
            items: figure.items,
            clusters: figure.clusters,
            chance: figure.chance,
            within_chance: figure.is_within_chance(),
        }
    }
}

impl<'a> Row<'a> {
    fn new(item: &'a ItemResult) -> Self {
        Self {
            item: &item.hash,
            cluster: item.cluster,
            gold: item.gold,
            chosen: item.chosen,
            log_probs: item.scores.iter().map(|score| score.log_prob).collect(),
            greedy: item.scores.iter().map(|score| score.is_greedy).collect(),
            contaminated: None,
        }
    }
}

impl Folder {
    /// Opens the folder of a model's evaluation; it is created with the first finished task.
    ///
    /// # Errors
    /// If it holds the evaluation of another model, or its summary cannot be read.
    pub fn open(path: PathBuf, model: &ScoredModel) -> Result<Self> {
        let summary = path.join(SUMMARY);
        let empty = EvaluationRecord { version: VERSION, model: model.clone(), tasks: Vec::new() };
        if regular::is_missing(&summary) {
            return Ok(Self { path, record: empty });
        }
        let record: EvaluationRecord =
            parse_json(&summary, &regular::read(&summary, MAX_TEXT)?, "the summary of an evaluation")?;
        if record.version != VERSION || record.model != *model {
            return Err(Error::usage(format!(
                "{} holds the evaluation of {}, or of the same model with another precision, device or version of xrun; \
                 name another folder with --out",
                path.display(),
                shortened(&record.model.name, SHOWN)
            )));
        }
        Ok(Self { path, record })
    }

    /// Returns true if the folder has the rows of a task as they were written.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn has(&self, key: &TaskKey) -> Result<bool> {
        let Some(task) = self.record.tasks.iter().find(|task| task.key == *key) else { return Ok(false) };
        let path = self.path.join(key.file());
        if regular::is_missing(&path) {
            return Ok(false);
        }
        let bytes = regular::read(&path, MAX_ROWS_BYTES)?;
        Ok(task.rows == key.file() && blake3::hash(&bytes).to_hex().as_str() == task.rows_blake3)
    }

    /// Writes the rows of a finished task, and then the summary that names them.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn add(&mut self, key: &TaskKey, result: &TaskResult, scoring: ScoringFacts) -> Result<()> {
        let ScoringFacts { usage, algorithms, cut_items } = scoring;
        let mut rows = String::new();
        for item in &result.items {
            rows += &json_line(&Row::new(item))?;
            rows.push('\n');
        }
        regular::create_folder(&self.path)?;
        write(&self.path.join(key.file()), rows.as_bytes())?;
        let task = TaskRecord {
            key: key.clone(),
            rows: key.file(),
            rows_blake3: blake3::hash(rows.as_bytes()).to_hex().to_string(),
            metric: result.metric.word().to_owned(),
            figures: result.figures.iter().map(FigureRecord::new).collect(),
            algorithms,
            cut_items,
            requests: result.items.iter().map(|item| item.scores.len()).sum(),
            tokens: usage.inputs,
            scored_tokens: usage.scored,
            padding: usage.padding(),
        };
        self.record.tasks.retain(|other| other.rows != task.rows);
        self.record.tasks.push(task);
        write(&self.path.join(SUMMARY), &json(&self.record)?)
    }

    /// Returns the record of these tasks, in this order.
    pub fn record_of(&self, keys: &[&TaskKey]) -> EvaluationRecord {
        let find = |key: &&TaskKey| self.record.tasks.iter().find(|task| task.key == **key).cloned();
        let tasks = keys.iter().filter_map(find).collect();
        EvaluationRecord { tasks, ..self.record.clone() }
    }
}
