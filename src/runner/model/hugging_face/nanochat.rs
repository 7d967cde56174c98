//! `NanoChatForCausalLM` (`models/nanochat` of transformers 5.23): RMSNorm without weights, also after the
//! embedding; queries and keys rotated backwards and then normalized, without weights; a feed-forward layer
//! without a gate; no biases; a soft cap of logits.

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

pub(super) struct NanoChat;

const CAP: &str = "final_logit_softcapping";

/// The cap of a configuration without that key.
const DEFAULT_CAP: f64 = 15.0;

impl Class for NanoChat {
    fn name(&self) -> &'static str {
        "NanoChatForCausalLM"
    }

    fn model_type(&self) -> &'static str {
        "nanochat"
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
        let whole = m.n_heads.checked_mul(m.head_dim) == Some(m.dim);
        lacks.require("model.head_dim", whole, m.head_dim, "model.dim / model.n_heads");
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

    fn last_config(&self, _m: &Model) -> Value {
        // The class would not train the embedding of a padding token.
        json!({ "pad_token_id": null })
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
        let context = config.count("max_position_embeddings", Some(2048))?;
        let mut keys = Keys::new(self.name(), config.count("vocab_size", None)?, context);
        // `head_dim` is not a field of the configuration class, but the model uses it if it is present.
        blocks::read_sizes(config, &mut keys, "relu2", false)?;
        keys.set("norm_weight", false);
        keys.set("embedding_norm", true);
        keys.set_number("norm_eps", config.number("rms_norm_eps", Some(1e-6))?);
        keys.set("qk_norm", true);
        keys.set_word("qk_norm_place", QkNormPlace::AfterRope);
        keys.set("qk_norm_weight", false);
        keys.set_word("rope_direction", RopeDirection::Negative);
        rope::read(config, context, &mut keys)?;
        blocks::require_no_bias(config)?;
        // `null` means a model without a cap.
        if !config.has(CAP) || config.get(CAP).is_some() {
            keys.set_number("logit_cap", config.number(CAP, Some(DEFAULT_CAP))?);
        }
        keys.set("tie_embeddings", config.flag("tie_word_embeddings", false)?);
        Ok(keys)
    }
}
