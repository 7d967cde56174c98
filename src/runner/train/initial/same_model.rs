//! Compares a recipe's model with the one whose weights it begins with, key by key.

use crate::data::tokenizer::FILE as TOKENIZER;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::hugging_face::{CONFIG, Keys};
use crate::plan::Model;
use crate::policy::Position;
use crate::recipe::{self, Recipe};
use crate::results::names::RESOLVED;
use std::path::Path;
use toml::{Table, Value};

pub(super) const INIT_FROM: &str = "model.init_from";
pub(super) const INIT_OPTIMIZER: &str = "model.init_optimizer";

/// Model keys that may differ from the model to begin with: they set initial values or regularization, not
/// the model itself.
const MAY_DIFFER: [&str; 6] =
    ["model.dropout", "model.init_std", "model.residual_init", "model.head_init", INIT_FROM, INIT_OPTIMIZER];

/// A model as keys of a recipe describe it.
pub(super) struct Described {
    /// A recipe with the model's keys, and no others.
    recipe: Recipe,
    /// The keys, without their section.
    keys: Table,
    vocab_size: usize,
    /// Rows of its table of positions; 0 without one.
    learned_positions: usize,
    /// The file that has the keys.
    file: &'static str,
    /// What holds the model, in one word.
    place: &'static str,
    /// How to use its values.
    help: String,
}

/// Loads a recipe with the keys of a model in a file, and `section.key=value` arguments on top.
fn load(file: &str, keys: &Table, changes: &[String]) -> Result<Recipe> {
    let toml = Table::from_iter([("model".to_owned(), Value::Table(keys.clone()))]).to_string();
    recipe::load_str(Path::new(file), &toml, changes, std::iter::empty(), &Machine::none())
}

impl Described {
    /// Describes the model of a configuration, which is at `place`.
    ///
    /// # Errors
    /// A usage error if xrun has no such model.
    pub(super) fn by_config(keys: &Keys, place: &Path) -> Result<Self> {
        let shown = place.display();
        let mut table: Table =
            toml::from_str(&keys.to_toml()).map_err(|e| Error::usage(format!("{shown}: {e}")))?;
        let table = match table.remove("model") {
            Some(Value::Table(table)) => table,
            _ => Table::new(),
        };
        let recipe = load(CONFIG, &table, &[]).map_err(|e| keys.explain(&e, &shown.to_string()))?;
        let is_learned = recipe.values().model.position == Position::Learned;
        Ok(Self {
            recipe,
            keys: table,
            vocab_size: keys.vocab_size,
            learned_positions: if is_learned { keys.context } else { 0 },
            file: CONFIG,
            place: "folder",
            help: "use the values of the folder; `xrun import FOLDER` writes a recipe with them".to_owned(),
        })
    }

    /// Describes the model of the run in a folder, given its recipe and the number of entries in its
    /// tokenizer.
    ///
    /// # Errors
    /// If the recipe contradicts itself.
    pub(super) fn by_recipe(run: &Path, recipe: &Recipe, tokens: usize) -> Result<Self> {
        let model = Model::from_recipe(recipe, tokens)?;
        let mut keys = Table::try_from(&recipe.values().model)
            .map_err(|e| Error::failed(format!("the keys of [model]: {e}")))?;
        for of_beginning in [INIT_FROM, INIT_OPTIMIZER] {
            keys.remove(of_beginning.trim_start_matches("model."));
        }
        let rows = i64::try_from(model.vocab_size).unwrap_or(i64::MAX);
        keys.insert("vocab_size".to_owned(), Value::Integer(rows));
        Ok(Self {
            recipe: load(RESOLVED, &keys, &[])?,
            keys,
            vocab_size: model.vocab_size,
            learned_positions: model.learned_positions,
            file: RESOLVED,
            place: "run",
            help: format!(
                "use the values of the run, which {} has, and its tokenizer, {}",
                run.join(RESOLVED).display(),
                run.join(TOKENIZER).display()
            ),
        })
    }

    /// Returns the model that a recipe's keys describe, in one form whatever the ways to write it.
    fn model(&self, recipe: &Recipe) -> Model {
        Model::from_keys(&recipe.values().model, self.vocab_size).canonical()
    }

    /// Returns true if the value of another recipe for a key makes it a different model.
    fn is_changed_by(&self, key: &str, value: &str) -> bool {
        let changed = match value {
            recipe::UNSET => {
                let mut keys = self.keys.clone();
                keys.remove(key.trim_start_matches("model."));
                load(self.file, &keys, &[])
            }
            value => load(self.file, &self.keys, &[format!("{key}={value}")]),
        };
        let own = self.model(&self.recipe);
        changed.map_or(true, |changed| with_initial_values_of(&own, self.model(&changed)) != own)
    }
}

/// Rejects a recipe that describes a different model than the one to begin with. Two ways to write one model,
/// such as an unset key and its default, are the same.
///
/// # Errors
/// A usage error that names every differing key with both values.
pub(super) fn check_keys(recipe: &Recipe, planned: &Model, theirs: &Described) -> Result<()> {
    let own = theirs.model(&theirs.recipe);
    let in_recipe = Model { learned_positions: 0, ..planned.canonical() };
    let mut differing = Vec::new();
    if with_initial_values_of(&own, in_recipe.clone()) != own {
        let changes = recipe::diff(recipe.values(), theirs.recipe.values()).into_iter();
        let changes = changes.filter(|c| c.key.starts_with("model.") && !MAY_DIFFER.contains(&c.key));
        differing = changes
            .filter(|change| change.key != "model.vocab_size" || in_recipe.vocab_size != own.vocab_size)
            .filter(|change| {
                change.key == "model.vocab_size" || theirs.is_changed_by(change.key, &change.old)
            })
            .map(|change| (change.key, change.old, change.new))
            .collect();
    }
    let learned = [planned.learned_positions, theirs.learned_positions];
    if theirs.learned_positions > 0 && learned[0] != learned[1] {
        differing.push(("training.seq_len", learned[0].to_string(), learned[1].to_string()));
    }
    if differing.is_empty() {
        return Ok(());
    }
    let mut marked = vec![INIT_FROM];
    marked.extend(differing.iter().map(|(key, ..)| *key).filter(|key| recipe.locate(key).is_some()));
    let place = theirs.place;
    let listed =
        differing.iter().map(|(key, mine, theirs)| format!("{key} is {mine}, but {theirs} in the {place}"));
    Err(recipe.error(
        &marked,
        format!(
            "the recipe describes a different model than the {place}: {}",
            listed.collect::<Vec<_>>().join("; ")
        ),
        theirs.help.clone(),
    ))
}

/// Returns a model with the initial values and the dropout of another, which are not part of its weights.
fn with_initial_values_of(other: &Model, model: Model) -> Model {
    let Model { dropout, init_std, residual_init, head_init, .. } = *other;
    Model { dropout, init_std, residual_init, head_init, ..model }
}
