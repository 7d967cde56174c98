//! Decoders: blocks of grouped-query causal attention and a feed-forward layer on a residual stream, whose
//! norms, positions, activation and scales are parts that the plan chooses.

mod params;
mod recording;

use super::formula::Formula;
use super::purpose::{Losses, Purpose};
use super::window::{attended_tokens, window};
use crate::error::Result;
use crate::ir::Builder;
use crate::plan::Plan;
pub use params::parameters;
use recording::Recording;
pub use recording::activations;

/// Records the forward up to the losses of every row. In training, the head's gradient and that of the rows it
/// reads are computed as well.
///
/// # Errors
/// When the plan's numbers do not fit an op.
pub(super) fn losses(plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<Losses> {
    let recording = Recording::new(plan, purpose, b)?;
    let normed = recording.trunk(b)?;
    recording.head_loss(b, normed)
}

/// Records the forward of one token per sequence, or of whole prompts: writes the state's logits, and draws the
/// next tokens from them.
///
/// # Errors
/// When the plan's numbers do not fit an op.
pub(super) fn logits(plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<()> {
    let recording = Recording::new(plan, purpose, b)?;
    let normed = recording.trunk(b)?;
    recording.logits(b, normed)
}

/// Returns the model FLOPs of one token of a plan, forward and backward: 6 per weight of every product, and
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
    // Of blocks that see all keys, and of those with a window, which has W / 2 keys on average.
    let global = Formula::symbol("G", m.n_layers - windowed.len());
    let rest = Formula::symbol("(L-G)", windowed.len());
    let w = Formula::decimal("W", attended_tokens(m, first, seq_len));
    products + n(6) * h * hd * (global * t + rest * w)
}
