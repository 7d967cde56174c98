//! The trained tensors of Qwen3.

use crate::ir::ParamRequest;
use crate::ir::{Init, Role, Sublayer};
use crate::model::norm;
use crate::plan::Model;

/// Returns the trained tensors in the order in which their gradients become ready: from the head back to the
/// embedding.
pub(super) fn params(m: &Model) -> Vec<ParamRequest> {
    // Unless the recipe says otherwise, the variance of PyTorch's default for linear layers, 1/(3·fan_in);
    // the two products that write the residual stream start smaller by √(2·layers), as in GPT-2.
    let scale = |fan_in: usize| m.init_std.unwrap_or(1.0 / (3.0 * fan_in as f64).sqrt());
    let residual = |fan_in: usize| scale(fan_in) / (2.0 * m.n_layers as f64).sqrt();
    let matrix = |name: &str, role: Role, shape: Vec<usize>, std: f64| ParamRequest {
        name: name.to_owned(),
        alloc: shape.clone(),
        shape,
        init: Init::Normal(std),
        role,
        block: None,
    };
    let vocabulary = |name: &str, role: Role| ParamRequest {
        alloc: vec![m.padded_vocab(), m.dim],
        ..matrix(name, role, vec![m.vocab_size, m.dim], scale(m.dim))
    };
    let (d, heads) = (m.dim, m.n_heads * m.head_dim);
    let (ffn, ffn_alloc) = (m.ffn_dim, m.padded_ffn());
    let (attention, feed_forward) = (Role::Matrix(Sublayer::Attention), Role::Matrix(Sublayer::FeedForward));
    let block = || {
        let down = matrix("down", feed_forward, vec![d, ffn], residual(ffn));
        let gate_up = matrix("gate_up", feed_forward, vec![2, ffn, d], scale(d));
        let mut params = vec![
            ParamRequest { alloc: vec![d, ffn_alloc], ..down },
            ParamRequest { alloc: vec![2, ffn_alloc, d], ..gate_up },
        ];
        params.extend(norm::params(m, "ffn_norm"));
        params.push(matrix("out", attention, vec![d, heads], residual(heads)));
        if m.qk_norm {
            params.extend(["k_norm", "q_norm"].map(|name| norm::vector(name, m.head_dim, Init::Ones)));
        }
        params.push(matrix("qkv", attention, vec![m.qkv_width(), d], scale(d)));
        params.extend(norm::params(m, "attention_norm"));
        params
    };
    let mut params = Vec::new();
    if !m.tie_embeddings {
        params.push(vocabulary("head", Role::Head));
    }
    params.extend(norm::params(m, "final_norm"));
    for i in (0..m.n_layers).rev() {
        let named =
            |p: ParamRequest| ParamRequest { name: format!("blocks.{i}.{}", p.name), block: Some(i), ..p };
        params.extend(block().into_iter().map(named));
    }
    params.push(vocabulary("embedding", Role::Embedding));
    params
}
