//! The attention of a block: products, masks, the cache of generation.

use super::{Recording, Sublayers};
use crate::error::Result;
use crate::ir::{Builder, Destination, Mode, TensorId};
use crate::model::family::Purpose;
use crate::ops::attention::unfused::Inputs;
use crate::ops::attention::{Attention, FlashAttention, Mask, attention_unfused};
use crate::ops::kv_cache::{CacheAppend, CachedAttention};
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
        if self.purpose == Purpose::Generate {
            let (positions, cache) =
                (b.state("generation.positions")?, b.state(&format!("generation.cache.{i}"))?);
            let append = CacheAppend { heads: self.heads, capacity: self.plan.batch.seq_len };
            b.emit_into(
                "cache",
                Arc::new(append),
                &[packed, positions],
                &[Destination::Into(cache, Mode::Add)],
            )?;
            let op = CachedAttention { heads: self.heads, score_cap: None, window: None };
            return b.emit1("attended", op, &[packed, cache, positions]);
        }
        let mask = if self.plan.cross_documents { Mask::Causal } else { Mask::Spans };
        let dropout = self.site(site);
        let attention = Attention { mask, dropout, ..Attention::causal(self.heads, self.plan.batch.seq_len) };
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
}
