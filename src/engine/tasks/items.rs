//! The items of a task: rows of its files, and what the definition's templates make of them.

use super::definition::{Definition, key};
use super::files;
use super::python;
use super::random::PythonRandom;
use super::rule::{ChoiceRule, RequestRule, Rules};
use super::template::seen;
use crate::data::{Row, RowBudget, RowFile, collect_in_order};
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most choices of an item, and the most right answers.
const MAX_CHOICES: usize = 64;
const MAX_ANSWERS: usize = 4096;

/// Characters of a value that a message shows.
const SHOWN: usize = 80;

/// Seed of the order in which nanochat takes the rows of a task (`scripts/base_eval.py`).
const CORE_SHUFFLE_SEED: u64 = 1337;

/// A file of a task, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFile {
    /// Path of the file.
    pub path: PathBuf,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub hash: String,
    /// Its number of rows.
    pub rows: usize,
}

/// An item, rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// BLAKE3 of the item's fields, in hexadecimal: the same whatever the format of the file, the place in
    /// it, and the prompt.
    pub hash: String,
    /// The configuration it belongs to, by its place in the definition.
    pub configuration: usize,
    /// Its file, by its place among the task's files, and its line there.
    pub file: usize,
    pub line: usize,
    /// Which items share a passage: equal for these, different for others.
    pub cluster: String,
    /// What is asked.
    pub question: Question,
}

/// What an item asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Which of several continuations follows.
    Choices { context: String, choices: Vec<String>, gold: usize },
    /// Which of several contexts a continuation follows.
    Contexts { contexts: Vec<String>, continuation: String, gold: usize },
    /// How likely a continuation is.
    Completion { context: String, continuation: String },
    /// How likely a text is.
    Text(String),
    /// What the model answers; any of these is right.
    Generation { context: String, answers: Vec<String> },
}

/// A row and where it is from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SourceRow {
    file: usize,
    row: Row,
}

impl Question {
    /// Returns the question and its right answer as one text, which training text should not have.
    pub fn as_text(&self) -> String {
        let before = match self {
            Self::Choices { context, .. }
            | Self::Completion { context, .. }
            | Self::Generation { context, .. } => context,
            Self::Contexts { contexts, gold, .. } => &contexts[*gold],
            Self::Text(text) => return text.clone(),
        };
        format!("{before} {}", self.answer())
    }

    /// Checks that nothing that is scored is empty: no token could be predicted.
    fn check(&self) -> Result<()> {
        let is_empty = |text: &&String| python::strip(text).is_empty();
        let what = match self {
            Self::Choices { choices, .. } => choices
                .iter()
                .position(|choice| is_empty(&choice))
                .map(|place| format!("choice {} of {}", place + 1, choices.len())),
            Self::Contexts { continuation, .. } | Self::Completion { continuation, .. } => {
                Some(continuation).filter(is_empty).map(|_| "the continuation".to_owned())
            }
            Self::Text(text) => Some(text).filter(is_empty).map(|_| "the text".to_owned()),
            Self::Generation { answers, .. } => {
                answers.iter().all(|answer| is_empty(&answer)).then(|| "every right answer".to_owned())
            }
        };
        match what {
            Some(what) => Err(Error::usage(format!(
                "{what} is empty, so it cannot be scored; correct the row or remove it"
            ))),
            None => Ok(()),
        }
    }
}

impl SourceRow {
    /// Returns true if both rows have the same fields.
    pub fn has_fields_of(&self, other: &Self) -> bool {
        self.row.fields == other.row.fields
    }
}

/// The rows of one split.
#[derive(Clone, Debug, Default)]
pub(super) struct Split {
    pub rows: Vec<SourceRow>,
}

/// The rows of a configuration: its items, and the split that examples come from.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub name: String,
    pub items: Split,
    /// `None` if examples come from the split of the items.
    pub pool: Option<Split>,
}

impl Part {
    /// Returns the rows that examples come from.
    pub fn pool(&self) -> &[SourceRow] {
        &self.pool.as_ref().unwrap_or(&self.items).rows
    }
}

/// The files of a task, read.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub(super) definition: Definition,
    pub(super) parts: Vec<Part>,
    /// The files that were read.
    pub files: Vec<TaskFile>,
}

impl Loaded {
    /// Reads the rows of a task below the user's data folder, and at most `limit` items of each of its
    /// configurations. Examples are read only if there are any.
    ///
    /// # Errors
    /// If files are missing, are wrong, or have more rows than a split may have.
    pub fn read(definition: &Definition, data: &Path, shots: usize, limit: Option<usize>) -> Result<Self> {
        let mut loaded = Self { definition: definition.clone(), parts: Vec::new(), files: Vec::new() };
        let (mut items_left, mut pool_left) = (RowBudget::new(), RowBudget::new());
        let source = &definition.source;
        for name in definition.configurations() {
            let mut items = loaded.split(data, name, &source.split, &mut items_left)?;
            let is_own = definition.examples.split == source.split;
            let pool = match shots > 0 && !is_own {
                true => Some(loaded.split(data, name, &definition.examples.split, &mut pool_left)?),
                false => None,
            };
            if items.rows.is_empty() {
                return Err(Error::usage(format!(
                    "task {}: the split {:?} of {} has no rows",
                    definition.name,
                    source.split,
                    if name.is_empty() { &source.repository } else { name }
                )));
            }
            if definition.rules == Rules::Core {
                let order = PythonRandom::new(CORE_SHUFFLE_SEED).shuffle(items.rows.len());
                items.rows = order.into_iter().map(|at| items.rows[at].clone()).collect();
                items.rows.truncate(limit.unwrap_or(usize::MAX));
            }
            loaded.parts.push(Part { name: name.to_owned(), items, pool });
        }
        Ok(loaded)
    }

    fn split(
        &mut self,
        data: &Path,
        configuration: &str,
        split: &str,
        left: &mut RowBudget,
    ) -> Result<Split> {
        let mut found = Split::default();
        for path in files::of_split(&self.definition, data, configuration, split)? {
            let read = RowFile::read(&path, left)?;
            let file = self.files.len();
            self.files.push(TaskFile { path: read.path, hash: read.hash, rows: read.rows.len() });
            found.rows.extend(read.rows.into_iter().map(|row| SourceRow { file, row }));
        }
        Ok(found)
    }

    /// Renders the items of a configuration, at most `limit`.
    ///
    /// # Errors
    /// If an item lacks a field, has an empty or missing answer, or a template fails. The message has file,
    /// line and the next step.
    pub(super) fn items(&self, part: usize, limit: usize) -> Result<Vec<Item>> {
        let rows = &self.parts[part].items.rows;
        collect_in_order(rows.par_iter().take(limit).map(|place| self.item(part, place)))
    }

    /// Renders all items.
    ///
    /// # Errors
    /// If a row does not fit the definition; the message has its file and line.
    pub fn all_items(&self) -> Result<Vec<Item>> {
        let parts = (0..self.parts.len()).map(|part| self.items(part, usize::MAX));
        Ok(parts.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Renders the rows of a pool that are drawn, by their places in it.
    pub(super) fn examples(&self, part: usize, drawn: &[usize]) -> Result<BTreeMap<usize, Question>> {
        let pool = self.parts[part].pool();
        let rendered = drawn.par_iter().map(|&at| Ok((at, self.question(part, &pool[at])?)));
        Ok(collect_in_order(rendered)?.into_iter().collect())
    }

    fn item(&self, part: usize, place: &SourceRow) -> Result<Item> {
        let question = self.question(part, place)?;
        question.check().map_err(|e| e.context(self.place(place.file, place.row.line)))?;
        let fields = &place.row.fields;
        let source = &self.definition.source;
        let hash = hash(&source.fields, fields);
        let shared = source.cluster.as_ref().and_then(|name| fields.get(name)).map(Value::to_string);
        // An empty passage is shared by nothing.
        let cluster = match shared.filter(|text| text.trim_matches('"').trim() != "") {
            Some(text) => blake3::hash(text.as_bytes()).to_hex().to_string(),
            None => format!("{}:{}", place.file, place.row.line),
        };
        let configuration = part;
        Ok(Item { hash, configuration, file: place.file, line: place.row.line, cluster, question })
    }

    /// Says where a row is.
    pub(super) fn place(&self, file: usize, line: usize) -> String {
        format!("{}:{line}", self.files[file].path.display())
    }

    fn question(&self, part: usize, place: &SourceRow) -> Result<Question> {
        self.render(part, &place.row.fields).map_err(|e| e.context(self.place(place.file, place.row.line)))
    }

    fn render(&self, part: usize, fields: &Map<String, Value>) -> Result<Question> {
        let definition = &self.definition;
        let is_missing = |name: &&String| fields.get(*name).is_none_or(Value::is_null);
        if let Some(name) = definition.source.fields.iter().find(is_missing) {
            let there = fields.keys().take(12).map(|name| shortened(&printable(name), SHOWN));
            let there = there.collect::<Vec<_>>().join(", ");
            return Err(Error::usage(format!(
                "the item has no {name:?}, but {}; these are not the files of task {}, or of another version: download {} \
                 again, or correct the row",
                if there.is_empty() { "nothing" } else { &there },
                definition.name,
                definition.source.repository
            )));
        }
        let values = self.values(part, fields);
        let text = |key: &str| definition.templates.render(key, &values);
        Ok(match definition.request {
            RequestRule::Choices { choices } => {
                let context = text(key::CONTEXT)?;
                let choices = self.choices(choices, &values, fields)?;
                let gold = gold(&text(key::GOLD)?, choices.len())?;
                Question::Choices { context, choices, gold }
            }
            RequestRule::Contexts { contexts } => {
                let contexts = self.choices(contexts, &values, fields)?;
                let gold = gold(&text(key::GOLD)?, contexts.len())?;
                let continuation = text(key::CONTINUATION)?;
                Question::Contexts { contexts, continuation, gold }
            }
            RequestRule::Completion => {
                Question::Completion { context: text(key::CONTEXT)?, continuation: text(key::CONTINUATION)? }
            }
            RequestRule::Text => Question::Text(text(key::TEXT)?),
            RequestRule::Generation => {
                Question::Generation { context: text(key::CONTEXT)?, answers: self.answers(&values, fields)? }
            }
        })
    }

    /// Renders the description in front of the prompts of a configuration.
    pub(super) fn description(&self, part: usize) -> Result<String> {
        let values = self.values(part, &Map::new());
        self.definition
            .templates
            .render(key::DESCRIPTION, &values)
            .map_err(|e| e.context(self.definition.origin.clone()))
    }

    /// Returns what templates may name: the fields of the item, and the name of the configuration.
    fn values(&self, part: usize, fields: &Map<String, Value>) -> minijinja::Value {
        let named = fields.iter().map(|(name, value)| (name.clone(), seen(value)));
        let configuration = ("configuration".to_owned(), self.parts[part].name.as_str().into());
        minijinja::Value::from_pairs(named.chain([configuration]))
    }

    fn choices(
        &self,
        rule: ChoiceRule,
        values: &minijinja::Value,
        fields: &Map<String, Value>,
    ) -> Result<Vec<String>> {
        let templates = &self.definition.templates;
        match rule {
            ChoiceRule::Listed(count) => {
                (0..count).map(|i| templates.render(&key::listed(i), values)).collect()
            }
            ChoiceRule::Each { count } => {
                let each = self.definition.each.as_deref().unwrap_or_default();
                let entries = list(fields, each)?;
                if let Some(count) = count.filter(|count| *count != entries.len()) {
                    return Err(Error::usage(format!(
                        "{each} has {} choices, and task {} promises {count} (prompt.count); correct the row, or remove \
                         prompt.count if items may differ",
                        entries.len(),
                        self.definition.name
                    )));
                }
                if entries.len() < 2 || entries.len() > MAX_CHOICES {
                    return Err(Error::usage(format!(
                        "{each} has {} choices, and an item has 2 to {MAX_CHOICES}; correct the row",
                        entries.len()
                    )));
                }
                entries.iter().map(|entry| self.render_entry(key::CHOICE, "choice", entry, values)).collect()
            }
        }
    }

    /// Returns the right answers of an item whose answer the model generates.
    fn answers(&self, values: &minijinja::Value, fields: &Map<String, Value>) -> Result<Vec<String>> {
        let Some(each) = &self.definition.each else {
            return Ok(vec![self.definition.templates.render(key::ANSWER, values)?]);
        };
        let entries = list(fields, each)?;
        if entries.is_empty() || entries.len() > MAX_ANSWERS {
            return Err(Error::usage(format!(
                "{each} has {} right answers, and an item has 1 to {MAX_ANSWERS}; correct the row or remove it",
                entries.len()
            )));
        }
        entries.iter().map(|entry| self.render_entry(key::ANSWER, "entry", entry, values)).collect()
    }

    /// Renders a template for the entry of a list, which it sees by this name.
    fn render_entry(
        &self,
        template: &str,
        name: &str,
        entry: &Value,
        values: &minijinja::Value,
    ) -> Result<String> {
        let entry = minijinja::Value::from_pairs([(name, seen(entry))]);
        self.definition.templates.render(template, &minijinja::context! { ..entry, ..values.clone() })
    }
}

/// Returns the list that a path of names leads to, such as `choices.text`.
fn list<'f>(fields: &'f Map<String, Value>, path: &str) -> Result<&'f Vec<Value>> {
    let mut names = path.split('.');
    let first = names.next().and_then(|name| fields.get(name));
    let found = names.try_fold(first, |value, name| value.map(|value| value.get(name)));
    match found.flatten() {
        Some(Value::Array(entries)) => Ok(entries),
        Some(other) => Err(Error::usage(format!(
            "{path} is no list but {}; prompt.each names a list of the item",
            shortened(&printable(&other.to_string()), SHOWN)
        ))),
        None => Err(Error::usage(format!(
            "the item has no {path}, which prompt.each names as a list of the item"
        ))),
    }
}

/// Returns the place of the right choice.
fn gold(text: &str, choices: usize) -> Result<usize> {
    match text.trim().parse::<usize>() {
        Ok(gold) if gold < choices => Ok(gold),
        _ => Err(Error::usage(format!(
            "the right choice is {:?}, and the item has the choices 0 to {}; a split without answers cannot be scored: \
             correct the row, or use another split (source.split)",
            shortened(&printable(text), SHOWN),
            choices - 1
        ))),
    }
}

/// Hashes the fields of an item: names and values in the order of the definition, objects by their names.
fn hash(names: &[String], fields: &Map<String, Value>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("xrun item of a task");
    for name in names {
        hasher.update(name.as_bytes()).update(b"\0");
        hasher.update(canonical(fields.get(name).unwrap_or(&Value::Null)).as_bytes()).update(b"\0");
    }
    hasher.finalize().to_hex().to_string()
}

/// Writes a value as JSON, with the names of objects in order.
fn canonical(value: &Value) -> String {
    match value {
        Value::Array(entries) => {
            format!("[{}]", entries.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            let written = sorted
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::String(name.clone()), canonical(value)));
            format!("{{{}}}", written.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}
