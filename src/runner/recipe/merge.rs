//! Merges the layers of a recipe: a key has the value of the highest layer that sets it.
//!
//! A list or a table replaces the one below it as a whole, and the keys of `[sweep] grid` keep their order.

use super::key::{Key, UNSET};
use super::layers::{Assignment, Document};
use super::optimizer;
use super::schema::{KEYS, Values};
use super::source::{Layer, Location, Origin};
use super::stored::StoredKeys;
use super::toml_text::{parse_value, values};
use crate::error::{Error, Result};
use serde::de::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use toml::{Table, Value};

/// All layers of a recipe: the defaults at the bottom, then one per text, later ones on top.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    defaults: Defaults,
    documents: Vec<Document>,
}

impl Merged {
    /// Merges the defaults and `documents`; the last document wins.
    pub fn new(defaults: Defaults, documents: Vec<Document>) -> Self {
        Self { defaults, documents }
    }

    /// Returns these layers with more on top.
    pub fn with(&self, documents: Vec<Document>) -> Self {
        Self::new(self.defaults.clone(), self.documents.iter().cloned().chain(documents).collect())
    }

    /// Returns the value of every key.
    ///
    /// # Errors
    /// If the table of keys and the structs disagree. Nothing else can be wrong: every value was checked
    /// against its row of the table.
    pub fn values(&self) -> Result<Values> {
        let disagree = |e: toml::de::Error| {
            Error::failed(format!("the table of keys and the recipe disagree: {e}; please report this"))
        };
        let mut sections: BTreeMap<&str, Table> = BTreeMap::new();
        let mut set = |key: &Key, value: Value| {
            sections.entry(key.section()).or_default().insert(key.name().to_owned(), value);
        };
        for (key, default) in self.defaults.values() {
            set(key, parse_value(&default).map_err(disagree)?);
        }
        for key in KEYS.iter() {
            if let Some(assignment) = self.assignment(key.path) {
                set(key, assignment.value.clone());
            }
        }
        let sections: Table =
            sections.into_iter().map(|(name, keys)| (name.to_owned(), keys.into())).collect();
        Values::deserialize(sections).map_err(disagree)
    }

    /// Returns the highest assignment of `key`; `None` if it has its default.
    fn assignment(&self, key: &str) -> Option<&Assignment> {
        self.documents.iter().rev().find_map(|document| document.set.get(key))
    }

    /// Returns the location that sets `key`; `None` if it has its default.
    pub fn locate(&self, key: &str) -> Option<&Location> {
        self.assignment(key).map(|assignment| &assignment.at)
    }

    /// Returns the layer that the value of `key` comes from.
    pub fn layer(&self, key: &str) -> Layer {
        self.locate(key).map_or(Layer::Default, Location::layer)
    }

    /// Returns the position of the layer that sets `key`. Layers with higher positions win; defaults have 0.
    pub fn position(&self, key: &str) -> usize {
        let Some(at) = self.locate(key) else { return 0 };
        match at.source.origin {
            Origin::File(_) | Origin::BuiltIn(_) => {
                1 + self.documents.iter().position(|one| Arc::ptr_eq(&one.source, &at.source)).unwrap_or(0)
            }
            Origin::Env(_) => usize::MAX - 1,
            Origin::CommandLine => usize::MAX,
        }
    }
}

/// The bottom layer: the default of every key that has one.
///
/// A stored recipe may come from a version that did not have a key. The key's default today may differ from
/// what that version did, which is the key's implied value.
#[derive(Clone, Debug, Default)]
pub(super) struct Defaults {
    /// Keys that take their implied value instead of their default.
    implied: BTreeSet<&'static str>,
}

impl Defaults {
    /// Returns the bottom layer of a resolved recipe: keys that it leaves out take their implied value.
    pub fn from_resolved() -> Self {
        // Keys whose implied value is `unset` have no default, or are hyperparameters of an optimizer.
        let implied = KEYS.iter().filter(|key| key.implied.is_some_and(|value| value != UNSET));
        Self { implied: implied.map(|key| key.path).collect() }
    }

    /// Returns the bottom layer of a run's `recipe.toml`. `resolved` are the keys of the run's resolved
    /// recipe: the run knew these, so they keep their default; other keys take their implied value.
    pub fn from_run_copy(resolved: &StoredKeys) -> Self {
        let Self { mut implied } = Self::from_resolved();
        implied.retain(|path| resolved.value(path).is_none());
        Self { implied }
    }

    /// Returns the keys that have a default, each with its value as TOML.
    fn values(&self) -> impl Iterator<Item = (&'static Key, String)> {
        // The defaults of hyperparameters depend on the optimizer, which a higher layer may choose.
        let defaults = values(&Values::default()).into_iter();
        defaults.filter(|(key, _)| !optimizer::is_hyperparameter(key)).filter_map(|(key, default)| {
            let implied = key.implied.filter(|_| self.implied.contains(key.path));
            Some((key, implied.map(str::to_owned).or(default)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::layers::Layers;
    use crate::recipe::source::Source;
    use crate::recipe::toml_text::value_text;

    /// Returns the layers of two recipe files, the second on top of the first, and of command-line arguments.
    fn merged(base: &str, top: &str, arguments: &[&str]) -> Merged {
        let mut layers = Layers::default();
        layers.files(Source::new(Origin::File("base.toml".into()), base));
        layers.files(Source::new(Origin::File("top.toml".into()), top));
        layers.command_line(&arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        assert!(layers.problems.is_empty(), "{:?}", layers.problems);
        Merged::new(Defaults::default(), layers.documents)
    }

    #[test]
    fn tables_and_lists_are_replaced_whole() {
        let base = "[sweep]\ngrid = { \"optimizer.lr\" = [1.0, 2.0], \"model.dim\" = [64] }\n\
                    [compare]\nchange = { \"engine.fused\" = false }\nrepeats = 7\n[optimizer]\nbetas = [0.1, 0.2]\n";
        let top = "[sweep.grid]\n\"training.seed\" = [3, 1, 2]\n\"model.dim\" = [32, 16]\n\
                   [compare]\nchange = { \"model.n_layers\" = 2 }\n";
        let values = merged(base, top, &["optimizer.betas=[0.3, 0.4]"]).values().unwrap();
        let grid: Vec<(&str, String)> =
            values.sweep.grid.iter().map(|(k, v)| (k.as_str(), v.to_string())).collect();
        assert_eq!(
            grid,
            [("training.seed", "[3, 1, 2]".into()), ("model.dim", "[32, 16]".into())],
            "in order"
        );
        assert_eq!(values.compare.change.keys().collect::<Vec<_>>(), ["model.n_layers"]);
        assert_eq!(values.compare.repeats, 7, "other keys of the section stay");
        assert_eq!(values.optimizer.values.pair("betas"), [0.3, 0.4]);
    }

    #[test]
    fn every_value_is_the_same_after_it_was_written_as_toml() {
        for key in KEYS.iter() {
            let mut layers = Layers::default();
            layers
                .files(Source::new(Origin::File("x.toml".into()), format!("{} = {}", key.path, key.example)));
            let written = &layers.documents[0].set[key.path].value;
            assert_eq!(parse_value(&value_text(written)).as_ref(), Ok(written), "{}", key.path);
        }
    }

    #[test]
    fn a_value_is_located_where_the_highest_layer_sets_it() {
        let merged = merged("[optimizer]\nlr = 0.5\n", "[optimizer]\nlr = 0.25\n", &[]);
        let at = merged.locate("optimizer.lr").unwrap();
        assert_eq!(at.source.place(at.value.start), "top.toml:2:6");
        assert_eq!(merged.values().unwrap().optimizer.lr, 0.25);
        assert!(merged.locate("optimizer.name").is_none());
    }
}
