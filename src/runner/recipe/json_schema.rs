//! Writes the table of keys as a JSON schema, for editors.

use super::key::{Key, NumberRange, RangeScale, Type};
use super::lookup::section_keys;
use super::prediction::predictable;
use super::schema::{SECTIONS, Values};
use super::sources::{self, ANY_NAME, MAX_NUMBER, MAX_SOURCES};
use super::until;
use crate::expression::MAX_LENGTH;
use crate::model_text::{BUILT_IN_NAMES, MAX_BYTES};
use serde_json::{Map, Value, json};
use std::ops::Bound;

/// Pattern of one end of a predicted range.
const END: &str = "[+-]?[0-9.]+";

/// Pattern for the name of a measure of quality.
const MEASURE: &str =
    "(val_loss|ema_val_loss|bits_per_byte|train_loss)[^ ]*|(steps|tokens|seconds)_until:[^ ]+";

/// Pattern for the name of a held-out set or a source.
const NAME_PATTERN: &str = "^[A-Za-z0-9_-]{1,64}$";

/// Returns the JSON schema (draft 2020-12) of a recipe.
///
/// Types, bounds, words, defaults and aliases come from the table. Some errors cannot be expressed in a
/// schema (values that contradict each other, two spellings of one key); only reading the recipe finds them.
pub fn json_schema() -> Value {
    let mut properties = Map::new();
    properties.insert(
        "extends".to_owned(),
        json!({"type": "string", "description": "The recipe below this one: a .toml file, or a built-in name."}),
    );
    let recipe =
        serde_json::to_value(Values::default()).expect("every value in a recipe can be written as JSON");
    for (section, meaning) in SECTIONS {
        let mut keys = Map::new();
        for key in section_keys(section) {
            let mut schema = fragment(key.kind);
            schema["description"] = json!(description(key));
            schema["examples"] = json!([example(key)]);
            if let Some(default) = recipe[*section].get(key.name()).filter(|default| !default.is_null()) {
                schema["default"] = default.clone();
            }
            insert(&mut keys, key.name(), schema);
        }
        for key in section_keys(section) {
            let name = key.name().replace('.', "/properties/");
            let target = format!("#/properties/{section}/properties/{name}");
            for alias in key.aliases {
                insert(&mut keys, alias, json!({"$ref": target}));
            }
        }
        if let Some(sources) = keys.get_mut(sources::SOURCES).filter(|_| *section == sources::SECTION) {
            let any = format!("#/properties/{section}/properties/{}/properties/{ANY_NAME}", sources::SOURCES);
            sources["propertyNames"] = json!({"pattern": NAME_PATTERN});
            sources["maxProperties"] = json!(MAX_SOURCES);
            sources["additionalProperties"] = json!({"$ref": any});
        }
        properties.insert(
            (*section).to_owned(),
            json!({
                "type": "object",
                "description": meaning,
                "additionalProperties": false,
                "properties": keys,
            }),
        );
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "xrun recipe",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

/// Inserts a key into its section, inside the tables that its name spells.
fn insert(keys: &mut Map<String, Value>, name: &str, schema: Value) {
    let Some((table, rest)) = name.split_once('.') else {
        keys.insert(name.to_owned(), schema);
        return;
    };
    let empty = json!({"type": "object", "additionalProperties": false, "properties": {}});
    let inner = keys.entry(table).or_insert(empty);
    if let Some(inner) = inner.get_mut("properties").and_then(Value::as_object_mut) {
        insert(inner, rest, schema);
    }
}

fn description(key: &Key) -> String {
    let mut text = key.meaning.to_owned();
    if !key.unit.is_empty() {
        text.push_str(&format!(" Unit: {}.", key.unit));
    }
    if !key.unset.is_empty() {
        text.push_str(&format!(" Unset: {}.", key.unset.replace('`', "")));
    }
    text.push_str(&format!(" Class: {}.", key.class));
    text
}

/// Returns the key's example as JSON.
fn example(key: &Key) -> Value {
    let table: toml::Table = format!("x = {}", key.example).parse().expect("a test parses every example");
    serde_json::to_value(&table["x"]).expect("every example can be written as JSON")
}

fn fragment(kind: Type) -> Value {
    match kind {
        Type::Text => json!({"type": "string"}),
        Type::NameOrPath([]) => json!({"type": "string", "minLength": 1}),
        Type::NameOrPath(names) => json!({"type": "string", "minLength": 1, "anyOf": [{"enum": names}, {}]}),
        Type::NameOrPaths([]) => json!({"anyOf": paths()}),
        Type::NameOrPaths(names) => {
            let [path, list] = paths();
            json!({"anyOf": [{"enum": names}, path, list]})
        }
        Type::ModelText => {
            json!({"type": "string", "minLength": 1, "anyOf": [{"enum": BUILT_IN_NAMES}, {"maxLength": MAX_BYTES}]})
        }
        Type::Bool => json!({"type": "boolean"}),
        Type::Word(words) => json!({"enum": words}),
        Type::Words(words) => {
            json!({"type": "array", "items": {"enum": words}, "uniqueItems": true})
        }
        Type::WordOrFormula(words, _) => {
            json!({"type": "string", "minLength": 1, "anyOf": [{"enum": words}, {"maxLength": MAX_LENGTH}]})
        }
        Type::Count { min, max } => whole(min, max),
        Type::CountOrWord { min, max, word } => json!({"anyOf": [whole(min, max), {"const": word}]}),
        Type::Counts { max } => {
            json!({"type": "array", "items": whole(0, max), "minItems": 1, "uniqueItems": true})
        }
        Type::Stages { max_steps, max } => json!({
            "type": "array",
            "items": {
                "type": "array", "prefixItems": [whole(1, max_steps), whole(1, max)], "minItems": 2, "maxItems": 2,
            },
        }),
        Type::TaskNames => json!({
            "type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": true,
        }),
        Type::Extensions => json!({
            "type": "array", "items": {"type": "string", "pattern": "^([.][^./]+)*$"}, "minItems": 1, "uniqueItems": true,
        }),
        Type::Number(interval) => number(interval),
        Type::Pair(interval) => {
            json!({"type": "array", "items": number(interval), "minItems": 2, "maxItems": 2})
        }
        Type::FractionOrPaths(interval) => {
            let [path, list] = paths();
            json!({"anyOf": [number(interval), path, list]})
        }
        Type::Prediction => json!({
            "type": "string",
            "pattern": format!(
                "^(faster|slower|better|worse|no difference|({}) +{END}\\.\\.{END}%|({MEASURE}) +{END}\\.\\.{END}%?)$",
                predictable().collect::<Vec<_>>().join("|")
            ),
        }),
        Type::Until => json!({"type": "string", "pattern": until::PATTERN}),
        Type::Phases => json!({
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": false,
                "required": ["from", "weights"],
                "properties": {
                    "from": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                    "weights": {
                        "type": "object",
                        "propertyNames": {"pattern": NAME_PATTERN},
                        "additionalProperties": {"type": "number", "minimum": 0, "maximum": MAX_NUMBER},
                        "minProperties": 1,
                    },
                },
            },
        }),
        Type::NamedPaths => json!({
            "type": "object",
            "propertyNames": {"pattern": NAME_PATTERN},
            "additionalProperties": {"anyOf": paths()},
        }),
        Type::Settings => json!({"type": "object"}),
        Type::SettingsList => json!({"type": "array", "items": {"type": "object"}}),
        Type::Ranges(scale) => {
            let end = match scale {
                RangeScale::Linear => json!({"type": "number"}),
                RangeScale::Log => json!({"type": "number", "exclusiveMinimum": 0}),
            };
            let ends = json!({"type": ["array", "object"], "items": end, "minItems": 2, "maxItems": 2});
            json!({"type": "object", "additionalProperties": ends})
        }
        Type::Grid => json!({"type": "object", "additionalProperties": {"type": ["array", "object"]}}),
    }
}

/// A path, and a list of paths.
fn paths() -> [Value; 2] {
    let path = json!({"type": "string", "minLength": 1});
    let list = json!({"type": "array", "items": path, "minItems": 1, "uniqueItems": true});
    [path, list]
}

fn whole(min: u64, max: u64) -> Value {
    json!({"type": "integer", "minimum": min, "maximum": max})
}

fn number(interval: NumberRange) -> Value {
    let mut schema = json!({"type": "number"});
    match interval.low {
        Bound::Included(low) => schema["minimum"] = json!(low),
        Bound::Excluded(low) => schema["exclusiveMinimum"] = json!(low),
        Bound::Unbounded => {}
    }
    match interval.high {
        Bound::Included(high) => schema["maximum"] = json!(high),
        Bound::Excluded(high) => schema["exclusiveMaximum"] = json!(high),
        Bound::Unbounded => {}
    }
    schema
}
