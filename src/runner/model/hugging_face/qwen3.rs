//! `Qwen3ForCausalLM` (`models/qwen3` of transformers 5.23): RMSNorm, queries and keys normalized per head
//! before they are rotated, a gated feed-forward layer, no biases, and a window in some layers.

use super::class::Class;
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

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

impl Class for Qwen3 {
    fn name(&self) -> &'static str {
        "Qwen3ForCausalLM"
    }

    fn model_type(&self) -> &'static str {
        "qwen3"
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
        let context = config.count("max_position_embeddings", Some(32_768))?;
        let mut keys = Keys::new(self.name(), config.count("vocab_size", None)?, context);
        let heads = config.count("num_attention_heads", None)?;
        let layers = config.count("num_hidden_layers", None)?;
        keys.set("dim", config.count("hidden_size", None)?);
        keys.set("n_layers", layers);
        keys.set("n_heads", heads);
        // `null` means as many as query heads; a missing key means 32.
        let kv_heads = if config.has("num_key_value_heads") { heads } else { 32 };
        keys.set("n_kv_heads", config.count("num_key_value_heads", Some(kv_heads))?);
        keys.set("head_dim", config.count("head_dim", Some(128))?);
        keys.set("ffn_dim", config.count("intermediate_size", None)?);
        keys.set_word("activation", activations::read(config, "hidden_act", "silu", true)?);
        keys.set_number("norm_eps", config.number("rms_norm_eps", Some(1e-6))?);
        rope::read(config, context, &mut keys)?;
        blocks::require_no_bias(config)?;
        window(config, layers, &mut keys)?;
        keys.set("tie_embeddings", config.flag("tie_word_embeddings", false)?);
        Ok(keys)
    }
}

/// Maximum number of layers whose kinds are listed. Recipes have fewer.
const MAX_LAYERS: usize = 4096;

/// Sets the window, and which layers are global.
fn window(config: &Config, layers: usize, keys: &mut Keys) -> Result<()> {
    if !config.flag("use_sliding_window", false)? {
        let types = config.words("layer_types")?.unwrap_or_default();
        if types.iter().all(|kind| kind == FULL) {
            return Ok(());
        }
        return Err(config.refuse("layer_types", "without use_sliding_window all are \"full_attention\""));
    }
    let window = config.count("sliding_window", Some(4096))?;
    if layers > MAX_LAYERS {
        return Err(config.refuse("num_hidden_layers", &format!("at most {MAX_LAYERS} are read")));
    }
    let is_global: Vec<bool> = match config.words("layer_types")? {
        Some(types) => types.iter().map(|kind| kind == FULL).collect(),
        None => {
            // Zero is a valid value of this key.
            let first = config.get("max_window_layers").map_or(Some(28), Value::as_u64);
            let first =
                first.ok_or_else(|| config.refuse("max_window_layers", "a whole number is expected"))?;
            (0..layers as u64).map(|i| i < first).collect()
        }
    };
    if is_global.len() != layers {
        return Err(config.refuse("layer_types", &format!("num_hidden_layers is {layers}")));
    }
    if is_global.iter().all(|global| *global) {
        return Ok(());
    }
    keys.set("window", window);
    let Some(first) = is_global.iter().position(|global| *global) else { return Ok(()) };
    let interval = first + 1;
    let regular = is_global.iter().enumerate().all(|(i, global)| *global == (i + 1).is_multiple_of(interval));
    if !regular || interval == 1 {
        let reason = "xrun has one layer of full attention at the end of every group of layers";
        return Err(config.refuse("layer_types", reason));
    }
    keys.set("global_interval", interval);
    Ok(())
}
