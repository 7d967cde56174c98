//! Writes values as TOML on one line. Equal values give the same text, however they were spelled.

use super::key::{Key, Type};
use super::schema::{KEYS, Values};
use super::sources;
use serde::de::Deserialize;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;
use toml::Value;
use toml::de::ValueDeserializer;

/// The values of a recipe, each of which is written as TOML when it is asked for.
pub(super) struct Texts(Json);

impl Texts {
    pub fn new(values: &Values) -> Self {
        // JSON has null for unset values, and can hold seeds beyond TOML's integers.
        Self(serde_json::to_value(values).expect("the keys of every map in a recipe are strings"))
    }

    /// Returns the defaults.
    pub fn defaults() -> &'static Self {
        static DEFAULTS: LazyLock<Texts> = LazyLock::new(|| Texts::new(&Values::default()));
        &DEFAULTS
    }

    /// Returns the value of a key as TOML, or `None` if it is unset.
    pub fn get(&self, key: &Key) -> Option<String> {
        json_as_toml(match sources::name_and_field(key) {
            Some((source, field)) => &self.0[key.section()][sources::SOURCES][source][field],
            None => &self.0[key.section()][key.name()],
        })
    }

    /// Returns true if a key is set to another value than its default.
    pub fn is_changed(&self, key: &Key) -> bool {
        let value = self.get(key);
        value.is_some() && value != Self::defaults().get(key)
    }
}

/// Returns the value of every key as TOML, or `None` if it is unset, in table order.
pub(super) fn values(values: &Values) -> Vec<(&'static Key, Option<String>)> {
    let texts = Texts::new(values);
    keys_of(values).into_iter().map(|key| (key, texts.get(key))).collect()
}

/// Returns the keys of the table, and of the recipe's sources, in the order of [`values`].
pub(super) fn keys_of(values: &Values) -> Vec<&'static Key> {
    with_sources(&source_names(values).collect())
}

/// Returns the values of every key of two recipes, like [`values`]. Keys of a source that only one of them
/// has are unset in the other.
pub(super) fn both_values(
    a: &Values,
    b: &Values,
) -> impl Iterator<Item = (&'static Key, Option<String>, Option<String>)> {
    let keys = with_sources(&source_names(a).chain(source_names(b)).collect());
    let [a, b] = [a, b].map(Texts::new);
    keys.into_iter().map(move |key| (key, a.get(key), b.get(key)))
}

fn source_names(values: &Values) -> impl Iterator<Item = &str> {
    values.data.sources.keys().map(String::as_str)
}

/// Returns the keys of the table, and those of the named sources behind their rows.
fn with_sources(names: &BTreeSet<&str>) -> Vec<&'static Key> {
    let mut listed = Vec::with_capacity(KEYS.len());
    for key in KEYS.iter() {
        listed.push(key);
        if sources::is_last_row(key) {
            let others = names.iter().filter(|name| **name != sources::ANY_NAME);
            listed.extend(others.flat_map(|name| sources::keys_of(name)));
        }
    }
    listed
}

/// Returns a value as TOML.
pub fn value_text(value: &Value) -> String {
    serde_json::to_value(value).ok().as_ref().and_then(json_as_toml).unwrap_or_default()
}

/// Parses what [`value_text`] prints.
pub(super) fn parse_value(text: &str) -> Result<Value, toml::de::Error> {
    Value::deserialize(ValueDeserializer::parse(text)?)
}

/// Returns TOML text as people write it in a table: a string without its quotes and escapes, anything else
/// unchanged.
pub fn plain_text(text: &str) -> Cow<'_, str> {
    let is_quoted = text.starts_with(['"', '\'']);
    match is_quoted.then(|| parse_value(text)) {
        Some(Ok(Value::String(string))) => Cow::Owned(string),
        _ => Cow::Borrowed(text),
    }
}

/// Returns a value as TOML on one line, with an exponent in small numbers; `None` for null.
fn json_as_toml(value: &Json) -> Option<String> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(flag) => flag.to_string(),
        Json::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
            Some(x) => format!("{x:?}"),
            None => n.to_string(),
        },
        Json::String(text) => quote(text),
        Json::Array(items) => {
            format!("[{}]", items.iter().filter_map(json_as_toml).collect::<Vec<_>>().join(", "))
        }
        Json::Object(table) if table.is_empty() => "{}".to_owned(),
        Json::Object(table) => {
            let entry = |(k, v): (&String, &Json)| Some(format!("{} = {}", quote(k), json_as_toml(v)?));
            format!("{{ {} }}", table.iter().filter_map(entry).collect::<Vec<_>>().join(", "))
        }
    })
}

/// Returns the value of a key as the hash of a recipe covers it. Of a path, that is the name of the file or
/// folder, and of a checkpoint also the run: where it lies does not matter, and its content has a hash of its
/// own.
pub(super) fn hashed_text<'v>(key: &Key, value: &'v str) -> Cow<'v, str> {
    let name = |path: &String| {
        let path = Path::new(path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Checkpoints are named after their step alone, so the name of the run counts too.
        let checkpoints = path.parent().filter(|folder| folder.ends_with("checkpoint"));
        match checkpoints.and_then(Path::parent).and_then(Path::file_name) {
            Some(run) if name.starts_with("step-") => {
                quote(&format!("./{}/checkpoint/{name}", run.to_string_lossy()))
            }
            _ => quote(&format!("./{name}")),
        }
    };
    match paths_in(key, value).as_deref() {
        None => Cow::Borrowed(value),
        Some([path]) => Cow::Owned(name(path)),
        Some(paths) => Cow::Owned(format!("[{}]", paths.iter().map(name).collect::<Vec<_>>().join(", "))),
    }
}

/// Returns the value of a key without the paths that it names, for a key of which content is hashed as well.
pub(super) fn without_path<'v>(key: &Key, value: &'v str) -> Cow<'v, str> {
    paths_in(key, value).map_or(Cow::Borrowed(value), |_| Cow::Owned(quote(".")))
}

/// Returns the paths that the value of a key is; `None` for a name, a number, or a key without paths.
pub(super) fn paths_in(key: &Key, value: &str) -> Option<Vec<String>> {
    let names: &[&str] = match key.kind {
        Type::NameOrPath(names) | Type::NameOrPaths(names) => names,
        Type::FractionOrPaths(_) => &[],
        _ => return None,
    };
    match parse_value(value) {
        Ok(Value::String(path)) if !names.contains(&path.as_str()) => Some(vec![path]),
        Ok(list @ Value::Array(_)) if key.kind.takes_paths() => Some(strings_in(&list)),
        _ => None,
    }
}

/// Returns the string that a value is, or the strings of a list.
pub(super) fn strings_in(value: &Value) -> Vec<String> {
    let all = match value {
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns a string with TOML's quotes and escapes.
fn quote(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
