//! `NanoChatForCausalLM` (`models/nanochat` of transformers 5.24): RMSNorm without weights, also after the
//! embedding; queries and keys rotated backwards and then normalized, without weights; a feed-forward layer
//! without a gate; no biases; a soft cap of logits.

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

pub(super) struct NanoChat;

const CAP: &str = "final_logit_softcapping";

/// `NanoChatConfig`.
const FIELDS: [Field; 18] = [
    Field::count("vocab_size", 50_304),
    Field::count("hidden_size", 768),
    Field::count("intermediate_size", 8192),
    Field::count("num_hidden_layers", 12),
    Field::count("num_attention_heads", 6),
    Field::derived("num_key_value_heads").or_null(),
    // Not a field of the configuration class, but the model uses it if it is present.
    Field::derived("head_dim"),
    Field::word("hidden_act", "relu2"),
    Field::count("max_position_embeddings", 2048),
    Field::number("rms_norm_eps", 1e-6),
    Field::number(CAP, 15.0).or_null(),
    Field::flag("tie_word_embeddings", false),
    Field::flag("attention_bias", false),
    ROPE[0],
    ROPE[1],
    ROPE[2],
    ROPE[3],
    ROPE[4],
];

impl Class for NanoChat {
    fn name(&self) -> &'static str {
        "NanoChatForCausalLM"
    }

    fn model_type(&self) -> &'static str {
        "nanochat"
    }

    fn bare_name(&self) -> &'static str {
        "NanoChatModel"
    }

    fn fields(&self) -> &'static [Field] {
        &FIELDS
    }

    fn unsupported_keys(&self, m: &Model) -> UnsupportedKeys {
        let mut lacks = UnsupportedKeys::rotary(m);
        lacks.require("model.norm_weight", !m.norm_weight, true, "false");
        lacks.require("model.embedding_norm", m.embedding_norm, false, "true");
        lacks.require_activation(m, false);
        lacks.require("model.bias", !m.bias, true, "false");
        lacks.require("model.qk_norm", m.qk_norm.is_some(), false, "true");
        if let Some(norm) = m.qk_norm {
            let after = norm.place == QkNormPlace::AfterRope;
            lacks.require("model.qk_norm_place", after, word(norm.place), "\"after_rope\"");
            lacks.require("model.qk_norm_weight", !norm.weight, true, "false");
        }
        let negative = m.rope.direction == RopeDirection::Negative;
        lacks.require("model.rope_direction", negative, word(m.rope.direction), "\"negative\"");
        lacks.require("model.window", m.window.is_none(), or_unset(m.window), "none");
        lacks
    }

    fn config(&self, m: &Model, facts: &HfFacts) -> Value {
        json!({
            "max_position_embeddings": facts.seq_len,
            "hidden_act": activations::word(&m.activation),
            "attention_dropout": 0.0,
            "rms_norm_eps": m.norm_eps,
            "initializer_range": m.init_std.unwrap_or(0.02),
            "rope_theta": m.rope.theta,
            "rope_scaling": rope::scaling(m),
            "final_logit_softcapping": m.logit_cap,
            "attention_bias": false,
        })
    }

    fn last_config(&self, m: &Model) -> Value {
        // The class would not train the embedding of a padding token.
        let mut last = json!({ "pad_token_id": null });
        if m.n_heads.checked_mul(m.head_dim) != Some(m.dim) {
            last["head_dim"] = m.head_dim.into();
        }
        last
    }

    fn tensors(&self, m: &Model) -> Vec<HfTensor> {
        let (d, ffn) = (m.dim, m.ffn_dim);
        blocks::all(m, |i| {
            let to = |name: &str| format!("model.layers.{i}.mlp.{name}.weight");
            let from = |name: &str| format!("blocks.{i}.{name}");
            let mut tensors = blocks::attention(m, i);
            tensors.push(HfTensor::whole(to("fc1"), from("up"), &[ffn, d]));
            tensors.push(HfTensor::whole(to("fc2"), from("down"), &[d, ffn]));
            tensors
        })
    }

    fn keys(&self, config: &Config) -> Result<Keys> {
        let mut keys = blocks::sizes(self.name(), config, false)?;
        keys.set("norm_weight", "", false);
        keys.set("embedding_norm", "", true);
        keys.set_number("norm_eps", "rms_norm_eps", config.number("rms_norm_eps", None)?);
        keys.set("qk_norm", "", true);
        keys.set_word("qk_norm_place", "", QkNormPlace::AfterRope);
        keys.set("qk_norm_weight", "", false);
        keys.set_word("rope_direction", "", RopeDirection::Negative);
        rope::read(config, keys.context, &mut keys)?;
        blocks::require_no_bias(config)?;
        // `null` means a model without a cap.
        if config.get(CAP).is_some() {
            keys.set_number("logit_cap", CAP, config.number(CAP, None)?);
        }
        keys.set("tie_embeddings", "tie_word_embeddings", config.flag("tie_word_embeddings", false)?);
        Ok(keys)
    }
}
