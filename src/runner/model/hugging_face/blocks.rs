//! Block tensors to which Llama, Qwen3 and NanoChat give the same names.

use super::tensor::HfTensor;
use crate::plan::Model;

/// Returns the attention weights of block `i`, and their biases if the model has biases.
pub(super) fn attention(m: &Model, i: usize) -> Vec<HfTensor> {
    let (d, q, kv) = (m.dim, m.n_heads * m.head_dim, m.n_kv_heads * m.head_dim);
    let to = |name: &str| format!("model.layers.{i}.self_attn.{name}");
    let from = |name: &str| format!("blocks.{i}.{name}");
    let parts = [("q_proj", q, 0), ("k_proj", kv, q), ("v_proj", kv, q + kv)];
    let mut tensors = Vec::new();
    for (name, rows, first_row) in parts {
        let all = q + 2 * kv;
        tensors.push(HfTensor::rows_of(
            to(&format!("{name}.weight")),
            from("qkv"),
            &[all, d],
            &[rows, d],
            first_row,
        ));
        if m.bias {
            tensors.push(HfTensor::rows_of(
                to(&format!("{name}.bias")),
                from("qkv_bias"),
                &[all],
                &[rows],
                first_row,
            ));
        }
    }
    tensors.push(HfTensor::whole(to("o_proj.weight"), from("out"), &[d, q]));
    if m.bias {
        tensors.push(HfTensor::whole(to("o_proj.bias"), from("out_bias"), &[d]));
    }
    tensors
}

/// Returns the weights of block `i`'s gated feed-forward layer, and their biases if the model has biases.
pub(super) fn gated(m: &Model, i: usize) -> Vec<HfTensor> {
    let (d, ffn) = (m.dim, m.ffn_dim);
    let to = |name: &str| format!("model.layers.{i}.mlp.{name}");
    let from = |name: &str| format!("blocks.{i}.{name}");
    let mut tensors = Vec::new();
    for (name, first_row) in [("gate_proj", 0), ("up_proj", ffn)] {
        let weight = to(&format!("{name}.weight"));
        tensors.push(HfTensor::rows_of(weight, from("gate_up"), &[2, ffn, d], &[ffn, d], first_row));
        if m.bias {
            let bias = to(&format!("{name}.bias"));
            tensors.push(HfTensor::rows_of(bias, from("gate_up_bias"), &[2, ffn], &[ffn], first_row));
        }
    }
    tensors.push(HfTensor::whole(to("down_proj.weight"), from("down"), &[d, ffn]));
    if m.bias {
        tensors.push(HfTensor::whole(to("down_proj.bias"), from("down_bias"), &[d]));
    }
    tensors
}

/// Returns the weight of a norm over the residual stream, if norms have weights.
pub(super) fn norm(m: &Model, to: impl Into<String>, from: impl Into<String>) -> Option<HfTensor> {
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
