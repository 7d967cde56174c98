//! `Qwen3ForCausalLM` (`models/qwen3` of transformers 5.24): RMSNorm, queries and keys normalized per head
//! before they are rotated, a gated feed-forward layer, no biases, and a window in some layers.

use super::class::Class;
use super::fields::{Field, ROPE};
use super::keys::Keys;
use super::lacks::{UnsupportedKeys, or_unset, word};
use super::tensor::{HfFacts, HfTensor};
use super::{activations, blocks, rope};
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use crate::policy::{QkNormPlace, RopeDirection};
use serde_json::{Value, json};

pub(super) struct Qwen3;

/// `Qwen3Config`.
const FIELDS: [Field; 21] = [
    Field::count("vocab_size", 151_936),
    Field::count("hidden_size", 4096),
    Field::count("intermediate_size", 22_016),
    Field::count("num_hidden_layers", 32),
    Field::count("num_attention_heads", 32),
    // `null` means as many as query heads.
    Field::count("num_key_value_heads", 32).or_null(),
    Field::count("head_dim", 128),
    Field::word("hidden_act", "silu"),
    Field::count("max_position_embeddings", 32_768),
    Field::number("rms_norm_eps", 1e-6),
    Field::flag("tie_word_embeddings", false),
    Field::flag("attention_bias", false),
    Field::flag("use_sliding_window", false),
    // `null` means no window.
    Field::count("sliding_window", 4096).or_null(),
    Field::count("max_window_layers", 28),
    Field::derived("layer_types").or_null(),
    ROPE[0],
    ROPE[1],
    ROPE[2],
    ROPE[3],
    ROPE[4],
];

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

impl Class for Qwen3 {
    fn name(&self) -> &'static str {
        "Qwen3ForCausalLM"
    }

    fn model_type(&self) -> &'static str {
        "qwen3"
    }

    fn bare_name(&self) -> &'static str {
        "Qwen3Model"
    }

    fn fields(&self) -> &'static [Field] {
        &FIELDS
    }

    fn unsupported_keys(&self, m: &Model) -> UnsupportedKeys {
        let mut lacks = UnsupportedKeys::rotary(m);
        lacks.require("model.norm_weight", m.norm_weight, false, "true");
        lacks.require("model.embedding_norm", !m.embedding_norm, true, "false");
        lacks.require_activation(m, true);
        lacks.require("model.bias", !m.bias, true, "false");
        lacks.require("model.qk_norm", m.qk_norm.is_some(), false, "true");
        if let Some(norm) = m.qk_norm {
            let before = norm.place == QkNormPlace::BeforeRope;
            lacks.require("model.qk_norm_place", before, word(norm.place), "\"before_rope\"");
            lacks.require("model.qk_norm_weight", norm.weight, false, "true");
        }
        let positive = m.rope.direction == RopeDirection::Positive;
        lacks.require("model.rope_direction", positive, word(m.rope.direction), "\"positive\"");
        lacks.require("model.logit_cap", m.logit_cap.is_none(), or_unset(m.logit_cap), "none");
        lacks
    }

    fn config(&self, m: &Model, facts: &HfFacts) -> Value {
        json!({
            "head_dim": m.head_dim,
            "hidden_act": activations::word(&m.activation),
            "max_position_embeddings": facts.seq_len,
            "initializer_range": m.init_std.unwrap_or(0.02),
            "rms_norm_eps": m.norm_eps,
            "rope_theta": m.rope.theta,
            "rope_scaling": rope::scaling(m),
            "attention_bias": false,
            "attention_dropout": 0.0,
            "use_sliding_window": m.window.is_some(),
            "sliding_window": m.window,
            "max_window_layers": if m.window.is_some() { 0 } else { m.n_layers },
        })
    }

    fn last_config(&self, m: &Model) -> Value {
        if m.window.is_none() {
            return json!({});
        }
        let kind = |i| if m.is_global(i) { FULL } else { SLIDING };
        json!({ "layer_types": (0..m.n_layers).map(kind).collect::<Vec<_>>() })
    }

    fn tensors(&self, m: &Model) -> Vec<HfTensor> {
        blocks::all(m, |i| blocks::block(m, i))
    }

    fn keys(&self, config: &Config) -> Result<Keys> {
        let mut keys = blocks::sizes(self.name(), config, true)?;
        keys.set_number("norm_eps", "rms_norm_eps", config.number("rms_norm_eps", None)?);
        rope::read(config, keys.context, &mut keys)?;
        blocks::require_no_bias(config)?;
        window(config, config.count("num_hidden_layers", None)?, &mut keys)?;
        keys.set("tie_embeddings", "tie_word_embeddings", config.flag("tie_word_embeddings", false)?);
        Ok(keys)
    }
}

/// Maximum number of layers whose kinds are listed. Recipes have fewer.
const MAX_LAYERS: usize = 4096;

/// Sets the window, and which layers are global.
fn window(config: &Config, layers: usize, keys: &mut Keys) -> Result<()> {
    let has_window = config.flag("use_sliding_window", false)? && !config.is_null("sliding_window");
    let types = config.words("layer_types")?;
    if types.is_none() && !has_window {
        return Ok(());
    }
    if layers > MAX_LAYERS {
        return Err(config.refuse("num_hidden_layers", &format!("at most {MAX_LAYERS} are read")));
    }
    let is_global: Vec<bool> = match types {
        Some(types) => types.iter().map(|kind| is_full(config, kind)).collect::<Result<_>>()?,
        None => {
            // Zero and negative numbers are valid values of this key.
            let first = config.get("max_window_layers").and_then(Value::as_i64);
            let first =
                first.ok_or_else(|| config.refuse("max_window_layers", "a whole number is expected"))?;
            (0..layers as i64).map(|i| i < first).collect()
        }
    };
    if is_global.len() != layers {
        return Err(config.refuse("layer_types", &format!("num_hidden_layers is {layers}")));
    }
    let Some(first_window) = is_global.iter().position(|global| !global) else { return Ok(()) };
    if !has_window {
        let reason = format!(
            "without use_sliding_window and sliding_window all are \"{FULL}\", but layer {first_window} is not"
        );
        return Err(config.refuse("layer_types", &reason));
    }
    keys.set("window", "sliding_window", config.count("sliding_window", None)?);
    let Some(first) = is_global.iter().position(|global| *global) else { return Ok(()) };
    let interval = first + 1;
    let regular = is_global.iter().enumerate().all(|(i, global)| *global == (i + 1).is_multiple_of(interval));
    if !regular || interval == 1 {
        let reason = "xrun has one layer of full attention at the end of every group of layers";
        let key = if config.get("layer_types").is_some() { "layer_types" } else { "max_window_layers" };
        return Err(config.refuse(key, reason));
    }
    keys.set("global_interval", "layer_types", interval);
    Ok(())
}

/// Returns true if a layer of this kind attends to all keys. `attention` is an older word for it.
fn is_full(config: &Config, kind: &str) -> Result<bool> {
    match kind {
        FULL | "attention" => Ok(true),
        SLIDING => Ok(false),
        _ => Err(config.refuse("layer_types", &format!("xrun has \"{FULL}\" and \"{SLIDING}\""))),
    }
}
