//! Numbers by name, as JSON objects in summaries and ledgers store them.

use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;

/// Numbers under names from the table of metrics. Names without a number are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedNumbers(BTreeMap<&'static str, Number>);

impl NamedNumbers {
    /// Returns the number under this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Number::as_f64)
    }

    /// Sets the number under this name. A value that is not finite removes it.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        match value.into() {
            Value::Number(number) => _ = self.0.insert(name, number),
            _ => _ = self.0.remove(name),
        }
    }

    /// Reads the numbers under these names from a JSON object.
    ///
    /// # Errors
    /// If a value is neither a number nor `null`.
    pub fn from_json(
        object: &Map<String, Value>,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Result<Self, String> {
        let mut numbers = Self::default();
        for name in names {
            match object.get(name) {
                Some(Value::Number(number)) => _ = numbers.0.insert(name, number.clone()),
                None | Some(Value::Null) => {}
                Some(other) => return Err(format!("`{name}` is {other}, not a number")),
            }
        }
        Ok(numbers)
    }

    /// Returns a JSON object with all of these names in order, and `null` for names without a number.
    pub fn to_json(&self, names: impl IntoIterator<Item = &'static str>) -> Map<String, Value> {
        let value = |name| self.0.get(name).map_or(Value::Null, |number| Value::Number(number.clone()));
        names.into_iter().map(|name| (name.to_owned(), value(name))).collect()
    }
}
