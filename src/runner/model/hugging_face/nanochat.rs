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

    fn prefix(&self) -> &'static str {
        "model."
    }

    fn unsupported_keys(&self, m: &Model) -> UnsupportedKeys {
        let mut lacks = UnsupportedKeys::rotary(m);
        lacks.require("model.norm_weight", !m.norm_weight, true, "false");
        lacks.require("model.embedding_norm", m.embedding_norm, false, "true");
        lacks.require(
            "model.activation",
            activations::has(&m.activation, false),
            word(&m.activation),
            "those without a gate",
        );
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
            "architectures": [self.name()],
            "model_type": self.model_type(),
            "torch_dtype": facts.torch_dtype,
            "vocab_size": m.vocab_size,
            "hidden_size": m.dim,
            "intermediate_size": m.ffn_dim,
            "num_hidden_layers": m.n_layers,
            "num_attention_heads": m.n_heads,
            "num_key_value_heads": m.n_kv_heads,
            "max_position_embeddings": facts.seq_len,
            "hidden_act": activations::word(&m.activation),
            "attention_dropout": 0.0,
            "rms_norm_eps": m.norm_eps,
            "initializer_range": m.init_std.unwrap_or(0.02),
            "rope_theta": m.rope.theta,
            "rope_scaling": rope::scaling(m),
            "final_logit_softcapping": m.logit_cap,
            "attention_bias": false,
            "tie_word_embeddings": m.tie_embeddings,
            "use_cache": true,
            "bos_token_id": facts.end_token_id,
            "eos_token_id": facts.end_token_id,
            // The class would not train the embedding of a padding token.
            "pad_token_id": null,
        })
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
        let (dim, heads) = (config.count("hidden_size", None)?, config.count("num_attention_heads", None)?);
        keys.set("dim", dim);
        keys.set("n_layers", config.count("num_hidden_layers", None)?);
        keys.set("n_heads", heads);
        keys.set("n_kv_heads", config.count("num_key_value_heads", Some(heads))?);
        // Not a field of the configuration class, but the model uses it if it is present.
        keys.set("head_dim", config.count("head_dim", Some((dim / heads).max(1)))?);
        keys.set("ffn_dim", config.count("intermediate_size", None)?);
        keys.set_word("activation", activations::read(config, "hidden_act", "relu2", false)?);
        keys.set("norm_weight", false);
        keys.set("embedding_norm", true);
        keys.set_number("norm_eps", config.number("rms_norm_eps", Some(1e-6))?);
        keys.set("qk_norm", true);
        keys.set_word("qk_norm_place", QkNormPlace::AfterRope);
        keys.set("qk_norm_weight", false);
        keys.set_word("rope_direction", RopeDirection::Negative);
        rope::read(config, context, &mut keys)?;
        config.require(
            "attention_bias",
            &json!(false),
            "xrun's models have biases in all products or in none: false",
        )?;
        // `null` means a model without a cap.
        if !config.has(CAP) || config.get(CAP).is_some() {
            keys.set_number("logit_cap", config.number(CAP, Some(DEFAULT_CAP))?);
        }
        keys.set("tie_embeddings", config.flag("tie_word_embeddings", false)?);
        Ok(keys)
    }
}
