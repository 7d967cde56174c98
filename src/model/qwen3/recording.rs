//! The forward of Qwen3 as ops, one function per part.

use crate::error::Result;
use crate::ir::{Builder, Destination, Mode, Spec, TensorId};
use crate::model::family::Purpose;
use crate::model::norm;
use crate::ops::attention::unfused::Inputs;
use crate::ops::attention::{Attention, FlashAttention, Heads, Mask, attention_unfused};
use crate::ops::dropout::{Dropout, Site};
use crate::ops::embedding::Embedding;
use crate::ops::head_loss::HeadLoss;
use crate::ops::kv_cache::{CacheAppend, CachedAttention};
use crate::ops::linear::Linear;
use crate::ops::qk_norm_rope::QkNormRope;
use crate::ops::rope::Rope;
use crate::ops::swiglu::Swiglu;
use crate::plan::Plan;
use crate::policy;
use std::sync::Arc;

/// Rows of a chunk of the head, if the chunk's logits take at most [`LOGITS_BYTES`]: many, because every
/// chunk reads and rewrites the gradient of the head (docs/issues/lead-over-pytorch.md).
const HEAD_ROWS: usize = 4096;

/// Rows of a chunk of the head with a larger vocabulary.
const FEWER_HEAD_ROWS: usize = 2048;

/// Most bytes of logits for which a chunk has [`HEAD_ROWS`].
const LOGITS_BYTES: usize = 512 << 20;

/// Most chunks of the head, so that programs stay short.
const HEAD_CHUNKS: usize = 64;

/// Returns the rows of a chunk of the head, of which the logits take `row_bytes` each.
fn head_chunk(rows: usize, row_bytes: usize) -> usize {
    let wanted = if HEAD_ROWS * row_bytes <= LOGITS_BYTES { HEAD_ROWS } else { FEWER_HEAD_ROWS };
    wanted.max(rows.div_ceil(HEAD_CHUNKS).next_multiple_of(wanted))
}

/// Records the forward of a plan for a purpose.
pub(super) struct Recording<'a> {
    plan: &'a Plan,
    purpose: Purpose,
    heads: Heads,
}

impl<'a> Recording<'a> {
    /// Creates a recording of a plan.
    pub(super) fn new(plan: &'a Plan, purpose: Purpose) -> Self {
        let m = &plan.model;
        Self { plan, purpose, heads: Heads { query: m.n_heads, kv: m.n_kv_heads, dim: m.head_dim } }
    }

    /// Embedding and blocks: the final normed rows.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    pub(super) fn trunk(&self, b: &mut Builder) -> Result<TensorId> {
        let m = &self.plan.model;
        let mut residual = b.scoped("embedding", |b| {
            let (tokens, table) = (b.state(&self.input("tokens"))?, b.param("embedding")?);
            let x = b.emit1("x", Embedding, &[tokens, table])?;
            self.dropout(b, x, 0)
        })?;
        let mut normed = b.scoped("embedding", |b| {
            let first = if m.n_layers > 0 { "blocks.0.attention_norm" } else { "final_norm" };
            norm::record(m, first, b, "normed", residual)
        })?;
        for i in 0..m.n_layers {
            (residual, normed) =
                b.in_block(i, format!("blocks.{i}"), |b| self.block(b, i, residual, normed))?;
        }
        Ok(normed)
    }

    /// One block: residual stream and its norm in, residual stream and the next block's norm out.
    fn block(
        &self,
        b: &mut Builder,
        i: usize,
        x: TensorId,
        normed: TensorId,
    ) -> Result<(TensorId, TensorId)> {
        let m = &self.plan.model;
        let name = |part: &str| format!("blocks.{i}.{part}");
        let linear = Linear { products: self.plan.execution.products };
        let site = |k: usize| (1 + 3 * i + k) as u32;

        let w_qkv = b.param(&name("qkv"))?;
        let qkv = b.emit1("qkv", linear, &[normed, w_qkv])?;
        let packed = self.positions(b, i, qkv)?;
        let attended = self.attention(b, i, packed, site(0))?;
        let w_out = b.param(&name("out"))?;
        let out = b.emit1("attention_out", linear, &[attended, w_out])?;
        let out = self.dropout(b, out, site(1))?;
        let (x, normed) = norm::record_residual(m, &name("ffn_norm"), b, "residual_attention", [x, out])?;

        let w_gate_up = b.param(&name("gate_up"))?;
        let gate_up = b.emit1("gate_up", linear, &[normed, w_gate_up])?;
        let gated = b.emit1("gated", Swiglu, &[gate_up])?;
        let w_down = b.param(&name("down"))?;
        let down = b.emit1("ffn_out", linear, &[gated, w_down])?;
        let down = self.dropout(b, down, site(2))?;
        let last = i + 1 == m.n_layers;
        let next = if last { "final_norm".to_owned() } else { format!("blocks.{}.attention_norm", i + 1) };
        norm::record_residual(m, &next, b, "residual_ffn", [x, down])
    }

    /// Norms of queries and keys, and the rotary embedding.
    fn positions(&self, b: &mut Builder, i: usize, qkv: TensorId) -> Result<TensorId> {
        let (m, heads) = (&self.plan.model, self.heads);
        let positions = b.state(&self.input("positions"))?;
        if m.qk_norm {
            let (q, k) = (b.param(&format!("blocks.{i}.q_norm"))?, b.param(&format!("blocks.{i}.k_norm"))?);
            let op = QkNormRope { heads, eps: m.norm_eps, theta: m.rope_theta };
            b.emit1("packed", op, &[qkv, q, k, positions])
        } else {
            b.emit1("packed", Rope { heads, theta: m.rope_theta, inverse: false }, &[qkv, positions])
        }
    }

    fn attention(&self, b: &mut Builder, i: usize, packed: TensorId, site: u32) -> Result<TensorId> {
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
            return b.emit1(
                "attended",
                CachedAttention { heads: self.heads, score_cap: None, window: None },
                &[packed, cache, positions],
            );
        }
        let mask = if self.plan.cross_documents { Mask::Causal } else { Mask::Spans };
        let attention = Attention {
            mask,
            dropout: self.site(site),
            ..Attention::causal(self.heads, self.plan.batch.seq_len)
        };
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

    /// Returns the site of a dropout, where this program has dropout.
    fn site(&self, site: u32) -> Option<Site> {
        let p = self.plan.model.dropout;
        (p > 0.0 && matches!(self.purpose, Purpose::Train { .. })).then_some(Site {
            p,
            seed: self.plan.seeds.dropout,
            site,
        })
    }

    fn dropout(&self, b: &mut Builder, x: TensorId, site: u32) -> Result<TensorId> {
        let Some(site) = self.site(site) else { return Ok(x) };
        let (sequences, step) = (b.state("batch.sequences")?, b.state("control.step")?);
        b.emit1("dropped", Dropout(site), &[x, sequences, step])
    }

    /// Records the loss of every row, in chunks of rows; in training with the gradients of the rows and of
    /// the head.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    pub(super) fn head_loss(&self, b: &mut Builder, normed: TensorId) -> Result<TensorId> {
        let (plan, m) = (self.plan, &self.plan.model);
        let rows = plan.batch.rows();
        let head = if m.tie_embeddings { "embedding" } else { "head" };
        let gradients = matches!(self.purpose, Purpose::Train { .. });
        let scale = 1.0 / plan.batch.tokens_per_step() as f64;
        b.scoped("head", |b| {
            let (weight, targets) = (b.param(head)?, b.state("batch.targets")?);
            let chunk = head_chunk(rows, b.spec(weight).alloc[0] * plan.precision.act_dtype.size());
            let losses = b.buffer("losses", Spec::new([rows], plan.precision.master));
            let grad_rows = b.buffer("d_normed", b.spec(normed).clone());
            for start in (0..rows).step_by(chunk) {
                let count = chunk.min(rows - start);
                let inputs = [b.rows(normed, start, count)?, weight, b.rows(targets, start, count)?];
                let op = HeadLoss { scale, gradients, products: plan.execution.products };
                let mut outs =
                    vec![Destination::Into(b.rows(losses, start, count)?, Mode::Write), Destination::New];
                if gradients {
                    let first = matches!(self.purpose, Purpose::Train { first: true }) && start == 0;
                    let mode = if first { Mode::Write } else { Mode::Add };
                    outs.push(Destination::Into(b.rows(grad_rows, start, count)?, Mode::Write));
                    outs.push(Destination::Into(b.state(&format!("grads.{head}"))?, mode));
                }
                b.emit_into("logits", Arc::new(op), &inputs, &outs)?;
            }
            Ok(losses)
        })
    }

    /// Records the logits of the generation program, into the state.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    pub(super) fn logits(&self, b: &mut Builder, normed: TensorId) -> Result<()> {
        let head = if self.plan.model.tie_embeddings { "embedding" } else { "head" };
        b.scoped("head", |b| {
            let (weight, logits) = (b.param(head)?, b.state("generation.logits")?);
            let linear = Linear { products: self.plan.execution.products };
            b.emit_into(
                "logits",
                Arc::new(linear),
                &[normed, weight],
                &[Destination::Into(logits, Mode::Write)],
            )?;
            Ok(())
        })
    }

    /// Returns the name of an input of this program.
    fn input(&self, name: &str) -> String {
        let group = if self.purpose == Purpose::Generate { "generation" } else { "batch" };
        format!("{group}.{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::head_chunk;

    #[test]
    fn chunks_of_the_head_are_smaller_for_large_vocabularies_and_bounded_in_number() {
        // GPT-2's vocabulary in bf16 and in fp32, and a vocabulary of 151,936 in bf16.
        assert_eq!(head_chunk(16_384, 50_304 * 2), 4096);
        assert_eq!(head_chunk(16_384, 50_304 * 4), 2048);
        assert_eq!(head_chunk(16_384, 151_936 * 2), 2048);
        assert_eq!(head_chunk(1 << 20, 512 * 4), 16_384);
    }
}
