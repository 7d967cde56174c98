//! `config.json`: values by key, each read as the type that is asked for.

use super::files::OpenedFile;
use super::json::{self, StrictValue, shortened};
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// Largest configuration that is read, in bytes: models have a few KiB, classifiers with thousands of labels
/// 500 KiB.
const MAX_BYTES: u64 = 4 << 20;

/// Values of a configuration, or of a table in it. What `null` means differs from key to key, so readers ask
/// [`Config::is_null`] where it is not the same as absent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file, and the table in it, for messages.
    place: String,
    values: Map<String, Value>,
}

impl Config {
    /// Reads the file.
    pub(super) fn read(opened: &OpenedFile) -> Result<Self> {
        Self::parse(&opened.path, &opened.read(MAX_BYTES)?)
    }

    /// Parses the content of the file at `path`.
    ///
    /// # Errors
    /// A usage error if it is not a JSON object, or a key appears twice.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let StrictValue(value) = json::parse(path, bytes)?;
        let place = path.display().to_string();
        match value {
            Value::Object(values) => Ok(Self { place, values }),
            _ => Err(Error::usage(format!("{place}: it is not a JSON object of keys and values"))),
        }
    }

    /// Returns the value of a key; `None` if it is absent or `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// Returns true if the key is present, even if it is `null`.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Returns true if the key is present and `null`.
    pub fn is_null(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(Value::is_null)
    }

    /// Returns the file, and the table in it, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the keys with their values, `null` included.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Sets a key.
    pub fn set(&mut self, key: &str, value: Value) {
        self.values.insert(key.to_owned(), value);
    }

    /// Removes a key, or `TABLE.KEY` of a table, and returns its value; `None` if there is no such key.
    pub fn remove(&mut self, path: &str) -> Option<Value> {
        if let Some(value) = self.values.remove(path) {
            return Some(value);
        }
        let (table, key) = path.split_once('.')?;
        self.values.get_mut(table)?.as_object_mut()?.remove(key)
    }

    /// Returns the number of a key that counts something, or `default` if it is absent.
    ///
    /// # Errors
    /// A usage error if it is absent without a default, or not a whole number of at least 1.
    pub fn count(&self, key: &str, default: Option<usize>) -> Result<usize> {
        let count = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        self.typed(key, default, "a whole number from 1", count)
    }

    /// Returns the number of a key, or `default` if it is absent.
    ///
    /// # Errors
    /// A usage error if it is absent without a default, or not a number.
    pub fn number(&self, key: &str, default: Option<f64>) -> Result<f64> {
        self.typed(key, default, "a number", |value| value.as_f64().filter(|x| x.is_finite()))
    }

    /// Returns the flag of a key, or `default` if it is absent.
    ///
    /// # Errors
    /// A usage error if it is neither true nor false.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        self.typed(key, Some(default), "true or false", Value::as_bool)
    }

    /// Returns the string of a key, or `default` if it is absent.
    ///
    /// # Errors
    /// A usage error if it is absent without a default, or not a string.
    pub fn word(&self, key: &str, default: Option<&str>) -> Result<String> {
        self.typed(key, default.map(str::to_owned), "a text", |value| value.as_str().map(str::to_owned))
    }

    /// Returns the strings in the list of a key; `None` if it is absent.
    ///
    /// # Errors
    /// A usage error if it is not a list of strings.
    pub fn words(&self, key: &str) -> Result<Option<Vec<String>>> {
        let words = |value: &Value| {
            let values = value.as_array()?.iter();
            values.map(|value| value.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        self.get(key).map(|_| self.typed(key, None, "a list of texts", words)).transpose()
    }

    /// Returns the table of a key; `None` if it is absent.
    ///
    /// # Errors
    /// A usage error if it is not a table.
    pub fn table(&self, key: &str) -> Result<Option<Self>> {
        let table = |value: &Value| {
            let place = format!("{}: {key}", self.place);
            value.as_object().map(|values| Self { place, values: values.clone() })
        };
        self.get(key).map(|_| self.typed(key, None, "an object", table)).transpose()
    }

    /// Refuses any value of a key but `expected`; an absent key counts as `expected`.
    ///
    /// # Errors
    /// A usage error that says what xrun's models have instead.
    pub fn require(&self, key: &str, expected: &Value, instead: &str) -> Result<()> {
        let fits =
            |value: &Value| value == expected || value.as_f64().is_some_and(|x| Some(x) == expected.as_f64());
        if self.get(key).is_none_or(fits) { Ok(()) } else { Err(self.refuse(key, instead)) }
    }

    /// Makes the error for a value that xrun has no model for.
    pub fn refuse(&self, key: &str, instead: &str) -> Error {
        let value = self.values.get(key);
        let value = value.map_or("absent".to_owned(), |value| shortened(&value.to_string()));
        Error::usage(format!("{}: {key} is {value}, and {instead}", self.place))
    }

    fn typed<T>(
        &self,
        key: &str,
        default: Option<T>,
        what: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T> {
        match self.get(key) {
            Some(value) => convert(value).ok_or_else(|| self.refuse(key, &format!("{what} is expected"))),
            None => default.ok_or_else(|| match self.is_null(key) {
                true => self.refuse(key, &format!("{what} is expected")),
                false => Error::usage(format!(
                    "{}: there is no {key}, and the model cannot be built without it",
                    self.place
                )),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::files;
    use super::*;

    fn config(text: &str) -> Result<Config> {
        let at = tempfile::tempdir().unwrap();
        std::fs::write(at.path().join("config.json"), text).unwrap();
        Config::read(&files::open(at.path(), "config.json").unwrap().unwrap())
    }

    #[test]
    fn values_have_the_type_that_is_asked_for() {
        let config = config(r#"{"n": 3, "x": 1e-5, "yes": true, "word": "a", "null": null, "t": {"k": 2}, "l": ["a", "b"], "neg": -1, "mixed": ["a", 1]}"#).unwrap();
        assert_eq!((config.count("n", None).unwrap(), config.count("null", Some(7)).unwrap()), (3, 7));
        assert_eq!((config.number("x", None).unwrap(), config.number("n", None).unwrap()), (1e-5, 3.0));
        assert!(config.flag("yes", false).unwrap() && !config.flag("no", false).unwrap());
        assert_eq!(config.word("word", None).unwrap(), "a");
        assert_eq!(config.table("t").unwrap().unwrap().count("k", None).unwrap(), 2);
        assert_eq!(config.words("l").unwrap().unwrap(), ["a", "b"]);
        assert!(config.table("null").unwrap().is_none() && config.words("none").unwrap().is_none());
        config.require("n", &3.0.into(), "").unwrap();
        let message = |result: Result<()>| result.unwrap_err().message().to_owned();
        assert!(
            message(config.count("neg", None).map(drop))
                .contains("config.json: neg is -1, and a whole number from 1")
        );
        assert!(message(config.count("x", None).map(drop)).contains("x is 0.00001"));
        assert!(message(config.count("absent", None).map(drop)).contains("there is no absent"));
        assert!(message(config.count("null", None).map(drop)).contains("null is null, and a whole number"));
        assert!(config.is_null("null") && !config.is_null("absent") && !config.is_null("n"));
        assert!(message(config.words("mixed").map(drop)).contains("a list of texts is expected"));
        assert!(
            message(config.table("t").unwrap().unwrap().flag("k", false).map(drop))
                .contains("config.json: t: k is 2")
        );
        assert!(
            message(config.require("word", &"b".into(), "xrun has b"))
                .contains("word is \"a\", and xrun has b")
        );
    }

    #[test]
    fn keys_of_tables_are_removed_by_path() {
        let mut config = config(r#"{"a": 1, "t": {"k": 2, "l": 3}}"#).unwrap();
        assert_eq!(config.remove("t.k"), Some(2.into()));
        assert_eq!((config.remove("t.k"), config.remove("b"), config.remove("a.b")), (None, None, None));
        assert_eq!(config.remove("a"), Some(1.into()));
        config.set("b", true.into());
        let mut left: Vec<(&str, String)> =
            config.entries().map(|(key, value)| (key, value.to_string())).collect();
        left.sort();
        assert_eq!(left, [("b", "true".to_owned()), ("t", r#"{"l":3}"#.to_owned())]);
    }

    #[test]
    fn non_object_configs_are_errors() {
        for text in ["[]", "3", "{", r#"{"a": 1, "a": 2}"#, "\u{feff}{}", &" ".repeat(5 << 20)] {
            assert!(config(text).unwrap_err().message().contains("config.json"), "{}", shortened(text));
        }
    }
}
