//! `LlamaForCausalLM` (`models/llama` of transformers 5.24): RMSNorm, rotated queries and keys, a gated
//! feed-forward layer, biases in all products or in none.

use super::class::Class;
use super::fields::{Field, ROPE};
use super::keys::Keys;
use super::lacks::{UnsupportedKeys, or_unset, word};
use super::tensor::{HfFacts, HfTensor};
use super::{activations, blocks, rope};
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use crate::policy::RopeDirection;
use serde_json::{Value, json};

pub(super) struct Llama;

/// `LlamaConfig`.
const FIELDS: [Field; 18] = [
    Field::count("vocab_size", 32_000),
    Field::count("hidden_size", 4096),
    Field::count("intermediate_size", 11_008),
    Field::count("num_hidden_layers", 32),
    Field::count("num_attention_heads", 32),
    Field::derived("num_key_value_heads").or_null(),
    Field::derived("head_dim").or_null(),
    Field::word("hidden_act", "silu"),
    Field::count("max_position_embeddings", 2048),
    Field::number("rms_norm_eps", 1e-6),
    Field::flag("tie_word_embeddings", false),
    Field::flag("attention_bias", false),
    Field::flag("mlp_bias", false),
    ROPE[0],
    ROPE[1],
    ROPE[2],
    ROPE[3],
    ROPE[4],
];

impl Class for Llama {
    fn name(&self) -> &'static str {
        "LlamaForCausalLM"
    }

    fn model_type(&self) -> &'static str {
        "llama"
    }

    fn bare_name(&self) -> &'static str {
        "LlamaModel"
    }

    fn fields(&self) -> &'static [Field] {
        &FIELDS
    }

    fn unsupported_keys(&self, m: &Model) -> UnsupportedKeys {
        let mut lacks = UnsupportedKeys::rotary(m);
        lacks.require("model.norm_weight", m.norm_weight, false, "true");
        lacks.require("model.embedding_norm", !m.embedding_norm, true, "false");
        lacks.require_activation(m, true);
        lacks.require("model.qk_norm", m.qk_norm.is_none(), true, "false");
        let positive = m.rope.direction == RopeDirection::Positive;
        lacks.require("model.rope_direction", positive, word(m.rope.direction), "\"positive\"");
        lacks.require("model.window", m.window.is_none(), or_unset(m.window), "none");
        lacks.require("model.logit_cap", m.logit_cap.is_none(), or_unset(m.logit_cap), "none");
        // transformers rejects other configurations (`validate_architecture`), whatever `head_dim` is.
        let even = m.n_heads > 0 && m.dim.is_multiple_of(m.n_heads);
        lacks.require("model.n_heads", even, m.n_heads, &format!("divisors of model.dim = {}", m.dim));
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
            "attention_bias": m.bias,
            "attention_dropout": 0.0,
            "mlp_bias": m.bias,
            "pretraining_tp": 1,
        })
    }

    fn tensors(&self, m: &Model) -> Vec<HfTensor> {
        blocks::all(m, |i| blocks::block(m, i))
    }

    fn keys(&self, config: &Config) -> Result<Keys> {
        let mut keys = blocks::sizes(self.name(), config, true)?;
        // transformers rejects other configurations (`validate_architecture`), whatever `head_dim` is.
        let (dim, heads) = (config.count("hidden_size", None)?, config.count("num_attention_heads", None)?);
        if !dim.is_multiple_of(heads) {
            return Err(config.refuse("num_attention_heads", &format!("it must divide hidden_size = {dim}")));
        }
        let bias = config.flag("attention_bias", false)?;
        let instead =
            format!("attention_bias is {bias}: xrun's models have biases in all products or in none");
        if config.flag("mlp_bias", false)? != bias {
            return Err(config.refuse("mlp_bias", &instead));
        }
        keys.set("bias", "attention_bias", bias);
        keys.set("qk_norm", "", false);
        keys.set_number("norm_eps", "rms_norm_eps", config.number("rms_norm_eps", None)?);
        rope::read(config, keys.context, &mut keys)?;
        keys.set("tie_embeddings", "tie_word_embeddings", config.flag("tie_word_embeddings", false)?);
        Ok(keys)
    }
}
