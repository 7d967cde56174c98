//! JSON from third parties: must be UTF-8, of bounded depth, and without duplicate keys in an object.

use crate::error::{Error, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

/// Parses the content of the file at `path`.
///
/// # Errors
/// A usage error with the line: bytes that are not UTF-8, a syntax error, a duplicate key, nesting beyond the
/// 128 levels of `serde_json`, or a value that is not a `T`.
pub(super) fn parse<'de, T: Deserialize<'de>>(path: &Path, bytes: &'de [u8]) -> Result<T> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        Error::usage(format!(
            "{}: byte {} is not UTF-8, as JSON must be: download the file again",
            path.display(),
            e.valid_up_to()
        ))
    })?;
    serde_json::from_str(text).map_err(|e| Error::usage(format!("{}: {e}", path.display())))
}

/// An object whose keys are all different. With duplicates, different readers would use different values.
#[derive(Debug)]
pub(super) struct UniqueKeys<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueKeys<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueKeys<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Ok(UniqueKeys(unique_entries(map)?.into_iter().collect()))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

macro_rules! scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, value: $type) -> Result<StrictValue, E> {
            Ok(StrictValue(value.into()))
        })*
    };
}

/// Any value in which no object has duplicate keys.
#[derive(Debug)]
pub(super) struct StrictValue(pub Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = StrictValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<StrictValue, E> {
                Ok(StrictValue(Value::Null))
            }

            scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<StrictValue, A::Error> {
                let mut values = Vec::new();
                while let Some(StrictValue(value)) = seq.next_element()? {
                    values.push(value);
                }
                Ok(StrictValue(Value::Array(values)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StrictValue, A::Error> {
                let entries = unique_entries(map)?.into_iter();
                Ok(StrictValue(Value::Object(
                    entries.map(|(key, StrictValue(value))| (key, value)).collect(),
                )))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Returns the entries of an object, in order. A key that appears twice is an error.
fn unique_entries<'de, A: MapAccess<'de>, V: Deserialize<'de>>(
    mut map: A,
) -> Result<Vec<(String, V)>, A::Error> {
    let (mut entries, mut seen) = (Vec::new(), HashSet::new());
    while let Some(key) = map.next_key::<String>()? {
        if !seen.insert(key.clone()) {
            let twice = format!("{:?} appears twice; keep one of them", shortened(&key));
            return Err(serde::de::Error::custom(twice));
        }
        entries.push((key, map.next_value()?));
    }
    Ok(entries)
}

/// Returns the beginning of a text from a file, for a message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        parse::<StrictValue>(Path::new("f.json"), bytes).unwrap_err().message().to_owned()
    }

    #[test]
    fn values_parse_and_duplicate_keys_do_not() {
        let text = r#"{"a": [1, -2, 0.5, null, true, "x"], "b": {"c": {}}}"#;
        let StrictValue(value) = parse(Path::new("f"), text.as_bytes()).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        assert!(error(br#"{"a": {"b": 1, "b": 1}}"#).contains("\"b\" appears twice"));
        let unique = parse::<UniqueKeys<u32>>(Path::new("f"), br#"{"a": 1, "a": 2}"#).unwrap_err();
        assert!(unique.message().contains("\"a\" appears twice"), "{unique}");
    }

    #[test]
    fn invalid_utf8_and_deep_nesting_are_errors() {
        assert!(error(b"{\"a\": \"\xff\"}").contains("f.json: byte 7 is not UTF-8"));
        assert!(error("[".repeat(100_000).as_bytes()).contains("recursion limit"));
        assert!(error(b"{").contains("line 1"));
        assert!(error(b"{} {}").contains("trailing"));
        assert!(error(b"NaN").contains("f.json"));
    }
}
