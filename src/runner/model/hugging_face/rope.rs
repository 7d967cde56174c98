//! The rotary embedding in transformers' terms: `rope_theta` and `rope_scaling`. Version 5 writes both as one
//! table `rope_parameters` and reads either form (`modeling_rope_utils.py`).

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
/// With a usage error for scalings and partial rotations that xrun's rotary embedding does not support.
pub(super) fn read(config: &Config, context: usize, keys: &mut Keys) -> Result<()> {
    let scaling = match config.table("rope_scaling")? {
        Some(table) => Some(table),
        None => config.table("rope_parameters")?,
    };
    let theta = config.number("rope_theta", Some(DEFAULT_THETA))?;
    let whole = "xrun exports and imports rotations of whole heads: 1.0";
    config.require("partial_rotary_factor", &json!(1.0), whole)?;
    let Some(table) = scaling else {
        keys.set_number("rope_theta", theta);
        return Ok(());
    };
    keys.set_number("rope_theta", table.number("rope_theta", Some(theta))?);
    table.require("partial_rotary_factor", &json!(1.0), whole)?;
    let kind = table.word("rope_type", Some(&table.word("type", Some("default"))?))?;
    let original = || match config.get("original_max_position_embeddings") {
        Some(_) => config.count("original_max_position_embeddings", None),
        None => table.count("original_max_position_embeddings", Some(context)),
    };
    match kind.as_str() {
        "default" => return Ok(()),
        "linear" => keys.set_number("rope_factor", table.number("factor", None)?),
        "yarn" => {
            let original = original()?;
            let ratio = context as f64 / original as f64;
            keys.set_number("rope_factor", table.number("factor", Some(ratio))?);
            keys.set("rope_original_context", original);
            // transformers treats zero as absent.
            let or = |value: f64, default: f64| if value == 0.0 { default } else { value };
            let (fast, slow) = YARN_BETAS;
            keys.set_number("rope_beta_fast", or(table.number("beta_fast", Some(fast))?, fast));
            keys.set_number("rope_beta_slow", or(table.number("beta_slow", Some(slow))?, slow));
            if table.get("attention_factor").is_some() {
                keys.set_number("rope_attention_factor", table.number("attention_factor", None)?);
            } else if table.get("mscale").is_some() && table.get("mscale_all_dim").is_some() {
                return Err(table.refuse("mscale", "xrun's YaRN uses attention_factor instead; set that"));
            }
            table.require("truncate", &json!(true), "xrun's YaRN rounds the range of its ramp: true")?;
        }
        "llama3" => {
            keys.set_number("rope_factor", table.number("factor", None)?);
            keys.set("rope_original_context", original()?);
            keys.set_number("rope_low_freq_factor", table.number("low_freq_factor", None)?);
            keys.set_number("rope_high_freq_factor", table.number("high_freq_factor", None)?);
        }
        _ => return Err(table.refuse("rope_type", "xrun has \"linear\", \"yarn\" and \"llama3\"")),
    }
    keys.set_word("rope_scaling", kind);
    Ok(())
}
