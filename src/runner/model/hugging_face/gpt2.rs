//! `GPT2LMHeadModel` (`models/gpt2` of transformers 5.24): learned positions, LayerNorm with weight and bias,
//! a feed-forward layer without a gate, biases everywhere. Its `Conv1D` stores weights as
//! `[inputs, outputs]`, and the attention's `Conv1D` has queries, keys and values side by side.

use super::activations;
use super::class::Class;
use super::fields::Field;
use super::keys::Keys;
use super::lacks::{UnsupportedKeys, or_unset, word};
use super::tensor::{HfFacts, HfTensor};
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use crate::policy::{Norm, Position};
use serde_json::{Value, json};

pub(super) struct Gpt2;

/// `GPT2Config`.
const FIELDS: [Field; 12] = [
    Field::count("vocab_size", 50_257),
    Field::count("n_positions", 1024),
    Field::count("n_embd", 768),
    Field::count("n_layer", 12),
    Field::count("n_head", 12),
    Field::derived("n_inner").or_null(),
    Field::word("activation_function", "gelu_new"),
    Field::number("layer_norm_epsilon", 1e-5),
    Field::flag("scale_attn_weights", true),
    Field::flag("scale_attn_by_inverse_layer_idx", false),
    Field::flag("add_cross_attention", false),
    Field::flag("tie_word_embeddings", true),
];

/// `GPT2Config.attribute_map`.
const ALIASES: [(&str, &str); 4] = [
    ("hidden_size", "n_embd"),
    ("max_position_embeddings", "n_positions"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
];

impl Class for Gpt2 {
    fn name(&self) -> &'static str {
        "GPT2LMHeadModel"
    }

    fn model_type(&self) -> &'static str {
        "gpt2"
    }

    fn bare_name(&self) -> &'static str {
        "GPT2Model"
    }

    fn fields(&self) -> &'static [Field] {
        &FIELDS
    }

    fn aliases(&self) -> &'static [(&'static str, &'static str)] {
        &ALIASES
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
        let count = |key| config.count(key, None);
        let mut keys = Keys::new(self.name(), count("vocab_size")?, count("n_positions")?);
        let (dim, heads) = (count("n_embd")?, count("n_head")?);
        if !dim.is_multiple_of(heads) {
            return Err(config.refuse("n_head", &format!("it must divide n_embd = {dim}")));
        }
        keys.set("dim", "n_embd", dim);
        keys.set("n_layers", "n_layer", count("n_layer")?);
        keys.set("n_heads", "n_head", heads);
        keys.set("ffn_dim", "n_inner", config.count("n_inner", Some(dim.saturating_mul(4)))?);
        let activation = activations::read(config, "activation_function", false)?;
        keys.set_word("activation", "activation_function", activation);
        keys.set("bias", "", true);
        keys.set_word("norm", "", Norm::LayerNorm);
        keys.set_number("norm_eps", "layer_norm_epsilon", config.number("layer_norm_epsilon", None)?);
        keys.set_word("position", "", Position::Learned);
        keys.set("qk_norm", "", false);
        config.require(
            "scale_attn_weights",
            &json!(true),
            "xrun divides scores by the root of the head's width: true",
        )?;
        let same = "xrun scales the scores of all layers alike: false";
        config.require("scale_attn_by_inverse_layer_idx", &json!(false), same)?;
        config.require("add_cross_attention", &json!(false), "xrun's models are only decoders: false")?;
        keys.set("tie_embeddings", "tie_word_embeddings", config.flag("tie_word_embeddings", true)?);
        Ok(keys)
    }

    /// Older versions saved causal masks as `h.N.attn.bias` and `h.N.attn.masked_bias`.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
    }
}
