//! The `[optimizer]` section: a name, a peak learning rate, and the hyperparameters that the named optimizer
//! declares.

use super::key::{Class::Training, Interval, Key, Type, UNSET};
use crate::optim::{self, Entry, Form, Hyperparameter, OPTIMIZERS, Value, Values};
use serde::Deserialize;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::BTreeMap;
use std::ops::Bound::Included;

/// `[optimizer]`: the optimizer and its settings.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Written")]
pub struct Optimizer {
    /// Name of the optimizer, one of [`optim::OPTIMIZERS`].
    pub name: String,
    /// Peak learning rate.
    pub lr: f64,
    /// The optimizer's hyperparameters.
    pub values: Values,
}

/// The section as layers set it: missing keys have their defaults.
#[derive(Default, Deserialize)]
struct Written {
    name: Option<String>,
    lr: Option<f64>,
    #[serde(flatten)]
    values: BTreeMap<String, Value>,
}

impl From<Written> for Optimizer {
    fn from(written: Written) -> Self {
        let name = written.name.unwrap_or_else(|| OPTIMIZERS[0].name.to_owned());
        let declared = optim::find(&name).map_or(&[][..], |entry| entry.hyperparameters);
        let values = Values::from_written(declared, &written.values);
        Self { name, lr: written.lr.unwrap_or(1e-3), values }
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        Written::default().into()
    }
}

impl Serialize for Optimizer {
    /// Writes every key of the section in the order of the table; null for keys that this optimizer does not
    /// have.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("lr", &self.lr)?;
        for name in optim::hyperparameter_names() {
            map.serialize_entry(name, &self.values.get(name))?;
        }
        map.end()
    }
}

/// Returns the keys of `[optimizer]`: the common ones, then the hyperparameters of every optimizer, a shared
/// name once.
pub(super) fn keys() -> Vec<Key> {
    let names: Vec<&'static str> = OPTIMIZERS.iter().map(|entry| entry.name).collect();
    let lr = Type::Number(Interval { low: Included(0.0), high: Included(10.0) });
    let mut keys = vec![
        Key::new("optimizer.name", Training, Type::Word(names.leak()), "The optimizer.", "\"sgd\"")
            .implied("\"adamw\""),
        Key::new("optimizer.lr", Training, lr, "Peak learning rate.", "3e-4").aliases(&["learning_rate"]),
    ];
    for entry in OPTIMIZERS {
        for hyperparameter in entry.hyperparameters {
            let key = key(hyperparameter);
            let unset = if is_default(entry) { "" } else { leak(format!("`{}` alone has it", entry.name)) };
            match keys.iter_mut().find(|known| known.path == key.path) {
                Some(known) => {
                    known.meaning = leak(format!("{} With {}: {}", known.meaning, entry.name, key.meaning));
                }
                None => keys.push(key.unset(unset)),
            }
        }
    }
    keys
}

/// Returns the hyperparameters of an optimizer as keys, each with its default in TOML.
pub(super) fn hyperparameters(entry: &'static Entry) -> impl Iterator<Item = (Key, String)> {
    entry
        .hyperparameters
        .iter()
        .map(|hyperparameter| (key(hyperparameter), hyperparameter.default.to_string()))
}

/// Returns true if some optimizers have the key and others may not.
pub(super) fn is_hyperparameter(key: &Key) -> bool {
    key.section() == "optimizer" && owners(key).next().is_some()
}

/// Returns the optimizers that have a key.
pub(super) fn owners(key: &Key) -> impl Iterator<Item = &'static Entry> {
    let name = key.name();
    OPTIMIZERS.iter().filter(move |entry| entry.hyperparameters.iter().any(|h| h.name == name))
}

/// Returns the setting that chooses the optimizer which has a key; `None` for keys that the default optimizer
/// has.
#[cfg(test)]
pub(super) fn choice_of_owner(key: &Key) -> Option<&'static str> {
    let owner = owners(key).next().filter(|owner| key.section() == "optimizer" && !is_default(owner))?;
    Some(leak(format!("optimizer.name={}", owner.name)))
}

fn is_default(entry: &Entry) -> bool {
    entry.name == OPTIMIZERS[0].name
}

fn key(hyperparameter: &Hyperparameter) -> Key {
    let kind = match hyperparameter.form {
        Form::Number(low, high) => Type::Number(Interval { low, high }),
        Form::Pair(low, high) => Type::Pair(Interval { low, high }),
    };
    let path = leak(format!("optimizer.{}", hyperparameter.name));
    Key::new(path, Training, kind, hyperparameter.meaning, hyperparameter.example)
        .aliases(hyperparameter.aliases)
        .implied(UNSET)
}

/// Text of the table of keys, which lives as long as the program.
fn leak(text: String) -> &'static str {
    text.leak()
}
