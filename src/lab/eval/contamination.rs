//! Which items of tasks a training text has, as `xrun data check --tasks` finds and `xrun eval` marks them.

use crate::data::leaks::{ListedText, Report, TextList};
use crate::error::{Error, Result};
use crate::format::shortened;
use crate::regular::{self, MAX_TEXT};
use crate::results::atomic::{json, parse_json, write};
use crate::task_evaluation::{FileRecord, TaskKey};
use crate::tasks::{Definition, Item, Loaded, TaskFile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The version of the file's form. Raise it when a field goes or changes its meaning.
const VERSION: u32 = 1;

/// Characters of a name that a message shows.
const SHOWN: usize = 80;

/// The items of a task, to be looked for.
#[derive(Clone, Debug)]
pub struct TaskItems {
    definition: Definition,
    files: Vec<TaskFile>,
    items: Vec<Item>,
}

/// What a training text has of the items of tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contamination {
    /// Version of the form.
    version: u32,
    /// The corpus that was looked through, as its recipe names it.
    pub corpus: String,
    /// The tasks that were looked for.
    pub tasks: Vec<TaskContamination>,
}

/// What a training text has of the items of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskContamination {
    /// Name of the task.
    pub task: String,
    /// Hash of its definition.
    pub definition: String,
    /// Names and hashes of its files.
    pub files: Vec<FileRecord>,
    /// Number of items that were looked for.
    pub items: usize,
    /// Hashes of the items that the training text has.
    pub found: BTreeSet<String>,
}

impl TaskItems {
    /// Reads all items of a task.
    ///
    /// # Errors
    /// If a file is missing or a row is wrong; the message has its file and line.
    pub fn read(definition: &Definition, data: &Path) -> Result<Self> {
        let loaded = Loaded::read(definition, data, 0, None)?;
        let items = loaded.all_items()?;
        Ok(Self { definition: definition.clone(), files: loaded.files, items })
    }

    /// Returns what the check calls the task.
    fn set(&self) -> String {
        format!("task {}", self.definition.name)
    }

    /// Returns the questions with their right answers, as texts to look for.
    pub fn texts(&self) -> TextList {
        let files: Vec<Arc<Path>> = self.files.iter().map(|file| Arc::from(file.path.as_path())).collect();
        let text = |item: &Item| ListedText {
            text: item.question.as_text(),
            file: Arc::clone(&files[item.file]),
            line: item.line,
        };
        TextList { name: self.set(), texts: self.items.iter().map(text).collect() }
    }
}

impl Contamination {
    /// Collects what a check found of these tasks in a corpus.
    pub fn new(corpus: String, tasks: &[TaskItems], report: &Report) -> Self {
        let found = |task: &TaskItems| {
            let places = report.found(&task.set()).unwrap_or_default();
            let key = TaskKey::new(&task.definition, (0, None), &task.files);
            TaskContamination {
                task: key.task,
                definition: key.definition,
                files: key.files,
                items: task.items.len(),
                found: places.into_iter().map(|place| task.items[place].hash.clone()).collect(),
            }
        };
        Self { version: VERSION, corpus, tasks: tasks.iter().map(found).collect() }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        write(path, &json(self)?)
    }

    /// Reads a file that [`Contamination::write`] wrote.
    ///
    /// # Errors
    /// If it cannot be read, or has another form.
    pub fn read(path: &Path) -> Result<Self> {
        let read: Self =
            parse_json(path, &regular::read(path, MAX_TEXT)?, "the items that training text has")?;
        if read.version != VERSION {
            return Err(Error::usage(format!(
                "{}: this is version {} of the file, and xrun reads {VERSION}; make it again with xrun data check --items",
                path.display(),
                read.version
            )));
        }
        Ok(read)
    }

    /// Returns the hashes of a task's items that the training text has.
    ///
    /// # Errors
    /// If the task was not looked for, or has other files or another definition by now.
    pub fn found(&self, key: &TaskKey) -> Result<&BTreeSet<String>> {
        let Some(task) = self.tasks.iter().find(|task| task.task == key.task) else {
            return Err(Error::usage(format!(
                "task {} was not looked for in {}; name it in xrun data check --tasks",
                shortened(&key.task, SHOWN),
                shortened(&self.corpus, SHOWN)
            )));
        };
        // An evaluation with examples reads further files.
        let has_files = task.files.iter().all(|file| key.files.contains(file));
        if task.definition != key.definition || !has_files {
            return Err(Error::usage(format!(
                "task {}: its definition or its files are not those that were looked for in {}; run xrun data check again",
                shortened(&key.task, SHOWN),
                shortened(&self.corpus, SHOWN)
            )));
        }
        Ok(&task.found)
    }
}
