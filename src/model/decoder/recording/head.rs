//! The head: the loss of every row, or the logits of the next token.

use super::Recording;
use crate::error::Result;
use crate::ir::{Builder, Destination, Mode, Spec, TensorId};
use crate::model::family::Purpose;
use crate::ops::head_loss::HeadLoss;
use crate::ops::linear::Linear;
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

impl Recording<'_> {
    /// Records the loss of every row, in chunks of rows; in training with the gradients of the rows and of
    /// the head.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    pub(in crate::model::decoder) fn head_loss(&self, b: &mut Builder, normed: TensorId) -> Result<TensorId> {
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
    pub(in crate::model::decoder) fn logits(&self, b: &mut Builder, normed: TensorId) -> Result<()> {
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
