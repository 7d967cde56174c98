//! The trained tensors of a decoder.

use crate::ir::ParamRequest;
use crate::ir::{Init, Role, Sublayer};
use crate::model::norm;
use crate::plan::Model;
use crate::policy::{HeadInit, NormPlacement, ResidualInit};

/// Returns the trained tensors in the order in which their gradients become ready, from the head back to the
/// embedding.
pub fn parameters(m: &Model) -> Vec<ParamRequest> {
    // Unless the recipe sets a deviation, the variance is PyTorch's default for linear layers, 1/(3·fan_in).
    let unset = |fan_in: usize| 1.0 / (3.0 * fan_in as f64).sqrt();
    // A deviation in the recipe applies at the base width, if there is one. Beyond it, the variance of
    // matrices in products falls with the number of inputs, and the variance of looked-up tables stays (Yang
    // and Hu, Tensor Programs V, 2022, table 8).
    let base_dim = m.base_dim.unwrap_or(m.dim);
    let std = |fan_in: usize| m.init_std.map_or(unset(fan_in), |std| std / m.width_ratio().sqrt());
    let looked_up = Init::Normal(m.init_std.unwrap_or(unset(base_dim)));
    let scale = |fan_in: usize| Init::Normal(std(fan_in));
    let residual = |fan_in: usize| match m.residual_init {
        ResidualInit::DepthScaled => Init::Normal(std(fan_in) / (2.0 * m.n_layers as f64).sqrt()),
        ResidualInit::Unscaled => scale(fan_in),
        ResidualInit::Zero => Init::Zeros,
    };
    let matrix = |name: &str, role: Role, shape: Vec<usize>, init: Init| ParamRequest {
        name: name.to_owned(),
        alloc: shape.clone(),
        shape,
        init,
        role,
        stacked: Vec::new(),
        block: None,
    };
    let vocabulary = |name: &str, role: Role, init: Init| ParamRequest {
        alloc: vec![m.padded_vocab(), m.dim],
        ..matrix(name, role, vec![m.vocab_size, m.dim], init)
    };
    let (d, heads) = (m.dim, m.n_heads * m.head_dim);
    let (ffn, ffn_alloc) = (m.ffn_dim, m.padded_ffn());
    let (attention, feed_forward) = (Role::Matrix(Sublayer::Attention), Role::Matrix(Sublayer::FeedForward));
    // A product with its bias. The gradient of the bias is complete first.
    let product = |request: ParamRequest| {
        let Role::Matrix(sublayer) = request.role else { return vec![request] };
        let outputs = request.shape.len() - 1;
        let bias = ParamRequest {
            name: format!("{}_bias", request.name),
            shape: request.shape[..outputs].to_vec(),
            alloc: request.alloc[..outputs].to_vec(),
            init: Init::Zeros,
            role: Role::Bias(sublayer),
            stacked: Vec::new(),
            block: None,
        };
        if m.bias { vec![bias, request] } else { vec![request] }
    };
    let post = m.norm_placement == NormPlacement::Post;
    let sandwich = m.norm_placement == NormPlacement::Sandwich;
    let norm = |name: &str, exists: bool| if exists { norm::params(m, name) } else { Vec::new() };
    let block = || {
        let down = matrix("down", feed_forward, vec![d, ffn], residual(ffn));
        let up = if m.activation.is_gated() {
            let gate_up = matrix("gate_up", feed_forward, vec![2, ffn, d], scale(d));
            ParamRequest { alloc: vec![2, ffn_alloc, d], ..gate_up }
        } else {
            ParamRequest { alloc: vec![ffn_alloc, d], ..matrix("up", feed_forward, vec![ffn, d], scale(d)) }
        };
        let kv = m.n_kv_heads * m.head_dim;
        let qkv = matrix("qkv", attention, vec![m.qkv_width(), d], scale(d));
        let qkv = ParamRequest { stacked: vec![heads, kv, kv], ..qkv };
        let mut qk_norms = Vec::new();
        if m.qk_norm.is_some_and(|norm| norm.weight) {
            qk_norms.extend(["k_norm", "q_norm"].map(|name| norm::vector(name, m.head_dim, Init::Ones)));
        }
        [
            norm("ffn_norm", post),
            norm("ffn_output_norm", sandwich),
            product(ParamRequest { alloc: vec![d, ffn_alloc], ..down }),
            product(up),
            norm("ffn_norm", !post && !m.parallel_blocks),
            norm("attention_norm", post),
            norm("attention_output_norm", sandwich),
            product(matrix("out", attention, vec![d, heads], residual(heads))),
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
        params.push(matrix("positions", Role::Positions, vec![m.learned_positions, d], looked_up));
    }
    params.push(vocabulary("embedding", Role::Embedding, looked_up));
    params
}
