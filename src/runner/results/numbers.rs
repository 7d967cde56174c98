//! Numbers by name, as JSON objects in summaries and ledgers store them.

use crate::metrics;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;
use std::marker::PhantomData;

/// The names in a JSON object of numbers, in its order.
pub trait Names {
    fn names() -> impl Iterator<Item = &'static str>;
}

/// The keys of figures in the ledger of sweeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerFigures;

impl Names for LedgerFigures {
    fn names() -> impl Iterator<Item = &'static str> {
        metrics::ledger_metrics().into_iter().map(|(key, _)| key)
    }
}

/// The columns of `timing.csv` for which the steady state keeps only the median.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SteadyMedians;

impl Names for SteadyMedians {
    fn names() -> impl Iterator<Item = &'static str> {
        metrics::steady_medians().map(|metric| metric.name)
    }
}

/// Numbers under names from the table of metrics. The JSON object has all names, with `null` for those
/// without a number, and only numbers or `null` can be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedNumbers<N>(BTreeMap<&'static str, Number>, PhantomData<N>);

impl<N: Names> NamedNumbers<N> {
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
}

impl<N: Names> Serialize for NamedNumbers<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(N::names().map(|name| (name, self.0.get(name))))
    }
}

impl<'de, N: Names> Deserialize<'de> for NamedNumbers<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Map::<String, Value>::deserialize(deserializer)?;
        let mut numbers = BTreeMap::new();
        for name in N::names() {
            match object.get(name) {
                Some(Value::Number(number)) => _ = numbers.insert(name, number.clone()),
                None | Some(Value::Null) => {}
                Some(other) => return Err(D::Error::custom(format!("`{name}` is {other}, not a number"))),
            }
        }
        Ok(Self(numbers, PhantomData))
    }
}
