//! The operations: one file each, with shapes, gradient, cost, CPU implementation and cases.

pub mod activate;
pub mod activation;
pub mod adamw;
pub mod add;
pub mod add_bias;
pub mod advance;
pub mod all_gather;
pub mod all_reduce;
pub mod attention;
pub mod cached_attention;
pub mod cast;
pub mod copy;
pub mod cross_entropy;
pub mod dropout;
pub mod ema;
pub mod embedding;
pub mod embedding_owners;
mod erfc;
pub mod fingerprint;
pub mod formula;
pub mod gated;
pub mod gather_rows;
pub mod grad_norm;
pub mod half;
pub mod head_loss;
pub mod kv_cache;
mod lanes;
pub mod layer_norm;
pub mod linear;
pub mod linear_few_rows;
pub mod lion;
pub mod matrices;
pub mod mul;
pub mod muon_momentum;
pub mod muon_update;
pub mod newton_schulz;
pub mod qk_norm_rope;
mod rank_tables;
pub mod reduce_scatter;
pub mod residual_norm;
pub mod rms_norm;
pub mod rope;
pub mod rotary;
pub mod sample_tokens;
pub mod scale;
pub mod segments;
pub mod select_rows;
pub mod sgd;
pub mod share_rows;
pub mod soft_cap;
pub mod softmax;
pub mod sum;
pub mod swap_ema;
pub mod window_spans;
pub mod with_gradient;

use crate::device::{DType, ProductPrecision};
use crate::ir::{Case, Cases, Op, Precision, Shards, Spec};
use std::sync::Arc;

/// Constants of prototypes.
const HEADS: attention::Heads = attention::Heads { query: 1, kv: 1, dim: 2 };
const SITE: dropout::Site = dropout::Site { p: 0.1, seed: 0, site: 0 };
const ATTENTION: attention::Attention = attention::Attention::causal(HEADS, 1);
const OBJECTIVE: cross_entropy::Objective = cross_entropy::Objective::PLAIN;
const ROTARY: rotary::Rotary = rotary::Rotary::of_whole_heads(HEADS.dim, 1e4);
const QK_NORM: qk_norm_rope::QkNorm = qk_norm_rope::QkNorm { heads: HEADS, eps: 1e-6, weighted: true };
const QK_NORM_ROPE: qk_norm_rope::QkNormRope =
    qk_norm_rope::QkNormRope { norm: QK_NORM, rotary: ROTARY, rotates_first: false };
const WEIGHT_AND_BIAS: layer_norm::Affine = layer_norm::Affine::WeightAndBias;

/// The matrices of prototypes.
fn no_matrices() -> matrices::Matrices {
    matrices::Matrices { rows: 1, columns: 1, masters_len: 0, slot_len: 0, by_rank: vec![Vec::new()] }
}

/// One prototype of every op, so that checks can enumerate them.
pub fn all() -> Vec<Box<dyn Op>> {
    let mut ops: Vec<Box<dyn Op>> = vec![
        Box::new(adamw::AdamW {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            segments: segments::Segments::whole(&[]),
            precision: Precision::for_act_dtype(DType::F32),
        }),
        Box::new(add::Add),
        Box::new(add_bias::AddBias),
        Box::new(add_bias::AddBiasGrad),
        Box::new(advance::Advance),
        Box::new(all_gather::AllGather {
            like: vec![Spec::new([1], DType::F32)],
            parts: Vec::new(),
            wait: true,
        }),
        Box::new(all_reduce::AllReduce { like: vec![Spec::new([1], DType::F32)] }),
        Box::new(attention::FlashAttention(ATTENTION)),
        Box::new(attention::FlashAttentionGrad(ATTENTION)),
        Box::new(attention::unfused::AttentionScores { heads: HEADS, seq_len: 1 }),
        Box::new(attention::unfused::AttentionScoresGrad(HEADS)),
        Box::new(attention::unfused::AttentionValues(HEADS)),
        Box::new(attention::unfused::AttentionValuesGrad(HEADS)),
        Box::new(copy::Copy),
        Box::new(dropout::Dropout(SITE)),
        Box::new(grad_norm::GradNorm { max_norm: 1.0 }),
        Box::new(grad_norm::GradNormPartials { shards: Arc::new(Shards::new(&[1], 1, 1)) }),
        Box::new(grad_norm::GradNormTotal { max_norm: 1.0 }),
        Box::new(kv_cache::CacheFill { heads: HEADS, samples: 1, prompts: 1, capacity: 1 }),
        Box::new(cached_attention::CachedAttention {
            heads: HEADS,
            score_cap: None,
            window: None,
            capacity: 1,
        }),
        Box::new(layer_norm::LayerNorm { eps: 1e-5, affine: WEIGHT_AND_BIAS }),
        Box::new(layer_norm::LayerNormGrad { eps: 1e-5, affine: WEIGHT_AND_BIAS, residual: false }),
        Box::new(layer_norm::ResidualLayerNorm { eps: 1e-5, affine: WEIGHT_AND_BIAS }),
        Box::new(linear::Linear::default()),
        Box::new(linear_few_rows::LinearFewRows::default()),
        Box::new(linear::LinearInputGrad::default()),
        Box::new(linear::LinearWeightGrad::default()),
        Box::new(lion::Lion {
            beta1: 0.9,
            beta2: 0.99,
            segments: segments::Segments::whole(&[]),
            precision: Precision::for_act_dtype(DType::F32),
        }),
        Box::new(QK_NORM),
        Box::new(qk_norm_rope::QkNormGrad(QK_NORM)),
        Box::new(QK_NORM_ROPE),
        Box::new(qk_norm_rope::QkNormRopeGrad(QK_NORM_ROPE)),
        Box::new(rope::Rope { heads: HEADS, rotary: ROTARY, inverse: false }),
        Box::new(rope::Rope { heads: HEADS, rotary: ROTARY, inverse: true }),
        Box::new(soft_cap::SoftCap { cap: 1.0 }),
        Box::new(soft_cap::SoftCapGrad { cap: 1.0 }),
        Box::new(softmax::Softmax { mask: attention::Mask::Causal }),
        Box::new(softmax::SoftmaxGrad),
        Box::new(cast::Cast { to: DType::F32 }),
        Box::new(cross_entropy::CrossEntropy(OBJECTIVE)),
        Box::new(cross_entropy::CrossEntropyGrad(OBJECTIVE)),
        Box::new(ema::Ema {
            elements: 0,
            segments: segments::Segments::whole(&[]),
            precision: Precision::for_act_dtype(DType::F32),
        }),
        Box::new(swap_ema::SwapEma {
            elements: 0,
            segments: segments::Segments::whole(&[]),
            precision: Precision::for_act_dtype(DType::F32),
        }),
        Box::new(embedding::Embedding),
        Box::new(embedding::EmbeddingGrad(embedding::RankInterleaved::ONE_RANK)),
        Box::new(embedding_owners::TokenOrder::of_one_rank()),
        Box::new(embedding_owners::EmbeddingGradAtOwners::of_one_rank()),
        Box::new(fingerprint::Fingerprint),
        Box::new(gather_rows::GatherRows { ranks: 1 }),
        Box::new(half::Half { index: 0 }),
        Box::new(half::HalfGrad { index: 0 }),
        Box::new(head_loss::HeadLoss {
            scale: sum::Factor::Constant(1.0),
            gradients: true,
            objective: OBJECTIVE,
            products: ProductPrecision::Native,
        }),
        Box::new(mul::Mul),
        Box::new(muon_momentum::MuonMomentum {
            momentum: 0.95,
            nesterov: true,
            matrices: no_matrices(),
            precision: Precision::for_act_dtype(DType::F32),
        }),
        Box::new(muon_update::MuonUpdate {
            ratio: 1.0,
            matrices: no_matrices(),
            flat_len: 0,
            precision: Precision::for_act_dtype(DType::F32),
        }),
        Box::new(newton_schulz::NewtonSchulz { counts: vec![1] }),
        Box::new(reduce_scatter::ReduceScatter {
            like: Spec::new([1], DType::F32),
            start: 0,
            shards: Arc::new(Shards::new(&[1], 1, 1)),
        }),
        Box::new(residual_norm::ResidualNorm { eps: 1e-6, weight: true }),
        Box::new(rms_norm::RmsNorm { eps: 1e-6, weight: true }),
        Box::new(rms_norm::RmsNormGrad { eps: 1e-6, weight: true, residual: false, emits: false }),
        Box::new(sample_tokens::SampleTokens {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            entries: 1,
            last: 0,
        }),
        Box::new(scale::Scale { factor: 1.0 }),
        Box::new(select_rows::SelectRows { prompts: 1 }),
        Box::new(sgd::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
            segments: segments::Segments::whole(&[]),
            precision: Precision::for_act_dtype(DType::F32),
        }),
        Box::new(share_rows::ShareRows { ranks: 1 }),
        Box::new(sum::Sum { scale: sum::Factor::Constant(1.0) }),
        Box::new(sum::SumGrad { scale: sum::Factor::Constant(1.0) }),
        Box::new(window_spans::WindowSpans { rows: 1, seq_len: 1, window: 1, mask: attention::Mask::Causal }),
        Box::new(with_gradient::WithGradient),
    ];
    let built_in = activation::Activation::ALL.map(|of| [of; 2].map(formula::Function::from));
    let formulas = ["x", "a * b"].map(formula::Function::of_text);
    for [of_one, of_two] in built_in.into_iter().chain([formulas]) {
        ops.push(Box::new(activate::Activate(of_one.clone())));
        ops.push(Box::new(activate::ActivateGrad { of: of_one, emits: false }));
        ops.push(Box::new(gated::Gated(of_two.clone())));
        ops.push(Box::new(gated::GatedGrad { of: of_two, emits: false }));
    }
    ops
}

/// The cases of every op at a precision, in registry order.
pub fn cases(precision: Precision) -> Vec<Case> {
    all()
        .iter()
        .flat_map(|op| match op.cases(precision) {
            Cases::Own(cases) => cases,
            Cases::GradientOf(_) => Vec::new(),
        })
        .collect()
}
