//! The attention of a block: products, masks, the cache of generation.

use super::{Recording, Sublayers};
use crate::error::Result;
use crate::ir::{Builder, Destination, Mode, TensorId};
use crate::model::family::Purpose;
use crate::model::window::window;
use crate::ops::attention::unfused::Inputs;
use crate::ops::attention::{Attention, FlashAttention, Mask, attention_unfused};
use crate::ops::kv_cache::{CacheAppend, CachedAttention};
use crate::ops::window_spans::WindowSpans;
use crate::policy;
use std::sync::Arc;

impl Recording<'_> {
    /// Records the attention of block `i` on normalized rows, up to what is added to the residual stream.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    pub(super) fn attention(&self, b: &mut Builder, i: usize, normed: TensorId) -> Result<TensorId> {
        let qkv = self.product(b, i, "qkv", "qkv", normed)?;
        let packed = self.positions(b, i, qkv)?;
        let attended = self.attend(b, i, packed, self.dropout_site(i, Sublayers::AttentionWeights))?;
        let out = self.product(b, i, "out", "attention_out", attended)?;
        self.dropout(b, out, self.dropout_site(i, Sublayers::Attention))
    }

    /// Records the keys that rows see through the window, where a block has one.
    ///
    /// # Errors
    /// When the plan's numbers do not fit the op.
    pub(super) fn window_spans(&self, b: &mut Builder) -> Result<Option<TensorId>> {
        let seq_len = self.plan.batch.seq_len;
        let window = (0..self.plan.model.n_layers).find_map(|i| window(&self.plan.model, i, seq_len));
        let Some(window) = window.filter(|_| self.purpose != Purpose::Generate) else { return Ok(None) };
        let mask = self.mask();
        let spans: Vec<TensorId> = match mask {
            Mask::Causal => Vec::new(),
            Mask::Spans => vec![b.state("batch.spans")?],
        };
        let op = WindowSpans { rows: self.plan.batch.rows(), seq_len, window, mask };
        b.scoped("window", |b| b.emit1("spans", op, &spans)).map(Some)
    }

    /// The keys that rows see without a window.
    fn mask(&self) -> Mask {
        if self.plan.cross_documents { Mask::Causal } else { Mask::Spans }
    }

    /// Attention of every row to those before it, or to those inside the window, from packed rows.
    fn attend(&self, b: &mut Builder, i: usize, packed: TensorId, site: u32) -> Result<TensorId> {
        let (m, seq_len) = (&self.plan.model, self.plan.batch.seq_len);
        let (score_cap, window) = (m.score_cap, window(m, i, seq_len));
        if self.purpose == Purpose::Generate {
            let (positions, cache) =
                (b.state("generation.positions")?, b.state(&format!("generation.cache.{i}"))?);
            let append = CacheAppend { heads: self.heads, capacity: seq_len };
            b.emit_into(
                "cache",
                Arc::new(append),
                &[packed, positions],
                &[Destination::Into(cache, Mode::Add)],
            )?;
            let op = CachedAttention { heads: self.heads, score_cap, window };
            return b.emit1("attended", op, &[packed, cache, positions]);
        }
        let spans = match (window, self.mask()) {
            (Some(_), _) => self.windows,
            (None, Mask::Spans) => Some(b.state("batch.spans")?),
            (None, Mask::Causal) => None,
        };
        let mask = if spans.is_some() { Mask::Spans } else { Mask::Causal };
        let attention =
            Attention { heads: self.heads, seq_len, mask, dropout: self.site(site), score_cap, window };
        let counters = match attention.dropout {
            Some(_) => Some([b.state("batch.sequences")?, b.state("control.step")?]),
            None => None,
        };
        let inputs = Inputs { packed, spans, counters };
        match self.plan.execution.attention {
            policy::Attention::Flash => Ok(b.emit("attended", FlashAttention(attention), &inputs.list())?[0]),
            policy::Attention::Unfused => attention_unfused(b, attention, inputs),
        }
    }
}
