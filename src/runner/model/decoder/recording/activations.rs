//! The names of the tensors that show how large a model's activations are.

use crate::model::purpose::ActivationKind;
use crate::plan::Model;
use crate::policy::NormPlacement;

/// Returns the tensors of an evaluation whose size shows whether a parametrization holds across widths, each
/// with its kind. The names must match the ones that the sibling files record. Kinds within blocks have one
/// tensor per block.
pub fn activations(m: &Model) -> Vec<(ActivationKind, String)> {
    let biased = if m.bias { "_biased" } else { "" };
    let embedding = if m.embedding_norm {
        "x_normed"
    } else if m.learned_positions > 0 {
        "x_positioned"
    } else if m.embedding_scale != 1.0 {
        "x_scaled"
    } else {
        "x"
    };
    let residual = match m.norm_placement {
        NormPlacement::Pre if m.parallel_blocks => "residual",
        NormPlacement::Pre | NormPlacement::Sandwich => "residual_ffn",
        NormPlacement::Post => "ffn_normed",
    };
    let block_activations = |i: usize| {
        [
            (ActivationKind::Attention, format!("blocks.{i}.attention_out{biased}")),
            (ActivationKind::FeedForward, format!("blocks.{i}.ffn_out{biased}")),
        ]
    };
    let mut activations = vec![(ActivationKind::Embedding, format!("embedding.{embedding}"))];
    activations.extend((0..m.n_layers).flat_map(block_activations));
    let last = m.n_layers.saturating_sub(1);
    activations.push((ActivationKind::Residual, format!("blocks.{last}.{residual}")));
    activations.push((ActivationKind::HeadProducts, "head.logits.1".to_owned()));
    activations
}
