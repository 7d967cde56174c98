//! The form of Qwen3 that HuggingFace's `Qwen3ForCausalLM` loads: checks, configuration, names of tensors.

use crate::error::{Error, Result};
use crate::model::family::{HfFacts, HfModel, HfTensor};
use crate::plan::Model;
use crate::policy::{Norm, NormPlacement};
use serde_json::json;

/// Returns the model in HuggingFace's form.
pub(super) fn model(m: &Model, facts: &HfFacts) -> Result<HfModel> {
    check(m)?;
    Ok(HfModel { architecture: "Qwen3", config: config(m, facts), tensors: tensors(m) })
}

/// Rejects what HuggingFace's class cannot express, and sizes whose products overflow.
fn check(m: &Model) -> Result<()> {
    if m.norm != Norm::RmsNorm {
        return Err(Error::usage(format!(
            "model.norm is \"{}\": HuggingFace's Qwen3 has RMSNorm only, so it cannot load this model. \
             Train with model.norm = \"rms_norm\" to export",
            m.norm
        )));
    }
    if m.qk_norm.is_none() {
        return Err(Error::usage(
            "model.qk_norm is false: HuggingFace's Qwen3 always normalizes queries and keys, so it cannot load \
             this model. Train with model.qk_norm = true to export",
        ));
    }
    if m.norm_placement != NormPlacement::Pre || m.embedding_norm || m.parallel_blocks {
        return Err(Error::usage(
            "model.norm_placement, model.embedding_norm or model.parallel_blocks is set: HuggingFace's Qwen3 has \
             one norm before each sublayer, so it cannot load this model. Train without them to export",
        ));
    }
    if m.window.is_some() || m.score_cap.is_some() {
        return Err(Error::usage(
            "model.window or model.score_cap is set: HuggingFace's Qwen3 attends to all keys and has no cap, so it \
             cannot load this model. Train without them to export",
        ));
    }
    if m.n_kv_heads == 0 || !m.n_heads.is_multiple_of(m.n_kv_heads) {
        return Err(Error::usage(format!(
            "{} query heads cannot share {} key-value heads evenly",
            m.n_heads, m.n_kv_heads
        )));
    }
    let heads = m.n_kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(m.n_heads));
    let elements = [
        heads.and_then(|h| h.checked_mul(m.head_dim)).and_then(|rows| rows.checked_mul(m.dim)),
        m.vocab_size.checked_mul(m.dim),
        m.ffn_dim.checked_mul(2).and_then(|rows| rows.checked_mul(m.dim)),
    ];
    if elements.iter().any(|n| n.and_then(|n| n.checked_mul(4)).is_none()) {
        return Err(Error::usage("the model's sizes are too large to address"));
    }
    Ok(())
}

fn config(m: &Model, facts: &HfFacts) -> serde_json::Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": facts.torch_dtype,
        "vocab_size": m.vocab_size,
        "hidden_size": m.dim,
        "intermediate_size": m.ffn_dim,
        "num_hidden_layers": m.n_layers,
        "num_attention_heads": m.n_heads,
        "num_key_value_heads": m.n_kv_heads,
        "head_dim": m.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": facts.seq_len,
        "initializer_range": 0.02,
        "rms_norm_eps": m.norm_eps,
        "rope_theta": m.rope.theta,
        "rope_scaling": null,
        "attention_bias": false,
        "attention_dropout": 0.0,
        "use_sliding_window": false,
        "sliding_window": null,
        "max_window_layers": m.n_layers,
        "tie_word_embeddings": m.tie_embeddings,
        "use_cache": true,
        "bos_token_id": facts.end_token_id,
        "eos_token_id": facts.end_token_id,
    })
}

/// Returns every tensor: embedding, blocks, final norm, head.
fn tensors(m: &Model) -> Vec<HfTensor> {
    let (d, hd, ffn) = (m.dim, m.head_dim, m.ffn_dim);
    let (q, kv) = (m.n_heads * hd, m.n_kv_heads * hd);
    let mut tensors = vec![HfTensor::whole("model.embed_tokens.weight", "embedding", &[m.vocab_size, d])];
    for i in 0..m.n_layers {
        let to = |name: &str| format!("model.layers.{i}.{name}.weight");
        let from = |name: &str| format!("blocks.{i}.{name}");
        let qkv = |name: &str, rows, first_row| {
            HfTensor::rows_of(to(name), from("qkv"), &[q + 2 * kv, d], (rows, d), first_row)
        };
        let gate_up = |name: &str, first_row| {
            HfTensor::rows_of(to(name), from("gate_up"), &[2, ffn, d], (ffn, d), first_row)
        };
        tensors.extend([
            HfTensor::whole(to("input_layernorm"), from("attention_norm"), &[d]),
            qkv("self_attn.q_proj", q, 0),
            qkv("self_attn.k_proj", kv, q),
            qkv("self_attn.v_proj", kv, q + kv),
            HfTensor::whole(to("self_attn.q_norm"), from("q_norm"), &[hd]),
            HfTensor::whole(to("self_attn.k_norm"), from("k_norm"), &[hd]),
            HfTensor::whole(to("self_attn.o_proj"), from("out"), &[d, q]),
            HfTensor::whole(to("post_attention_layernorm"), from("ffn_norm"), &[d]),
            gate_up("mlp.gate_proj", 0),
            gate_up("mlp.up_proj", ffn),
            HfTensor::whole(to("mlp.down_proj"), from("down"), &[d, ffn]),
        ]);
    }
    tensors.push(HfTensor::whole("model.norm.weight", "final_norm", &[d]));
    if !m.tie_embeddings {
        tensors.push(HfTensor::whole("lm_head.weight", "head", &[m.vocab_size, d]));
    }
    tensors
}
