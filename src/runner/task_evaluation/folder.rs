//! The folder of an evaluation.

use super::model::ScoredModel;
use super::record::{EvaluationRecord, FigureRecord, ItemRow, SUMMARY, TaskKey, TaskRecord, VERSION};
use super::scores::TaskScores;
use crate::error::{Error, IoContext, Result};
use crate::format::shortened;
use crate::regular;
use crate::results::atomic::{json, json_line, write};
use crate::results::folder::lock;
use std::fs::File;
use std::path::PathBuf;

/// Characters of a name that a message shows.
const SHOWN: usize = 80;

/// The folder of an evaluation.
#[derive(Debug)]
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
    record: EvaluationRecord,
    access: Access,
}

/// What keeps other processes from writing into the folder.
#[derive(Debug)]
enum Access {
    /// Nothing yet.
    Unlocked,
    /// Its own lock.
    Locked { _lock: File },
    /// The lock of the run whose folder it is in.
    InRun,
}

impl Folder {
    /// Opens the folder of a model's evaluation. Creates nothing.
    ///
    /// # Errors
    /// If it holds the evaluation of another model, or its summary cannot be read.
    pub fn open(path: PathBuf, model: &ScoredModel) -> Result<Self> {
        let empty = EvaluationRecord { version: VERSION, model: model.clone(), tasks: Vec::new() };
        let mut folder = Self { path, record: empty, access: Access::Unlocked };
        folder.read()?;
        Ok(folder)
    }

    /// Creates a folder inside that of a run, which this process has locked. Removes what was there: scores
    /// of a step that an earlier process did not save.
    ///
    /// # Errors
    /// If files cannot be removed or created.
    pub fn anew(path: PathBuf, model: &ScoredModel) -> Result<Self> {
        if path.exists() {
            std::fs::remove_dir_all(&path).at("remove", &path)?;
        }
        regular::create_folder(&path)?;
        let record = EvaluationRecord { version: VERSION, model: model.clone(), tasks: Vec::new() };
        Ok(Self { path, record, access: Access::InRun })
    }

    /// Reads the summary, unless there is none.
    fn read(&mut self) -> Result<()> {
        if regular::is_missing(&self.path.join(SUMMARY)) {
            return Ok(());
        }
        let record = EvaluationRecord::read(&self.path)?;
        if record.model != self.record.model {
            return Err(Error::usage(format!(
                "{} holds the evaluation of {}, or of the same model with another precision, device or version of xrun; \
                 name another folder with --out",
                self.path.display(),
                shortened(&record.model.name, SHOWN)
            )));
        }
        self.record = record;
        Ok(())
    }

    /// Creates the folder if it is missing, and keeps other processes from writing into it until this value
    /// is dropped.
    ///
    /// # Errors
    /// If another process writes into it, or it holds the evaluation of another model by now.
    pub fn lock(&mut self) -> Result<()> {
        if let Access::Unlocked = self.access {
            regular::create_folder(&self.path)?;
            self.access = Access::Locked { _lock: lock(&self.path)? };
            // Another process may have written between `open` and here.
            self.read()?;
        }
        Ok(())
    }

    /// Returns true if the folder has the rows of a task as they were written.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn has(&self, key: &TaskKey) -> Result<bool> {
        self.task(key).map_or(Ok(false), |task| task.has_its_rows(&self.path))
    }

    /// Returns the record of a finished task.
    pub(super) fn task(&self, key: &TaskKey) -> Option<&TaskRecord> {
        self.record.tasks.iter().find(|task| task.key == *key)
    }

    /// Writes the rows of a finished task, and then the summary that names them.
    ///
    /// # Errors
    /// If [`Folder::lock`] fails, or a file cannot be written.
    pub fn add(&mut self, key: &TaskKey, scores: &TaskScores) -> Result<()> {
        let TaskScores { result, usage, algorithms, cut_items } = scores;
        let items = result.items.iter().zip(result.headline_contributions());
        let rows: Vec<ItemRow> = items.map(|(item, adds)| ItemRow::new(item, adds)).collect();
        self.lock()?;
        let task = TaskRecord {
            key: key.clone(),
            rows: key.file(),
            rows_blake3: String::new(),
            metric: result.metric.word().to_owned(),
            figures: result.figures.iter().map(FigureRecord::new).collect(),
            algorithms: algorithms.clone(),
            cut_items: *cut_items,
            requests: result.items.iter().map(|item| item.scores.len().max(1)).sum(),
            tokens: usage.inputs,
            scored_tokens: usage.scored,
            padding: usage.padding(),
            contamination: None,
        };
        self.store(task, &rows)
    }

    /// Writes the rows of a task, and then the summary with their hash.
    pub(super) fn store(&mut self, mut task: TaskRecord, rows: &[ItemRow]) -> Result<()> {
        let mut lines = String::new();
        for row in rows {
            lines += &json_line(row)?;
            lines.push('\n');
        }
        write(&self.path.join(&task.rows), lines.as_bytes())?;
        task.rows_blake3 = blake3::hash(lines.as_bytes()).to_hex().to_string();
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::scoring::Usage;
    use crate::tasks::{Contribution, Figure, ItemResult, Metric, Score, TaskResult};
    use std::path::Path;

    /// An evaluation of a task whose items add this much to its figure each.
    pub fn scored(path: &Path, adds: &[f64]) -> (Folder, TaskKey) {
        let (key, mut task) = scores([-1.0, -2.0]);
        let item = task.result.items[0].clone();
        let items = adds.iter().enumerate().map(|(number, &value)| ItemResult {
            hash: format!("item {number}"),
            cluster: number,
            contributions: vec![Contribution { value, weight: 1.0 }],
            ..item.clone()
        });
        task.result.items = items.collect();
        task.result.figures[0].value = adds.iter().sum::<f64>() / adds.len() as f64;
        let mut folder = Folder::open(path.to_owned(), &model("m")).unwrap();
        folder.add(&key, &task).unwrap();
        (folder, key)
    }

    fn model(name: &str) -> ScoredModel {
        let text = |text: &str| text.to_owned();
        ScoredModel {
            name: text(name),
            step: Some(3),
            weights: text("training"),
            hash: None,
            tokenizer: text("t"),
            parameters: 1,
            dtype: text("fp32"),
            device: text("cpu"),
            context: 8,
            batch: [1, 48],
            xrun_version: text("0"),
        }
    }

    fn scores(log_probs: [f64; 2]) -> (TaskKey, TaskScores) {
        let files = Vec::new();
        let key = TaskKey { task: "a/b".into(), definition: "d".into(), shots: 1, limit: Some(2), files };
        let item = ItemResult {
            hash: "h".to_owned(),
            cluster: 4,
            gold: Some(1),
            chosen: Some(0),
            scores: log_probs.map(|log_prob| Score { log_prob, is_greedy: log_prob > -1.0 }).to_vec(),
            generated: None,
            contributions: vec![Contribution { value: 1.0, weight: 1.0 }],
        };
        let figure = Figure {
            metric: Metric::Acc,
            value: 0.5,
            error: Some(f64::NAN),
            items: 1,
            clusters: 1,
            chance: Some(0.5),
        };
        let result = TaskResult {
            task: key.task.clone(),
            definition: key.definition.clone(),
            shots: 1,
            metric: Metric::Acc,
            figures: vec![figure],
            items: vec![item],
        };
        (key, TaskScores { result, usage: Usage::default(), algorithms: None, cut_items: 0 })
    }

    #[test]
    fn rows_read_back_to_the_bit_and_changed_ones_are_rejected() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("evaluation");
        let (key, task) = scores([-0.1 - 0.2, -1e-310]);
        let mut folder = Folder::open(path.clone(), &model("m")).unwrap();
        assert!(!path.exists() && !folder.has(&key).unwrap());
        folder.add(&key, &task).unwrap();
        assert!(folder.has(&key).unwrap());
        let record = EvaluationRecord::read(&path).unwrap();
        assert_eq!((&record.tasks[0].key, record.tasks[0].headline().unwrap().error), (&key, None));
        let row = &record.tasks[0].read_rows(&path).unwrap()[0];
        let expected = ItemRow {
            item: "h".to_owned(),
            cluster: 4,
            gold: Some(1),
            chosen: Some(0),
            adds: Some([1.0, 1.0]),
            log_probs: vec![-0.1 - 0.2, -1e-310],
            greedy: vec![true, true],
            text: None,
            answer: None,
            contaminated: None,
        };
        assert_eq!(*row, expected);

        let rows = path.join("a-b-1-shot-limit-2.jsonl");
        let written = std::fs::read_to_string(&rows).unwrap();
        std::fs::write(&rows, written.replace("-1e-310", "-2e-310")).unwrap();
        let refused = record.tasks[0].read_rows(&path).unwrap_err();
        assert!(refused.message().contains("was changed after it was written"), "{refused}");
        let short = written.replace("[true,true]", "[true]");
        std::fs::write(&rows, &short).unwrap();
        let hash = blake3::hash(short.as_bytes()).to_hex().to_string();
        let planted = TaskRecord { rows_blake3: hash, ..record.tasks[0].clone() };
        let refused = planted.read_rows(&path).unwrap_err();
        assert!(refused.message().contains("limit-2.jsonl:1: 2 values in log_probs, but 1"), "{refused}");
        let outside = TaskRecord { rows: "../a".to_owned(), ..planted };
        assert!(outside.read_rows(&path).is_err());
    }

    #[test]
    fn two_evaluations_do_not_write_into_one_folder_at_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("evaluation");
        let (key, task) = scores([-1.0, -2.0]);
        let [mut first, mut second] =
            ["one", "one"].map(|name| Folder::open(path.clone(), &model(name)).unwrap());
        let mut other = Folder::open(path.clone(), &model("other")).unwrap();
        first.add(&key, &task).unwrap();
        assert!(second.add(&key, &task).unwrap_err().message().contains("in use by"));
        drop(first);
        // What the first wrote stays, and another model is noticed though its folder was free when it opened
        // it.
        let another = TaskKey { shots: 2, ..key.clone() };
        second.add(&another, &task).unwrap();
        assert_eq!(EvaluationRecord::read(&path).unwrap().tasks.len(), 2);
        drop(second);
        assert!(other.add(&key, &task).unwrap_err().message().contains("holds the evaluation of one"));
    }
}
