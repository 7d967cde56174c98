//! Decoders: blocks of grouped-query causal attention and a feed-forward layer on a residual stream. The plan
//! chooses the norms, positions, activation and scales.

mod params;
mod recording;

use super::formula::Formula;
use super::purpose::{Losses, Purpose};
use super::window::{attended_tokens, window};
use crate::error::Result;
use crate::ir::Builder;
use crate::ops::attention::Mask;
use crate::plan::Plan;
pub use params::parameters;
use recording::Recording;
pub use recording::activations;
use std::ops::Range;

/// Records the forward up to the losses of every row. In training, also computes the gradients of the head
/// and of the rows that it reads.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn losses(plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<Losses> {
    let recording = Recording::new(plan, purpose, b)?;
    let normed = recording.trunk(b)?;
    recording.head_loss(b, normed)
}

/// Records the forward of one token per sequence or of whole prompts. Writes the state's logits, and draws
/// the next tokens from them.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn logits(plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<()> {
    let recording = Recording::new(plan, purpose, b)?;
    let normed = recording.trunk(b)?;
    recording.logits(b, normed)
}

/// Records the forward up to the rows that the head reads, and writes them into the state.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn hidden_rows(plan: &Plan, mask: Mask, b: &mut Builder) -> Result<()> {
    let recording = Recording::new(plan, Purpose::Score(mask), b)?;
    let normed = recording.trunk(b)?;
    recording.keep_hidden_rows(b, normed)
}

/// Records the head on a range of the scored rows, which it reads from the state, up to their scores.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn token_scores(plan: &Plan, mask: Mask, scored: Range<usize>, b: &mut Builder) -> Result<()> {
    Recording::for_head(plan, Purpose::Score(mask)).token_scores(b, scored)
}

/// Returns the model FLOPs per token, forward and backward: 6 per weight of every matrix product, plus
/// attention with its causal half counted once. Recomputed work does not count.
pub fn flops_per_token(plan: &Plan) -> Formula {
    let (m, seq_len) = (&plan.model, plan.batch.seq_len);
    let n = Formula::number;
    let [l, d, h, kv, hd, ffn, v, t] = [
        ("L", m.n_layers),
        ("d", m.dim),
        ("h", m.n_heads),
        ("kv", m.n_kv_heads),
        ("hd", m.head_dim),
        ("ffn", m.ffn_dim),
        ("V", m.vocab_size),
        ("T", seq_len),
    ]
    .map(|(symbol, value)| Formula::symbol(symbol, value));
    let matrices = if m.activation.is_gated() { 3 } else { 2 };
    let block = n(2) * d.clone() * (h.clone() + kv) * hd.clone() + n(matrices) * d.clone() * ffn;
    let products = n(6) * (l.clone() * block + v * d);
    let windowed = (0..m.n_layers).filter(|i| window(m, *i, seq_len).is_some()).collect::<Vec<_>>();
    let Some(&first) = windowed.first() else { return products + n(6) * l * h * hd * t };
    // Blocks that see all keys, and blocks with a window, which see W / 2 keys on average.
    let global = Formula::symbol("G", m.n_layers - windowed.len());
    let rest = Formula::symbol("(L-G)", windowed.len());
    let w = Formula::decimal("W", attended_tokens(m, first, seq_len));
    products + n(6) * h * hd * (global * t + rest * w)
}
