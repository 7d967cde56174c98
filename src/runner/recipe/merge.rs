//! Merges the layers of a recipe with figment, which also tracks the origin of each value.
//!
//! Figment merges tables key by key and sorts their keys. In a recipe, a list or a table replaces the one
//! below it as a whole, and the keys of `[sweep] grid` keep their order. So figment sees only two levels per
//! layer, section and key, and every value is an opaque string of TOML.

use super::condition::UNSET;
use super::diagnostic::{self, Diagnostic};
use super::key::Key;
use super::layers::Document;
use super::optimizer;
use super::schema::{KEYS, Values};
use super::source::{Layer, Location, Origin};
use super::sources;
use super::stored::StoredKeys;
use super::toml_text::{Texts, parse_value, value_text};
use crate::error::{Error, Result};
use figment::value::{Dict, Map};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use toml::Table;

/// All layers of a recipe: the defaults at the bottom, then one per text, later ones on top.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    defaults: Defaults,
    figment: Figment,
    documents: Vec<Document>,
    /// Position of the document that sets each key, for those that one sets. Kept because figment merges
    /// again every time it is asked for a value.
    set_by: BTreeMap<&'static str, usize>,
}

impl Merged {
    /// Merges the defaults and `documents`; the last document wins.
    pub fn new(defaults: Defaults, documents: Vec<Document>) -> Self {
        let bottom = Figment::from(&defaults);
        let figment = documents.iter().fold(bottom, |figment, document| figment.merge(document));
        // If a layer has an error, `values` reports it.
        let sections = figment.data().ok().and_then(|mut profiles| profiles.remove(&Profile::Default));
        let sections = sections.unwrap_or_default();
        let names: Vec<Metadata> = documents.iter().map(Provider::metadata).collect();
        let setter = |key: &str| {
            let (section, name) = key.split_once('.')?;
            let value = sections.get(section)?.as_dict()?.get(name)?;
            let name = figment.get_metadata(value.tag())?;
            names.iter().position(|document| document == name)
        };
        let set = documents.iter().flat_map(|document| document.set.keys());
        let set_by = set.filter_map(|key| Some((*key, setter(key)?))).collect();
        Self { defaults, figment, documents, set_by }
    }

    /// Returns these layers with more on top.
    pub fn with(&self, documents: Vec<Document>) -> Self {
        Self::new(self.defaults.clone(), self.documents.iter().cloned().chain(documents).collect())
    }

    /// Returns the value of every key.
    ///
    /// # Errors
    /// A usage error that points at a value that the structs reject.
    pub fn values(&self) -> Result<Values> {
        let sections: BTreeMap<String, BTreeMap<String, Opaque>> =
            self.figment.extract().map_err(|e| self.refused(e))?;
        let mut table = Table::new();
        for (section, keys) in sections {
            let keys: Table = keys.into_iter().map(|(key, Opaque(value))| (key, value)).collect();
            let keys = sources::nest(&section, keys);
            table.insert(section, keys.into());
        }
        // Every value was already checked against its row of the table. The only possible error left is a row
        // whose values do not fit the struct's field.
        Values::deserialize(table).map_err(|e| {
            Error::failed(format!("the table of keys and the recipe disagree: {e}; please report this"))
        })
    }

    /// Returns the location that sets `key`; `None` if it has its default.
    pub fn locate(&self, key: &str) -> Option<&Location> {
        let document = &self.documents[*self.set_by.get(key)?];
        document.set.get(key).map(|assignment| &assignment.at)
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

    /// Returns true if a resolved recipe sets `key`, and no layer on top of it does.
    pub fn is_resolved(&self, key: &str) -> bool {
        let is_file = |at: &Location| matches!(at.source.origin, Origin::File(_));
        self.defaults.is_resolved && self.locate(key).is_some_and(is_file)
    }

    /// Returns the location of `key` in the text that this metadata belongs to.
    fn located(&self, key: &str, metadata: &Metadata) -> Option<&Location> {
        let document = self.documents.iter().find(|document| document.metadata() == *metadata)?;
        document.set.get(key).map(|assignment| &assignment.at)
    }

    /// Converts figment's errors to diagnostics. Key path and metadata give the location in the text.
    fn refused(&self, error: figment::Error) -> Error {
        let diagnostics: Vec<Diagnostic> = error
            .into_iter()
            .map(|e| {
                let path = e.path.join(".");
                let diagnostic =
                    Diagnostic::new(format!("{path}: {}", e.kind), "`xrun schema` prints every key")
                        .key(&path);
                match e.metadata.as_ref().and_then(|metadata| self.located(&path, metadata)) {
                    Some(at) => diagnostic.mark(&at.source, at.value.clone(), ""),
                    None => diagnostic,
                }
            })
            .collect();
        diagnostic::error(&diagnostics)
    }
}

/// Returns keys in the form that figment needs: `section → key → TOML text`.
fn dict<'a>(values: impl Iterator<Item = (&'a str, String)>) -> Map<Profile, Dict> {
    let mut sections: BTreeMap<&str, Dict> = BTreeMap::new();
    for (path, text) in values {
        let (section, key) = path.split_once('.').expect("every path of the table is section.name");
        sections.entry(section).or_default().insert(key.to_owned(), text.into());
    }
    Profile::Default
        .collect(sections.into_iter().map(|(name, keys)| (name.to_owned(), keys.into())).collect())
}

/// The bottom layer: the default of every key that has one.
///
/// A stored recipe may come from a version that did not have a key. The key's default today may differ from
/// what that version did, which is the key's implied value.
#[derive(Clone, Debug, Default)]
pub(super) struct Defaults {
    /// Keys that take their implied value instead of their default.
    implied: BTreeSet<&'static str>,
    /// True for the layer below a resolved recipe.
    is_resolved: bool,
}

impl Defaults {
    /// Returns the bottom layer of a resolved recipe: keys that it leaves out take their implied value.
    pub fn from_resolved() -> Self {
        // Keys whose implied value is `unset` have no default, or are hyperparameters of an optimizer.
        let implied = KEYS.iter().filter(|key| key.implied.is_some_and(|value| value != UNSET));
        Self { implied: implied.map(|key| key.path).collect(), is_resolved: true }
    }

    /// Returns the bottom layer of a run's `recipe.toml`. `resolved` are the keys of the run's resolved
    /// recipe: the run knew these, so they keep their default; other keys take their implied value.
    pub fn from_run_copy(resolved: &StoredKeys) -> Self {
        let Self { mut implied, .. } = Self::from_resolved();
        implied.retain(|path| resolved.value(path).is_none());
        Self { implied, is_resolved: false }
    }

    fn value(&self, key: &Key, default: Option<String>) -> Option<String> {
        let implied = key.implied.filter(|_| self.implied.contains(key.path));
        implied.map_or(default, |implied| Some(implied.to_owned()))
    }
}

impl Provider for &Defaults {
    fn metadata(&self) -> Metadata {
        Metadata::named("default")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let defaults = KEYS.iter().map(|key| (key, Texts::defaults().get(key)));
        // The defaults of hyperparameters depend on the optimizer, which a higher layer may choose.
        let defaults = defaults.filter(|(key, _)| !optimizer::is_hyperparameter(key));
        Ok(dict(defaults.filter_map(|(key, value)| Some((key.path, self.value(key, value)?)))))
    }
}

impl Provider for Document {
    fn metadata(&self) -> Metadata {
        Metadata::from(self.source.name(), self.source.id())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(dict(self.set.iter().map(|(path, assignment)| (*path, value_text(&assignment.value)))))
    }
}

/// A value that figment holds as TOML text.
struct Opaque(toml::Value);

impl<'de> Deserialize<'de> for Opaque {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_value(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::layers::Layers;
    use crate::recipe::source::Source;

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
    fn every_value_passes_through_figment_unchanged() {
        for key in KEYS.iter() {
            let mut layers = Layers::default();
            layers
                .files(Source::new(Origin::File("x.toml".into()), format!("{} = {}", key.path, key.example)));
            let written = &layers.documents[0].set[key.path].value;
            assert_eq!(parse_value(&value_text(written)).as_ref(), Ok(written), "{}", key.path);
        }
    }

    #[test]
    fn a_refused_value_is_underlined_where_its_layer_sets_it() {
        let merged = merged("[optimizer]\nlr = 0.5\n", "[optimizer]\nlr = 0.25\n", &[]);
        let mut error = figment::Error::from("no such number".to_owned()).with_path("optimizer.lr");
        error.metadata = merged.figment.find_metadata("optimizer.lr").cloned();
        let error = merged.refused(error);
        assert_eq!(error.problems()[0].keys, ["optimizer.lr"], "{error}");
        assert_eq!(error.problems()[0].place.as_deref(), Some("top.toml:2:6"), "{error}");
        assert!(error.message().contains("no such number") && error.message().contains("0.25"), "{error}");
    }
}
