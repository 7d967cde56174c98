//! Decoders: blocks of grouped-query causal attention and a feed-forward layer on a residual stream, whose
//! norms, positions, activation and scales are parts that the plan chooses.

mod hugging_face;
mod params;
mod recording;

use super::family::{Family, HfFacts, HfModel, Purpose};
use super::formula::Formula;
use crate::error::Result;
use crate::ir::ParamRequest;
use crate::ir::{Builder, TensorId};
use crate::plan::{Model, Plan};
use recording::Recording;

/// The family of decoders.
pub struct Decoder;

impl Family for Decoder {
    fn params(&self, model: &Model) -> Vec<ParamRequest> {
        params::params(model)
    }

    fn losses(&self, plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<TensorId> {
        let recording = Recording::new(plan, purpose);
        let normed = recording.trunk(b)?;
        recording.head_loss(b, normed)
    }

    fn logits(&self, plan: &Plan, b: &mut Builder) -> Result<()> {
        let recording = Recording::new(plan, Purpose::Generate);
        let normed = recording.trunk(b)?;
        recording.logits(b, normed)
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
        let block = n(2) * d.clone() * (h.clone() + kv) * hd.clone() + n(3) * d.clone() * ffn;
        n(6) * (l.clone() * block + v * d) + n(6) * l * h * hd * t
    }

    fn hugging_face(&self, model: &Model, facts: &HfFacts) -> Result<HfModel> {
        hugging_face::model(model, facts)
    }
}
