//! The rotary embedding in transformers' terms: `rope_theta` and `rope_scaling`. Version 5 writes both as one
//! table `rope_parameters` and reads either form (`modeling_rope_utils.py`).

use super::fields::way_on;
use super::keys::Keys;
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use crate::policy::RopeScaling;
use serde_json::{Value, json};

/// `RotaryEmbeddingConfigMixin.default_theta`.
const DEFAULT_THETA: f64 = 10_000.0;
/// Defaults of `_compute_yarn_parameters`.
const YARN_BETAS: (f64, f64) = (32.0, 1.0);

/// Keys of `RopeParameters` that some type reads, besides the type itself and those that all types read.
const KEYS: [&str; 13] = [
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    "mrope_section",
];

/// Keys that all types read.
const COMMON: [&str; 4] = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];

/// Returns true if transformers knows the key of a table.
pub(super) fn is_known(key: &str) -> bool {
    KEYS.contains(&key) || COMMON.contains(&key)
}

/// Returns the value of `rope_scaling`.
pub(super) fn scaling(m: &Model) -> Value {
    let rope = &m.rope;
    match rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear => json!({ "rope_type": "linear", "factor": rope.factor }),
        RopeScaling::Yarn => {
            let mut table = json!({
                "rope_type": "yarn",
                "factor": rope.factor,
                "original_max_position_embeddings": rope.original_context,
                "beta_fast": rope.beta_fast,
                "beta_slow": rope.beta_slow,
            });
            if let Some(factor) = rope.attention_factor {
                table["attention_factor"] = factor.into();
            }
            table
        }
        RopeScaling::Llama3 => json!({
            "rope_type": "llama3",
            "factor": rope.factor,
            "original_max_position_embeddings": rope.original_context,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
        }),
    }
}

/// Sets the keys of the rotary embedding. `context` is the model's context in tokens.
///
/// # Errors
/// With a usage error for scalings and partial rotations that xrun's rotary embedding does not support, and
/// for keys of the table that transformers does not know.
pub(super) fn read(config: &Config, context: usize, keys: &mut Keys) -> Result<()> {
    let whole = "xrun exports and imports rotations of whole heads: 1.0";
    config.require("partial_rotary_factor", &json!(1.0), whole)?;
    // `rope_scaling or rope_parameters`: an empty table counts as absent.
    let names = ["rope_scaling", "rope_parameters"];
    let name = names.into_iter().find(|name| config.get(name).is_some_and(is_true));
    let Some((name, table)) = name.map(|name| Ok((name, config.table(name)?))).transpose()? else {
        keys.set_number("rope_theta", "rope_theta", theta(config, config)?);
        return Ok(());
    };
    let Some(table) = table else { return Ok(()) };
    let rope = Table { config, table: &table, name, context };
    keys.set_number("rope_theta", "rope_theta", theta(config, &table)?);
    table.require("partial_rotary_factor", &json!(1.0), whole)?;
    rope.read(keys)
}

/// Returns whether Python takes a value for true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}

/// Returns the base of the frequencies: from the table, else from the configuration.
fn theta(config: &Config, table: &Config) -> Result<f64> {
    let place = if table.has("rope_theta") { table } else { config };
    match place.has("rope_theta") {
        // Here `null` does not mean the default: transformers fails.
        true => place.number("rope_theta", None),
        false => Ok(DEFAULT_THETA),
    }
}

/// A table of a rotary embedding.
struct Table<'a> {
    config: &'a Config,
    table: &'a Config,
    /// Its key.
    name: &'static str,
    context: usize,
}

impl Table<'_> {
    /// Sets the keys of the scaling.
    fn read(&self, keys: &mut Keys) -> Result<()> {
        let table = self.table;
        let type_key = if table.has("rope_type") || !table.has("type") { "rope_type" } else { "type" };
        let kind = match table.has(type_key) {
            true => table.word(type_key, None)?,
            false => "default".to_owned(),
        };
        let read: &[&str] = match kind.as_str() {
            "default" => &[],
            // Without a partial rotation, "proportional" is the same.
            "linear" | "proportional" => &["factor"],
            "yarn" => &KEYS[..8],
            "llama3" => {
                &["factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"]
            }
            _ => {
                let instead = "xrun has \"default\", \"linear\", \"proportional\", \"yarn\" and \"llama3\"";
                return Err(table.refuse(type_key, instead));
            }
        };
        self.check_keys(&kind, read, keys)?;
        let scaling = match kind.as_str() {
            "linear" => {
                keys.set_number("rope_factor", "factor", table.number("factor", None)?);
                RopeScaling::Linear
            }
            "proportional" => {
                let factor = if table.has("factor") { table.number("factor", None)? } else { 1.0 };
                if factor == 1.0 {
                    return Ok(());
                }
                keys.set_number("rope_factor", "factor", factor);
                RopeScaling::Linear
            }
            "yarn" => {
                self.read_yarn(keys)?;
                RopeScaling::Yarn
            }
            "llama3" => {
                keys.set_number("rope_factor", "factor", table.number("factor", None)?);
                self.read_original_context(keys)?;
                let mut set =
                    |key, from| table.number(from, None).map(|value| keys.set_number(key, from, value));
                set("rope_low_freq_factor", "low_freq_factor")?;
                set("rope_high_freq_factor", "high_freq_factor")?;
                RopeScaling::Llama3
            }
            _ => return Ok(()),
        };
        keys.set_word("rope_scaling", type_key, scaling);
        Ok(())
    }

    /// Rejects keys that transformers does not know. Notes those that the type does not read, as
    /// transformers does.
    fn check_keys(&self, kind: &str, read: &[&str], keys: &mut Keys) -> Result<()> {
        let given = self.table.entries().filter(|(key, value)| !value.is_null() && !COMMON.contains(key));
        for (key, _) in given.filter(|(key, _)| !read.contains(key)) {
            if !KEYS.contains(&key) {
                let instead = format!(
                    "transformers has no such key, so xrun cannot know whether it changes the rotation; {}",
                    way_on(&format!("{}.{key}", self.name))
                );
                return Err(self.table.refuse(key, &instead));
            }
            keys.notes.push(format!("{}.{key} has no effect, because the type is \"{kind}\"", self.name));
        }
        Ok(())
    }

    /// Sets the context that the frequencies were chosen for. A key beside the table has precedence.
    fn read_original_context(&self, keys: &mut Keys) -> Result<()> {
        const KEY: &str = "original_max_position_embeddings";
        let original = match (self.config.has(KEY), self.table.has(KEY)) {
            (true, _) => self.config.count(KEY, None)?,
            (false, true) => self.table.count(KEY, None)?,
            (false, false) => self.context,
        };
        keys.set("rope_original_context", KEY, original);
        Ok(())
    }

    fn read_yarn(&self, keys: &mut Keys) -> Result<()> {
        let table = self.table;
        self.read_original_context(keys)?;
        let factor = match table.is_null("factor") {
            true => {
                let original = keys.count("rope_original_context").unwrap_or(self.context);
                self.context as f64 / original as f64
            }
            false => table.number("factor", None)?,
        };
        keys.set_number("rope_factor", "factor", factor);
        // transformers treats zero as absent.
        let or = |value: f64, default: f64| if value == 0.0 { default } else { value };
        let (fast, slow) = YARN_BETAS;
        keys.set_number("rope_beta_fast", "beta_fast", or(table.number("beta_fast", Some(fast))?, fast));
        keys.set_number("rope_beta_slow", "beta_slow", or(table.number("beta_slow", Some(slow))?, slow));
        let scales = [table.number("mscale", Some(0.0))?, table.number("mscale_all_dim", Some(0.0))?];
        if table.get("attention_factor").is_some() {
            let value = table.number("attention_factor", None)?;
            keys.set_number("rope_attention_factor", "attention_factor", value);
        } else if scales.iter().all(|scale| *scale != 0.0) {
            let [scale, all_dim] = scales.map(|scale| match factor <= 1.0 {
                true => 1.0,
                false => 0.1 * scale * factor.ln() + 1.0,
            });
            keys.set_number("rope_attention_factor", "mscale", scale / all_dim);
        }
        // `null` is false to transformers.
        match table.get("truncate") {
            None if table.has("truncate") => Err(table.refuse("truncate", TRUNCATES)),
            _ => table.require("truncate", &json!(true), TRUNCATES),
        }
    }
}

const TRUNCATES: &str = "xrun's YaRN rounds the range of its ramp: true";
