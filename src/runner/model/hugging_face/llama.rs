//! `LlamaForCausalLM` (`models/llama` of transformers 5.23): RMSNorm, rotated queries and keys, a gated
//! feed-forward layer, biases in all products or in none.

use super::class::Class;
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

impl Class for Llama {
    fn name(&self) -> &'static str {
        "LlamaForCausalLM"
    }

    fn model_type(&self) -> &'static str {
        "llama"
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
        let context = config.count("max_position_embeddings", Some(2048))?;
        let mut keys = Keys::new(self.name(), config.count("vocab_size", None)?, context);
        blocks::read_sizes(config, &mut keys, "silu", true)?;
        let bias = config.flag("attention_bias", false)?;
        let instead =
            format!("attention_bias is {bias}: xrun's models have biases in all products or in none");
        if config.flag("mlp_bias", false)? != bias {
            return Err(config.refuse("mlp_bias", &instead));
        }
        keys.set("bias", bias);
        keys.set("qk_norm", false);
        keys.set_number("norm_eps", config.number("rms_norm_eps", Some(1e-6))?);
        rope::read(config, context, &mut keys)?;
        keys.set("tie_embeddings", config.flag("tie_word_embeddings", false)?);
        Ok(keys)
    }
}
