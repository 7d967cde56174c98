//! Decoders: blocks of grouped-query causal attention and a feed-forward layer on a residual stream, whose
//! norms, positions, activation and scales are parts that the plan chooses.

mod params;
mod recording;

use super::family::{ActivationKind, Family, Losses, Purpose};
use super::formula::Formula;
use super::window::{attended_tokens, window};
use crate::error::Result;
use crate::ir::Builder;
use crate::ir::ParamRequest;
use crate::plan::{Model, Plan};
use recording::Recording;

/// The family of decoders.
pub struct Decoder;

impl Family for Decoder {
    fn params(&self, model: &Model) -> Vec<ParamRequest> {
        params::params(model)
    }

    fn losses(&self, plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<Losses> {
        let recording = Recording::new(plan, purpose, b)?;
        let normed = recording.trunk(b)?;
        recording.head_loss(b, normed)
    }

    fn logits(&self, plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<()> {
        let recording = Recording::new(plan, purpose, b)?;
        let normed = recording.trunk(b)?;
        recording.logits(b, normed)
    }

    fn activations(&self, model: &Model) -> Vec<(ActivationKind, String)> {
        recording::activations(model)
    }

    fn flops_per_token(&self, m: &Model, seq_len: usize) -> Formula {
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
}
