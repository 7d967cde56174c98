//! A configuration with the defaults of its class, in which every key has a known meaning.

use super::class::Class;
use super::fields::{fixed, is_harmless, way_on};
use crate::error::{Error, Result};
use crate::hugging_face::Config;
use serde_json::Value;

/// Returns true if a class reads the key, or some values of it are refused.
pub(super) fn is_read(class: &dyn Class, key: &str) -> bool {
    class.fields().iter().any(|field| field.key == key)
        || class.aliases().iter().any(|(alias, _)| *alias == key)
        || fixed().iter().any(|(fixed, ..)| *fixed == key)
}

/// Returns a configuration with the class's own defaults in place of absent keys, and its own names in place
/// of aliases.
///
/// # Errors
/// With a usage error for an unknown key, for a `null` that the class does not take, and for a value that
/// makes another model of it.
pub(super) fn resolve(class: &dyn Class, config: &Config) -> Result<Config> {
    refuse_unknown(class, config)?;
    let is_field = |key: &str| class.fields().iter().any(|field| field.key == key);
    for (key, value, reason) in fixed().iter().filter(|(key, ..)| !is_field(key)) {
        config.require(key, value, reason)?;
    }
    if !is_field("layer_types")
        && config.words("layer_types")?.iter().flatten().any(|kind| kind != "full_attention")
    {
        return Err(config.refuse("layer_types", "all layers of the class are \"full_attention\""));
    }
    let mut resolved = config.clone();
    for (alias, key) in class.aliases() {
        if let Some(value) = resolved.remove(alias) {
            resolved.set(key, value);
        }
    }
    for field in class.fields() {
        let default = field.default();
        if resolved.is_null(field.key) && !field.nullable {
            let instead = match &default {
                Some(default) => format!("remove the key for the default, {default}"),
                None => "remove the key, and it follows from others".to_owned(),
            };
            return Err(config.refuse(field.key, &format!("transformers refuses that: set it, or {instead}")));
        }
        if let Some(default) = default.filter(|_| !resolved.has(field.key)) {
            resolved.set(field.key, default);
        }
    }
    Ok(resolved)
}

/// Returns a configuration without keys that the class does not know, which an import was told to ignore.
pub(super) fn without_unknown(class: &dyn Class, config: &Config) -> Config {
    let mut known = config.clone();
    for (key, _) in config.entries().filter(|(key, _)| !is_harmless(key) && !is_read(class, key)) {
        known.remove(key);
    }
    known
}

/// Rejects keys whose effect is unknown. `null` has none.
fn refuse_unknown(class: &dyn Class, config: &Config) -> Result<()> {
    let known = |key: &str, value: &Value| value.is_null() || is_harmless(key) || is_read(class, key);
    let unknown: Vec<&str> =
        config.entries().filter(|(key, value)| !known(key, value)).map(|(key, _)| key).collect();
    let Some(first) = unknown.first() else { return Ok(()) };
    let instead = format!(
        "it is not a key of {}, so xrun cannot know whether it changes what the model computes; {}",
        class.name(),
        way_on(first)
    );
    let error = config.refuse(first, &instead);
    let others = unknown.len() - 1;
    Err(match others {
        0 => error,
        _ => Error::usage(format!("{} ({others} more like it: {})", error.message(), listed(&unknown[1..]))),
    })
}

/// Most names of unknown keys in a message.
const MAX_LISTED: usize = 8;

fn listed(keys: &[&str]) -> String {
    let names: Vec<String> = keys.iter().take(MAX_LISTED).map(|key| shown(key)).collect();
    let more = if keys.len() > MAX_LISTED { ", …" } else { "" };
    names.join(", ") + more
}

/// Returns a key from a file, for a message: escaped and shortened.
fn shown(key: &str) -> String {
    let escaped: String = key.chars().take(40).flat_map(char::escape_debug).collect();
    escaped
}
