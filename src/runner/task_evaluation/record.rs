//! The files of an evaluation: a row for every item, and a summary with what they were made from.
//!
//! ```text
//! evaluation.json             the model, and for each task its files, figures and the hash of its rows
//! hellaswag-0-shot.jsonl      a line for each item
//! ```

use super::model::ScoredModel;
use crate::error::{Error, Result};
use crate::format::shortened;
use crate::regular::{self, MAX_TEXT};
use crate::results::atomic::parse_json;
use crate::results::names::file_part;
use crate::tasks::{Contribution, Definition, Figure, ItemResult, TaskFile};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The summary in the folder of an evaluation.
pub(super) const SUMMARY: &str = "evaluation.json";

/// The version of the files' form. Raise it when a field goes or changes its meaning.
pub(super) const VERSION: u32 = 1;

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
    /// Requests that were scored, and prompts that were continued.
    pub requests: usize,
    /// Tokens that the model read, and those of them that were scored.
    pub tokens: usize,
    /// Tokens that were scored or generated.
    pub scored_tokens: usize,
    /// The share of the batches that was padding, from 0 to 1.
    pub padding: f64,
    /// The items that a training text has, if one was looked through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contamination: Option<MarkedItems>,
}

/// The items of a task that a training text has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MarkedItems {
    /// The corpus that was looked through, as its recipe names it.
    pub corpus: String,
    /// Number of items that it has.
    pub found: usize,
    /// The figure that stands for the task, of the other items; `None` if there are none.
    pub clean: Option<FigureRecord>,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemRow {
    /// Hash of the item.
    pub item: String,
    /// Number of the group of items that share a text.
    pub cluster: usize,
    /// The right choice.
    pub gold: Option<usize>,
    /// The choice of the model by the task's metric.
    pub chosen: Option<usize>,
    /// What the item adds to the figure that stands for the task, such as 1 for a right choice, and what it
    /// counts there: 1, or its bytes, words or tokens. `None` if it has no finite one.
    pub adds: Option<[f64; 2]>,
    /// The log-probability of each choice, in nats.
    pub log_probs: Vec<f64>,
    /// For each choice, whether greedy decoding gives it.
    pub greedy: Vec<bool>,
    /// The text that the model generated, up to where the task cuts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What of the text is the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Whether the training data has the item; null if nobody has looked.
    pub contaminated: Option<bool>,
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
    pub(super) fn file(&self) -> String {
        let limit = self.limit.map_or(String::new(), |limit| format!("-limit-{limit}"));
        format!("{}-{}-shot{limit}.jsonl", file_part(&self.task), self.shots)
    }
}

impl TaskRecord {
    /// Returns the figure that stands for the task.
    pub fn headline(&self) -> Option<&FigureRecord> {
        self.figures.iter().find(|figure| figure.metric == self.metric)
    }

    /// Reads the task's rows in the folder of its evaluation, in the order of its items.
    ///
    /// # Errors
    /// If they are missing, were changed after they were written (their hash is in the summary), or are
    /// malformed.
    pub fn read_rows(&self, folder: &Path) -> Result<Vec<ItemRow>> {
        let file = self.key.file();
        if self.rows != file {
            return Err(Error::failed(format!(
                "{}: the rows of {} are in {}, but should be in {file}",
                folder.join(SUMMARY).display(),
                shortened(&self.key.task, SHOWN),
                shortened(&self.rows, SHOWN)
            )));
        }
        let path = folder.join(file);
        let bytes = regular::read(&path, MAX_ROWS_BYTES)?;
        if blake3::hash(&bytes).to_hex().as_str() != self.rows_blake3 {
            return Err(Error::failed(format!(
                "{} was changed after it was written: its hash is not that in {SUMMARY}; evaluate the task again",
                path.display()
            )));
        }
        let row = |(index, line): (usize, &[u8])| {
            let place = || format!("{}:{}", path.display(), index + 1);
            let row: ItemRow = serde_json::from_slice(line)
                .map_err(|e| Error::failed(format!("{}: not the row of an item: {e}", place())))?;
            row.check().map_err(|why| Error::failed(format!("{}: {why}", place())))?;
            Ok(row)
        };
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.enumerate().map(row).collect()
    }

    /// Returns true if the folder has the task's rows as they were written.
    pub(super) fn has_its_rows(&self, folder: &Path) -> Result<bool> {
        let path = folder.join(self.key.file());
        if self.rows != self.key.file() || regular::is_missing(&path) {
            return Ok(false);
        }
        Ok(blake3::hash(&regular::read(&path, MAX_ROWS_BYTES)?).to_hex().as_str() == self.rows_blake3)
    }
}

impl FigureRecord {
    pub(super) fn new(figure: &Figure) -> Self {
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

impl ItemRow {
    pub(super) fn new(item: &ItemResult, adds: Option<Contribution>) -> Self {
        let adds = adds.map(|one| [one.value, one.weight]);
        Self {
            item: item.hash.clone(),
            cluster: item.cluster,
            gold: item.gold,
            chosen: item.chosen,
            adds: adds.filter(|adds| adds.iter().all(|number| number.is_finite())),
            log_probs: item.scores.iter().map(|score| score.log_prob).collect(),
            greedy: item.scores.iter().map(|score| score.is_greedy).collect(),
            text: item.generated.as_ref().map(|generated| generated.text.clone()),
            answer: item.generated.as_ref().map(|generated| generated.answer.clone()),
            contaminated: None,
        }
    }

    /// Checks that a row from a file has as many flags as scores.
    fn check(&self) -> Result<(), String> {
        let scores = self.log_probs.len();
        if self.greedy.len() != scores {
            return Err(format!("{scores} values in log_probs, but {} in greedy", self.greedy.len()));
        }
        Ok(())
    }
}

impl EvaluationRecord {
    /// The name of the summary in the folder of an evaluation.
    pub const FILE: &str = SUMMARY;

    /// Reads the summary in a folder of an evaluation.
    ///
    /// # Errors
    /// If there is none, or another version of xrun wrote it in another form.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(SUMMARY);
        let record: Self =
            parse_json(&path, &regular::read(&path, MAX_TEXT)?, "the summary of an evaluation")?;
        if record.version != VERSION {
            return Err(Error::usage(format!(
                "{} has version {} of its form, but this xrun reads version {VERSION}; evaluate the model again",
                path.display(),
                record.version
            )));
        }
        Ok(record)
    }
}
