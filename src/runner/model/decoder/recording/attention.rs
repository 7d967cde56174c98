//! The attention of a block: products, masks, and the cache of generation.

use super::{DropoutPlace, Recording};
use crate::error::Result;
use crate::ir::{BatchSlot, Builder, ControlSlot, Destination, GenerationSlot, Mode, SlotName, TensorId};
use crate::model::purpose::{PromptShape, Purpose};
use crate::model::window::window;
use crate::ops::attention::unfused::Inputs;
use crate::ops::attention::{Attention, FlashAttention, Mask, attention_unfused};
use crate::ops::cached_attention::CachedAttention;
use crate::ops::kv_cache::CacheFill;
use crate::ops::window_spans::WindowSpans;
use crate::policy;
use std::sync::Arc;

impl Recording<'_> {
    /// Records the attention of block `i` on normalized rows, up to the output that is added to the residual
    /// stream.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn attention(&self, b: &mut Builder, i: usize, normed: TensorId) -> Result<TensorId> {
        let qkv = self.product(b, i, "qkv", "qkv", normed)?;
        let packed = self.positions(b, i, qkv)?;
        let attended = self.attend(b, i, packed, self.dropout_site(i, DropoutPlace::AttentionWeights))?;
        let out = self.product(b, i, "out", "attention_out", attended)?;
        self.dropout(b, out, self.dropout_site(i, DropoutPlace::Attention))
    }

    /// Records which keys rows see through the attention window, if any block has one.
    ///
    /// # Errors
    /// If the plan's numbers do not fit the op.
    pub(super) fn window_spans(&self, b: &mut Builder) -> Result<Option<TensorId>> {
        let (rows, seq_len, mask) = match self.purpose {
            Purpose::Generate => return Ok(None),
            Purpose::Prefill(shape) => (shape.prompts * shape.rows, shape.rows, Mask::Causal),
            Purpose::Train { .. } | Purpose::Evaluate | Purpose::Score(_) => {
                (self.plan.batch.rows(), self.plan.batch.seq_len, self.mask())
            }
        };
        let n_layers = self.plan.model.n_layers;
        let Some(window) = (0..n_layers).find_map(|i| window(&self.plan.model, i, seq_len)) else {
            return Ok(None);
        };
        let spans: Vec<TensorId> = match mask {
            Mask::Causal => Vec::new(),
            Mask::Spans | Mask::Branches => vec![b.state(BatchSlot::Spans)?],
        };
        let op = WindowSpans { rows, seq_len, window, mask };
        b.scoped("window", |b| b.emit1("spans", op, &spans)).map(Some)
    }

    /// Returns which keys rows see without a window.
    fn mask(&self) -> Mask {
        match self.purpose {
            Purpose::Score(mask) => mask,
            _ if self.plan.cross_documents => Mask::Causal,
            _ => Mask::Spans,
        }
    }

    /// Records the attention of every row to the rows before it or inside the window, from packed rows.
    fn attend(&self, b: &mut Builder, i: usize, packed: TensorId, site: u32) -> Result<TensorId> {
        let (rows_of_sequence, mask) = match self.purpose {
            Purpose::Generate => return self.attend_to_cache(b, i, packed),
            Purpose::Prefill(shape) => {
                self.fill_cache(b, i, packed, shape)?;
                (shape.rows, Mask::Causal)
            }
            Purpose::Train { .. } | Purpose::Evaluate | Purpose::Score(_) => {
                (self.plan.batch.seq_len, self.mask())
            }
        };
        let window = window(&self.plan.model, i, rows_of_sequence);
        let spans = match (window, mask) {
            (Some(_), _) => self.windows,
            (None, Mask::Spans | Mask::Branches) => Some(b.state(BatchSlot::Spans)?),
            (None, Mask::Causal) => None,
        };
        let attention = Attention {
            heads: self.heads,
            seq_len: rows_of_sequence,
            mask: if window.is_some() { Mask::Spans } else { mask },
            dropout: self.site(site),
            score_cap: self.plan.model.score_cap,
            window,
        };
        let counters = match attention.dropout {
            Some(_) => Some([b.state(BatchSlot::Sequences)?, b.state(ControlSlot::Step)?]),
            None => None,
        };
        let inputs = Inputs { packed, spans, counters };
        match self.plan.execution.attention {
            policy::Attention::Flash => Ok(b.emit("attended", FlashAttention(attention), &inputs.list())?[0]),
            policy::Attention::Unfused => attention_unfused(b, attention, inputs),
        }
    }

    /// Records the attention of one row per sample to itself and to the rows before it, which are in the
    /// cache.
    fn attend_to_cache(&self, b: &mut Builder, i: usize, packed: TensorId) -> Result<TensorId> {
        let capacity = self.plan.batch.seq_len;
        let (score_cap, window) = (self.plan.model.score_cap, window(&self.plan.model, i, capacity));
        let attention = CachedAttention { heads: self.heads, score_cap, window, capacity };
        let positions = b.state(GenerationSlot::Positions)?;
        let cache = Destination::Into(b.state(SlotName::Cache(i))?, Mode::Add);
        let arrivals = Destination::Into(b.state(GenerationSlot::Arrivals)?, Mode::Add);
        let outs = [Destination::New, cache, arrivals];
        Ok(b.emit_into("attended", Arc::new(attention), &[packed, positions], &outs)?[0])
    }

    /// Records the writing of the prompts' keys and values into the cache.
    fn fill_cache(&self, b: &mut Builder, i: usize, packed: TensorId, shape: PromptShape) -> Result<()> {
        let fill = CacheFill {
            heads: self.heads,
            samples: self.plan.generation.samples,
            prompts: shape.prompts,
            capacity: self.plan.batch.seq_len,
        };
        let cache = Destination::Into(b.state(SlotName::Cache(i))?, Mode::Add);
        b.emit_into("cache", Arc::new(fill), &[packed], &[cache])?;
        Ok(())
    }
}
