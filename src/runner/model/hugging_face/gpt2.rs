//! `GPT2LMHeadModel` (`models/gpt2` of transformers 5.23): learned positions, LayerNorm with weight and bias,
//! a feed-forward layer without a gate, biases everywhere. Its `Conv1D` stores weights as
//! `[inputs, outputs]`, and the attention's `Conv1D` has queries, keys and values side by side.

use super::activations;
use super::class::Class;
use super::keys::Keys;
use super::lacks::{UnsupportedKeys, or_unset, word};
use super::tensor::{HfFacts, HfTensor};
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use crate::policy::{Norm, Position};
use serde_json::{Value, json};

pub(super) struct Gpt2;

impl Class for Gpt2 {
    fn name(&self) -> &'static str {
        "GPT2LMHeadModel"
    }

    fn model_type(&self) -> &'static str {
        "gpt2"
    }

    fn prefix(&self) -> &'static str {
        "transformer."
    }

    fn unsupported_keys(&self, m: &Model) -> UnsupportedKeys {
        let mut lacks = UnsupportedKeys::common(m);
        lacks.require("model.norm", m.norm == Norm::LayerNorm, word(m.norm), "\"layer_norm\"");
        lacks.require("model.norm_weight", m.norm_weight, false, "true");
        lacks.require("model.norm_bias", m.norm_bias, false, "true");
        lacks.require("model.embedding_norm", !m.embedding_norm, true, "false");
        lacks.require_activation(m, false);
        lacks.require("model.bias", m.bias, false, "true");
        lacks.require("model.position", m.position == Position::Learned, word(m.position), "\"learned\"");
        lacks.require("model.qk_norm", m.qk_norm.is_none(), true, "false");
        lacks.require(
            "model.n_kv_heads",
            m.n_kv_heads == m.n_heads,
            m.n_kv_heads,
            &format!("model.n_heads = {}", m.n_heads),
        );
        let whole = m.n_heads.checked_mul(m.head_dim) == Some(m.dim);
        lacks.require("model.head_dim", whole, m.head_dim, "model.dim / model.n_heads");
        lacks.require("model.window", m.window.is_none(), or_unset(m.window), "none");
        lacks.require("model.logit_cap", m.logit_cap.is_none(), or_unset(m.logit_cap), "none");
        lacks
    }

    fn sizes(&self, m: &Model) -> Value {
        json!({
            "n_positions": m.learned_positions,
            "n_embd": m.dim,
            "n_layer": m.n_layers,
            "n_head": m.n_heads,
            "n_inner": m.ffn_dim,
        })
    }

    fn config(&self, m: &Model, _facts: &HfFacts) -> Value {
        json!({
            "activation_function": activations::word(&m.activation),
            "resid_pdrop": m.dropout,
            "embd_pdrop": m.dropout,
            "attn_pdrop": m.dropout,
            "layer_norm_epsilon": m.norm_eps,
            "initializer_range": m.init_std.unwrap_or(0.02),
            "scale_attn_weights": true,
            "scale_attn_by_inverse_layer_idx": false,
            "reorder_and_upcast_attn": false,
            "add_cross_attention": false,
        })
    }

    fn tensors(&self, m: &Model) -> Vec<HfTensor> {
        let (d, ffn, qkv) = (m.dim, m.ffn_dim, m.qkv_width());
        let mut tensors = vec![
            HfTensor::whole("transformer.wte.weight", "embedding", &[m.vocab_size, d]),
            HfTensor::whole("transformer.wpe.weight", "positions", &[m.learned_positions, d]),
        ];
        let norm = |to: String, from: String| {
            [
                HfTensor::whole(format!("{to}.weight"), from.clone(), &[d]),
                HfTensor::whole(format!("{to}.bias"), format!("{from}_bias"), &[d]),
            ]
        };
        for i in 0..m.n_layers {
            let to = |name: &str| format!("transformer.h.{i}.{name}");
            let from = |name: &str| format!("blocks.{i}.{name}");
            let product = |to_name: &str, name: &str, shape: [usize; 2]| {
                [
                    HfTensor::transposed(to(&format!("{to_name}.weight")), from(name), shape),
                    HfTensor::whole(
                        to(&format!("{to_name}.bias")),
                        from(&format!("{name}_bias")),
                        &shape[..1],
                    ),
                ]
            };
            tensors.extend(norm(to("ln_1"), from("attention_norm")));
            tensors.extend(product("attn.c_attn", "qkv", [qkv, d]));
            tensors.extend(product("attn.c_proj", "out", [d, d]));
            tensors.extend(norm(to("ln_2"), from("ffn_norm")));
            tensors.extend(product("mlp.c_fc", "up", [ffn, d]));
            tensors.extend(product("mlp.c_proj", "down", [d, ffn]));
        }
        tensors.extend(norm("transformer.ln_f".to_owned(), "final_norm".to_owned()));
        if !m.tie_embeddings {
            tensors.push(HfTensor::whole("lm_head.weight", "head", &[m.vocab_size, d]));
        }
        tensors
    }

    fn keys(&self, config: &Config) -> Result<Keys> {
        let context = config.count("n_positions", Some(1024))?;
        let mut keys = Keys::new(self.name(), config.count("vocab_size", None)?, context);
        let dim = config.count("n_embd", None)?;
        keys.set("dim", dim);
        keys.set("n_layers", config.count("n_layer", None)?);
        keys.set("n_heads", config.count("n_head", None)?);
        keys.set("ffn_dim", config.count("n_inner", Some(dim.saturating_mul(4)))?);
        keys.set_word("activation", activations::read(config, "activation_function", "gelu_new", false)?);
        keys.set("bias", true);
        keys.set_word("norm", Norm::LayerNorm);
        keys.set_number("norm_eps", config.number("layer_norm_epsilon", Some(1e-5))?);
        keys.set_word("position", Position::Learned);
        keys.set("qk_norm", false);
        config.require(
            "scale_attn_weights",
            &json!(true),
            "xrun divides scores by the root of the head's width: true",
        )?;
        let same = "xrun scales the scores of all layers alike: false";
        config.require("scale_attn_by_inverse_layer_idx", &json!(false), same)?;
        config.require("add_cross_attention", &json!(false), "xrun's models are only decoders: false")?;
        keys.set("tie_embeddings", config.flag("tie_word_embeddings", true)?);
        Ok(keys)
    }

    /// Older versions saved causal masks as `h.N.attn.bias` and `h.N.attn.masked_bias`.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
    }
}
