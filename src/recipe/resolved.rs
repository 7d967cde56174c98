//! A recipe after all layers, which still knows where each value came from.

use super::diagnostic::{self, Diagnostic};
use super::key::{Class, Key};
use super::layers::Layers;
use super::schema::Recipe;
use super::source::{Layer, Location};
use super::table::{KEYS, SECTIONS};
use super::values::Validation;
use crate::error::{Error, IoContext, Result};
use serde::de::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A complete, checked recipe with the layer of every value.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The values.
    pub recipe: Recipe,
    /// The file name of the recipe without its ending; names the run folder.
    pub name: String,
    /// The recipe files as they were written, base first.
    pub as_written: Vec<(PathBuf, String)>,
    /// The folder of the recipe; empty for the current one.
    pub base_dir: PathBuf,
    located: BTreeMap<&'static str, Location>,
}

impl Resolved {
    /// Puts checked layers on top of the defaults.
    pub(super) fn new(name: String, base_dir: PathBuf, layers: Layers) -> Result<Self> {
        let mut table = Table::new();
        let mut located = BTreeMap::new();
        for (path, assignment) in layers.set {
            let (section, key) = path.split_once('.').expect("every path of the table is section.name");
            let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                section.insert(key.to_owned(), assignment.value);
            }
            located.insert(path, assignment.at);
        }
        // Every value was checked against the table; what is left is a table that disagrees with the structs.
        let recipe = Recipe::deserialize(table).map_err(|e| {
            Error::failed(format!("the table of keys and the recipe disagree: {e}; please report this"))
        })?;
        let as_written = layers.files.iter().map(|f| (PathBuf::from(f.name()), f.text.clone())).collect();
        Ok(Self { recipe, name, as_written, base_dir, located })
    }

    /// Where `key` was set, unless it has its default value.
    pub fn locate(&self, key: &str) -> Option<&Location> {
        self.located.get(key)
    }

    /// The layer that the value of `key` comes from.
    pub fn layer(&self, key: &str) -> Layer {
        self.locate(key).map_or(Layer::Default, Location::layer)
    }

    /// Every key with its value in TOML (`None` when unset) and its layer, in the order of the table.
    pub fn explain(&self) -> Vec<(&'static Key, Option<String>, Layer)> {
        values(&self.recipe).into_iter().map(|(key, value)| (key, value, self.layer(key.path))).collect()
    }

    /// A usage error that points at the first of `keys`, and at the others as context. `message` names the value and
    /// what is wrong with it, `help` the next step.
    pub fn error(&self, keys: &[&str], message: impl Into<String>, help: impl Into<String>) -> Error {
        diagnostic::error(&[self.diagnostic(keys, message, help)])
    }

    pub(super) fn diagnostic(
        &self,
        keys: &[&str],
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Diagnostic {
        let values = values(&self.recipe);
        let mut diagnostic = Diagnostic::new(message, help);
        for path in keys {
            let value =
                values.iter().find(|(key, _)| key.path == *path).and_then(|(_, value)| value.as_ref());
            let fact = value.map_or(format!("{path} is unset"), |value| format!("{path} = {value}"));
            diagnostic = match self.locate(path) {
                Some(at) => {
                    let label = if keys.len() > 1 { fact } else { String::new() };
                    diagnostic.mark(&at.source, at.value.clone(), label)
                }
                None if value.is_some() => diagnostic.note(format!("{fact} by default")),
                None => diagnostic.note(fact),
            };
        }
        diagnostic
    }

    /// `value` of `key` as a path: relative to the file that sets it, else to the current directory.
    pub fn path_of(&self, key: &str, value: impl AsRef<Path>) -> PathBuf {
        self.locate(key).map_or(Path::new(""), Location::folder).join(value)
    }

    /// Replaces the paths of the corpus, the tokenizer and the held-out text by absolute ones, so that the recipe as
    /// TOML means the same wherever it is copied. `names` are the values that are not paths, by key.
    ///
    /// # Errors
    /// When the current directory is gone.
    pub fn make_paths_absolute(&mut self, names: &[&str]) -> Result<()> {
        let absolute = |resolved: &Self, key: &str, value: &str| -> Result<String> {
            if names.contains(&value) {
                return Ok(value.to_owned());
            }
            let path = resolved.path_of(key, value);
            let path = std::path::absolute(&path).at("find", &path)?;
            Ok(path.to_string_lossy().into_owned())
        };
        self.recipe.data.corpus = absolute(self, "data.corpus", &self.recipe.data.corpus)?;
        self.recipe.data.tokenizer = absolute(self, "data.tokenizer", &self.recipe.data.tokenizer)?;
        if let Validation::Path(file) = &self.recipe.data.validation {
            self.recipe.data.validation = Validation::Path(absolute(self, "data.validation", file)?);
        }
        Ok(())
    }

    /// The whole recipe as TOML, section by section; unset keys are comments. Reads back to the same [`Recipe`].
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let values = values(&self.recipe);
        for (section, _) in SECTIONS {
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[{section}]");
            for (key, value) in values.iter().filter(|(key, _)| key.section() == *section) {
                let _ = match value {
                    Some(value) => writeln!(text, "{} = {value}", key.name()),
                    None => writeln!(text, "# {} is unset: {}", key.name(), key.unset),
                };
            }
        }
        text
    }

    /// blake3, in hexadecimal, of every training and execution key with its value.
    ///
    /// Bookkeeping keys, the layers and the spelling do not matter: two recipes with the same hash
    /// run the same, as far as the files that they name are the same.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (key, value) in values(&self.recipe) {
            if key.class != Class::Bookkeeping {
                hasher.update(format!("{} = {}\n", key.path, value.as_deref().unwrap_or("unset")).as_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// A key whose value is not the same in two recipes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Full path.
    pub key: &'static str,
    /// What changing it does, between these two recipes.
    pub class: Class,
    /// The first value in TOML, or `unset`.
    pub old: String,
    /// The second.
    pub new: String,
}

/// Every key that differs between `a` and `b`, in the order of the table.
///
/// As long as both recipes fix the same global batch, local batch size, accumulation and the number of ranks are of the
/// execution class; otherwise they change the global batch, and are of the training class.
pub fn diff(a: &Recipe, b: &Recipe) -> Vec<Change> {
    let global_kept = a.training.global_batch_size.is_some()
        && a.training.global_batch_size == b.training.global_batch_size;
    let changes = values(a).into_iter().zip(values(b)).filter(|((_, old), (_, new))| old != new);
    changes
        .map(|((key, old), (_, new))| {
            let class = match key.path {
                "training.local_batch_size" | "training.accumulation" | "parallelism.world_size" => {
                    if global_kept {
                        Class::Execution
                    } else {
                        Class::Training
                    }
                }
                _ => key.class,
            };
            let show = |value: Option<String>| value.unwrap_or_else(|| "unset".to_owned());
            Change { key: key.path, class, old: show(old), new: show(new) }
        })
        .collect()
}

/// The value of every key in TOML, `None` where it is unset.
pub(super) fn values(recipe: &Recipe) -> Vec<(&'static Key, Option<String>)> {
    // By way of JSON, which also has the unset values and seeds beyond TOML's integers.
    let recipe = serde_json::to_value(recipe).expect("the keys of every map in a recipe are texts");
    KEYS.iter().map(|key| (key, toml_text(&recipe[key.section()][key.name()]))).collect()
}

/// A value of a recipe as TOML text, the same for equal values however they were spelled.
pub fn value_text(value: &Value) -> String {
    serde_json::to_value(value).ok().as_ref().and_then(toml_text).unwrap_or_default()
}

/// A value in TOML on one line, with an exponent in small numbers; `None` for null.
fn toml_text(value: &Json) -> Option<String> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(flag) => flag.to_string(),
        Json::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
            Some(x) => format!("{x:?}"),
            None => n.to_string(),
        },
        Json::String(text) => quote(text),
        Json::Array(items) => {
            format!("[{}]", items.iter().filter_map(toml_text).collect::<Vec<_>>().join(", "))
        }
        Json::Object(table) if table.is_empty() => "{}".to_owned(),
        Json::Object(table) => {
            let entries: Vec<_> =
                table.iter().filter_map(|(k, v)| Some(format!("{} = {}", quote(k), toml_text(v)?))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
    })
}

/// A text as a TOML string.
fn quote(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// The name of a recipe: its file name without the ending.
pub(super) fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "recipe".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
