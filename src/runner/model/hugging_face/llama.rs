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

    fn prefix(&self) -> &'static str {
        "model."
    }

    fn unsupported_keys(&self, m: &Model) -> UnsupportedKeys {
        let mut lacks = UnsupportedKeys::rotary(m);
        lacks.require("model.norm_weight", m.norm_weight, false, "true");
        lacks.require("model.embedding_norm", !m.embedding_norm, true, "false");
        lacks.require(
            "model.activation",
            activations::has(&m.activation, true),
            word(&m.activation),
            "gated ones",
        );
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
            "architectures": [self.name()],
            "model_type": self.model_type(),
            "torch_dtype": facts.torch_dtype,
            "vocab_size": m.vocab_size,
            "hidden_size": m.dim,
            "intermediate_size": m.ffn_dim,
            "num_hidden_layers": m.n_layers,
            "num_attention_heads": m.n_heads,
            "num_key_value_heads": m.n_kv_heads,
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
            "tie_word_embeddings": m.tie_embeddings,
            "use_cache": true,
            "bos_token_id": facts.end_token_id,
            "eos_token_id": facts.end_token_id,
        })
    }

    fn tensors(&self, m: &Model) -> Vec<HfTensor> {
        blocks::all(m, |i| {
            let to = |name: &str| format!("model.layers.{i}.{name}.weight");
            let from = |name: &str| format!("blocks.{i}.{name}");
            let mut tensors = vec![HfTensor::whole(to("input_layernorm"), from("attention_norm"), &[m.dim])];
            tensors.extend(blocks::attention(m, i));
            tensors.push(HfTensor::whole(to("post_attention_layernorm"), from("ffn_norm"), &[m.dim]));
            tensors.extend(blocks::gated(m, i));
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
        keys.set("head_dim", config.count("head_dim", Some((dim / heads).max(1)))?);
        keys.set("ffn_dim", config.count("intermediate_size", None)?);
        keys.set_word("activation", activations::read(config, "hidden_act", "silu", true)?);
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
