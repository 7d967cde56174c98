//! The operations. Each file holds one op, or an op and its gradient, with shapes, cost, CPU implementation,
//! GPU launch and test cases.

pub mod activate;
pub mod activation;
pub mod add;
pub mod add_bias;
pub mod advance;
pub mod affine;
pub mod all_gather;
pub mod all_reduce;
pub mod arrange;
pub mod attention;
pub mod attention_sink;
pub mod cached_attention;
pub mod cast;
pub mod copy;
pub mod cross_entropy;
pub mod dropout;
mod elementwise;
pub mod ema;
pub mod embedding;
pub mod embedding_owners;
mod erfc;
pub mod fingerprint;
pub mod formula;
pub mod gated;
pub mod gated_quantize;
pub mod gather_rows;
pub mod grad_norm;
pub mod half;
pub mod head_loss;
pub mod head_sum;
pub mod kv_cache;
mod lanes;
pub mod layer_norm;
pub mod linear;
pub mod linear_add;
pub mod linear_few_rows;
pub mod low_rank;
pub mod matrices;
pub mod mul;
pub mod muon_momentum;
pub mod muon_update;
pub mod newton_schulz;
pub mod normalize_neurons;
pub mod observe;
mod parts;
pub mod pointwise;
pub mod preference_loss;
pub mod qk_norm_rope;
pub mod quantize;
mod rank_tables;
pub mod reduce_scatter;
pub mod reshape;
pub mod rms_norm;
pub mod rope;
pub mod rotary;
pub mod round_masters;
pub mod row_norm;
pub mod sample_tokens;
pub mod scale;
pub mod scaled_product;
pub mod segments;
pub mod select_rows;
pub mod share_rows;
pub mod shift;
pub mod soft_cap;
pub mod softmax;
pub mod sort_tokens;
pub mod sum;
pub mod sum_by_group;
pub mod swap_ema;
pub mod token_scores;
pub mod update_scales;
pub mod window_spans;
pub mod with_gradient;

use crate::ir::OpType;

/// Lists op types.
macro_rules! op_types {
    ($($op:ty),* $(,)?) => { &[$(OpType::new::<$op>()),*] };
}

/// Every op except those that only an optimizer uses; [`optim::Entry`](crate::optim::Entry) names those.
/// `xrun ops check` runs their test cases.
pub static OPS: &[OpType] = op_types![
    activate::Activate,
    activate::ActivateGrad,
    add::Add,
    add_bias::AddBias,
    add_bias::AddBiasGrad,
    advance::Advance,
    all_gather::AllGather,
    all_reduce::AllReduce,
    arrange::Arrange,
    arrange::ArrangeGrad,
    attention::FlashAttention,
    attention::FlashAttentionGrad,
    attention::unfused::AttentionScores,
    attention::unfused::AttentionScoresGrad,
    attention::unfused::AttentionValues,
    attention::unfused::AttentionValuesGrad,
    attention_sink::AttentionSinkGrad,
    cached_attention::CachedAttention,
    cast::Cast,
    copy::Copy,
    cross_entropy::CrossEntropy,
    cross_entropy::CrossEntropyGrad,
    cross_entropy::CrossEntropyWithGrad,
    dropout::Dropout,
    ema::Ema,
    embedding::Embedding,
    embedding::EmbeddingGrad,
    embedding_owners::TokenOrder,
    embedding_owners::EmbeddingGradAtOwners,
    fingerprint::Fingerprint,
    gated::Gated,
    gated::GatedGrad,
    gated_quantize::GatedQuantize,
    gated_quantize::GatedGradQuantize,
    gather_rows::GatherRows,
    grad_norm::GradNorm,
    grad_norm::GradNormPartials,
    half::Half,
    half::HalfGrad,
    head_loss::HeadLoss,
    head_sum::HeadSum,
    kv_cache::CacheFill,
    layer_norm::LayerNorm,
    row_norm::NormGrad<layer_norm::LayerNorm>,
    linear::Linear,
    linear::LinearInputGrad,
    linear::LinearWeightGrad,
    linear_add::LinearAdd,
    linear_few_rows::LinearFewRows,
    low_rank::LowRankAdd,
    low_rank::LowRankInputGrad,
    low_rank::LowRankWeightGrad,
    mul::Mul,
    observe::Observe,
    pointwise::Pointwise,
    pointwise::PointwiseGrad,
    preference_loss::PreferenceLoss,
    qk_norm_rope::QkNormRope,
    qk_norm_rope::QkNormRopeGrad,
    quantize::Quantize,
    reduce_scatter::ReduceScatter,
    reshape::Reshape,
    rms_norm::RmsNorm,
    row_norm::NormGrad<rms_norm::RmsNorm>,
    rope::Rope,
    round_masters::RoundMasters,
    row_norm::ResidualNorm<layer_norm::LayerNorm>,
    row_norm::ResidualNorm<rms_norm::RmsNorm>,
    sample_tokens::SampleTokens,
    scale::Scale,
    scaled_product::ScaledProduct,
    select_rows::SelectRows,
    share_rows::ShareRows,
    shift::CachedShift,
    shift::Shift,
    shift::ShiftFill,
    soft_cap::SoftCap,
    soft_cap::SoftCapGrad,
    softmax::Softmax,
    softmax::SoftmaxGrad,
    sort_tokens::SortTokens,
    sum::Sum,
    sum::SumGrad,
    sum_by_group::SumByGroup,
    swap_ema::SwapEma,
    token_scores::TokenScores,
    update_scales::UpdateScales,
    window_spans::WindowSpans,
    with_gradient::WithGradient,
];
