//! The attention of a block: products, masks, the cache of generation.

use super::{Recording, Sublayers};
use crate::error::Result;
use crate::ir::{Builder, Destination, Mode, TensorId};
use crate::model::family::{PromptShape, Purpose};
use crate::ops::attention::unfused::Inputs;
use crate::ops::attention::{Attention, FlashAttention, Mask, attention_unfused};
use crate::ops::cached_attention::CachedAttention;
use crate::ops::kv_cache::{CacheAppend, CacheFill};
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

    /// Attention of every row to those before it, from packed rows.
    fn attend(&self, b: &mut Builder, i: usize, packed: TensorId, site: u32) -> Result<TensorId> {
        let (seq_len, mask) = match self.purpose {
            Purpose::Generate => return self.attend_to_cache(b, i, packed),
            Purpose::Prefill(shape) => {
                self.fill_cache(b, i, packed, shape)?;
                (shape.rows, Mask::Causal)
            }
            Purpose::Train { .. } | Purpose::Evaluate => {
                let mask = if self.plan.cross_documents { Mask::Causal } else { Mask::Spans };
                (self.plan.batch.seq_len, mask)
            }
        };
        let attention = Attention { heads: self.heads, seq_len, mask, dropout: self.site(site) };
        let spans = if mask == Mask::Spans { Some(b.state("batch.spans")?) } else { None };
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

    /// Attention of one row per sample to those before it, which the cache has.
    fn attend_to_cache(&self, b: &mut Builder, i: usize, packed: TensorId) -> Result<TensorId> {
        let (heads, capacity) = (self.heads, self.plan.batch.seq_len);
        let (positions, cache) =
            (b.state("generation.positions")?, b.state(&format!("generation.cache.{i}"))?);
        let into_cache = [Destination::Into(cache, Mode::Add)];
        b.emit_into("cache", Arc::new(CacheAppend { heads, capacity }), &[packed, positions], &into_cache)?;
        let arrivals = Destination::Into(b.state("generation.arrivals")?, Mode::Add);
        let attention = Arc::new(CachedAttention { heads });
        let inputs = [packed, cache, positions];
        Ok(b.emit_into("attended", attention, &inputs, &[Destination::New, arrivals])?[0])
    }

    /// Writes the keys and values of prompts into the cache.
    fn fill_cache(&self, b: &mut Builder, i: usize, packed: TensorId, shape: PromptShape) -> Result<()> {
        let fill = CacheFill {
            heads: self.heads,
            samples: self.plan.generation.samples,
            prompts: shape.prompts,
            capacity: self.plan.batch.seq_len,
        };
        let cache = Destination::Into(b.state(&format!("generation.cache.{i}"))?, Mode::Add);
        b.emit_into("cache", Arc::new(fill), &[packed], &[cache])?;
        Ok(())
    }
}
