//! What Llama, Qwen3 and NanoChat share: keys of configurations, and the names of tensors.

use super::activations;
use super::keys::Keys;
use super::tensor::HfTensor;
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use serde_json::json;

/// Starts the keys of a configuration with its sizes and its activation. `gated` says whether the class's
/// layer has a gate.
pub(super) fn sizes(class: &'static str, config: &Config, gated: bool) -> Result<Keys> {
    let count = |key| config.count(key, None);
    let mut keys = Keys::new(class, count("vocab_size")?, count("max_position_embeddings")?);
    let (dim, heads) = (count("hidden_size")?, count("num_attention_heads")?);
    keys.set("dim", "hidden_size", dim);
    keys.set("n_layers", "num_hidden_layers", count("num_hidden_layers")?);
    keys.set("n_heads", "num_attention_heads", heads);
    keys.set("n_kv_heads", "num_key_value_heads", config.count("num_key_value_heads", Some(heads))?);
    keys.set("head_dim", "head_dim", config.count("head_dim", Some((dim / heads).max(1)))?);
    keys.set("ffn_dim", "intermediate_size", count("intermediate_size")?);
    keys.set_word("activation", "hidden_act", activations::read(config, "hidden_act", gated)?);
    Ok(keys)
}

/// Rejects a configuration with biases in the products of attention alone.
pub(super) fn require_no_bias(config: &Config) -> Result<()> {
    let reason = "xrun's models have biases in all products or in none: false";
    config.require("attention_bias", &json!(false), reason)
}

/// Returns the tensors of block `i` of a class with weights in its norms and a gate.
pub(super) fn block(m: &Model, i: usize) -> Vec<HfTensor> {
    let norm = |name: &str, source: &str| {
        let to = format!("model.layers.{i}.{name}.weight");
        HfTensor::whole(to, format!("blocks.{i}.{source}"), &[m.dim])
    };
    let mut tensors = vec![norm("input_layernorm", "attention_norm")];
    tensors.extend(attention(m, i));
    tensors.push(norm("post_attention_layernorm", "ffn_norm"));
    tensors.extend(gated(m, i));
    tensors
}

/// Returns the rows from `first_row` on of a weight with this many `inputs`, and of its bias if the model has
/// biases. `shapes` are the outputs of the parameter and of these rows.
fn product(
    m: &Model,
    to: &str,
    from: &str,
    shapes: [&[usize]; 2],
    inputs: usize,
    first_row: usize,
) -> Vec<HfTensor> {
    let [all, own] = shapes;
    let [all_weights, own_weights] = shapes.map(|outputs| [outputs, &[inputs]].concat());
    let weight = HfTensor::rows_of(format!("{to}.weight"), from, &all_weights, &own_weights, first_row);
    let bias = || HfTensor::rows_of(format!("{to}.bias"), format!("{from}_bias"), all, own, first_row);
    std::iter::once(weight).chain(m.bias.then(bias)).collect()
}

/// Returns the attention weights of block `i`, and their biases if the model has biases, with the weights of
/// the norms of queries and keys, if these have weights.
pub(super) fn attention(m: &Model, i: usize) -> Vec<HfTensor> {
    let (d, q, kv) = (m.dim, m.n_heads * m.head_dim, m.n_kv_heads * m.head_dim);
    let to = |name: &str| format!("model.layers.{i}.self_attn.{name}");
    let from = |name: &str| format!("blocks.{i}.{name}");
    let mut tensors = Vec::new();
    for (name, rows, first_row) in [("q_proj", q, 0), ("k_proj", kv, q), ("v_proj", kv, q + kv)] {
        tensors.extend(product(m, &to(name), &from("qkv"), [&[q + 2 * kv], &[rows]], d, first_row));
    }
    if m.qk_norm.is_some_and(|norm| norm.weight) {
        let weight = |name: &str| HfTensor::whole(to(&format!("{name}.weight")), from(name), &[m.head_dim]);
        tensors.extend(["q_norm", "k_norm"].map(weight));
    }
    tensors.extend(product(m, &to("o_proj"), &from("out"), [&[d], &[d]], q, 0));
    tensors
}

/// Returns the weights of block `i`'s gated feed-forward layer, and their biases if the model has biases.
fn gated(m: &Model, i: usize) -> Vec<HfTensor> {
    let (d, ffn) = (m.dim, m.ffn_dim);
    let to = |name: &str| format!("model.layers.{i}.mlp.{name}");
    let from = |name: &str| format!("blocks.{i}.{name}");
    let mut tensors = Vec::new();
    for (name, first_row) in [("gate_proj", 0), ("up_proj", ffn)] {
        tensors.extend(product(m, &to(name), &from("gate_up"), [&[2, ffn], &[ffn]], d, first_row));
    }
    tensors.extend(product(m, &to("down_proj"), &from("down"), [&[d], &[d]], ffn, 0));
    tensors
}

/// Returns the weight of a norm over the residual stream, if norms have weights.
fn norm(m: &Model, to: impl Into<String>, from: impl Into<String>) -> Option<HfTensor> {
    m.norm_weight.then(|| HfTensor::whole(to, from, &[m.dim]))
}

/// Returns all tensors of a class with Llama's tensor names. `block` returns the tensors of one block.
pub(super) fn all(m: &Model, block: impl Fn(usize) -> Vec<HfTensor>) -> Vec<HfTensor> {
    let vocabulary = [m.vocab_size, m.dim];
    let mut tensors = vec![HfTensor::whole("model.embed_tokens.weight", "embedding", &vocabulary)];
    tensors.extend((0..m.n_layers).flat_map(block));
    tensors.extend(norm(m, "model.norm.weight", "final_norm"));
    if !m.tie_embeddings {
        tensors.push(HfTensor::whole("lm_head.weight", "head", &vocabulary));
    }
    tensors
}
