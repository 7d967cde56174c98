//! The trained tensors of a decoder.

use crate::ir::{Init, ParamRequest, Role, Sublayer};
use crate::model::initial;
use crate::model::norm::{self, request};
use crate::plan::Model;
use crate::policy::{HeadInit, NormPlacement};

/// Returns the trained tensors in the order in which their gradients become ready, from the head back to the
/// embedding.
pub fn parameters(m: &Model) -> Vec<ParamRequest> {
    let scale = |fan_in: usize| initial::matrix(m, fan_in);
    let residual = |fan_in: usize| initial::residual(m, fan_in);
    let looked_up = initial::looked_up(m);
    let vocabulary = |name: &str, role: Role, init: Init| ParamRequest {
        alloc: vec![m.padded_vocab(), m.dim],
        ..request(name, role, &[m.vocab_size, m.dim], init)
    };
    let (d, heads) = (m.dim, m.n_heads * m.head_dim);
    let (ffn, ffn_alloc) = (m.ffn_dim, m.padded_ffn());
    let (attention, feed_forward) = (Role::Matrix(Sublayer::Attention), Role::Matrix(Sublayer::FeedForward));
    // A product with its bias. The gradient of the bias is complete first.
    let product = |weight: ParamRequest| {
        let Role::Matrix(sublayer) = weight.role else { return vec![weight] };
        let outputs = weight.shape.len() - 1;
        let name = format!("{}_bias", weight.name);
        let bias = ParamRequest {
            alloc: weight.alloc[..outputs].to_vec(),
            ..request(&name, Role::Bias(sublayer), &weight.shape[..outputs], Init::Zeros)
        };
        if m.bias { vec![bias, weight] } else { vec![weight] }
    };
    let post = m.norm_placement == NormPlacement::Post;
    let sandwich = m.norm_placement == NormPlacement::Sandwich;
    let norm = |name: &str, exists: bool| if exists { norm::params(m, name) } else { Vec::new() };
    let block = || {
        let down = request("down", feed_forward, &[d, ffn], residual(ffn));
        let up = if m.activation.is_gated() {
            let gate_up = request("gate_up", feed_forward, &[2, ffn, d], scale(d));
            ParamRequest { alloc: vec![2, ffn_alloc, d], ..gate_up }
        } else {
            ParamRequest { alloc: vec![ffn_alloc, d], ..request("up", feed_forward, &[ffn, d], scale(d)) }
        };
        let kv = m.n_kv_heads * m.head_dim;
        let qkv = request("qkv", attention, &[m.qkv_width(), d], scale(d));
        let qkv = ParamRequest { stacked: vec![heads, kv, kv], ..qkv };
        let mut qk_norms = Vec::new();
        if m.qk_norm.is_some_and(|norm| norm.weight) {
            qk_norms.extend(
                ["k_norm", "q_norm"].map(|name| request(name, Role::Vector, &[m.head_dim], Init::Ones)),
            );
        }
        [
            norm("ffn_norm", post),
            norm("ffn_output_norm", sandwich),
            product(ParamRequest { alloc: vec![d, ffn_alloc], ..down }),
            product(up),
            norm("ffn_norm", !post && !m.parallel_blocks),
            norm("attention_norm", post),
            norm("attention_output_norm", sandwich),
            product(request("out", attention, &[d, heads], residual(heads))),
            qk_norms,
            product(qkv),
            norm("attention_norm", !post),
        ]
        .concat()
    };
    let mut params = Vec::new();
    if !m.tie_embeddings {
        // Initialized like the embedding, because the logit scale already falls with the width.
        let init = match m.head_init {
            HeadInit::Normal => looked_up,
            HeadInit::Zero => Init::Zeros,
        };
        params.push(vocabulary("head", Role::Head, init));
    }
    params.extend(norm("final_norm", !post));
    for i in (0..m.n_layers).rev() {
        let named =
            |p: ParamRequest| ParamRequest { name: format!("blocks.{i}.{}", p.name), block: Some(i), ..p };
        params.extend(block().into_iter().map(named));
    }
    params.extend(norm("embedding_norm", m.embedding_norm));
    if m.learned_positions > 0 {
        params.push(request("positions", Role::Positions, &[m.learned_positions, d], looked_up));
    }
    params.push(vocabulary("embedding", Role::Embedding, looked_up));
    params
}
