//! The head: the loss of every row, or the logits of the next token.

use super::Recording;
use crate::error::Result;
use crate::evaluation::LogitRows;
use crate::ir::{
    BatchSlot, Builder, Destination, FlatBuffer, GenerationSlot, Mode, Op, ScoringSlot, SlotName, Spec,
    TensorId,
};
use crate::model::loss_scale::loss_scale;
use crate::model::purpose::{Losses, Pairs, PromptShape, Purpose};
use crate::ops::copy::Copy;
use crate::ops::cross_entropy::Objective;
use crate::ops::cross_entropy::RowFactor;
use crate::ops::head_loss::{HeadGradients, HeadLoss};
use crate::ops::preference_loss::{self, PreferenceLoss};
use crate::ops::sample_tokens::SampleTokens;
use crate::ops::scale::Scale;
use crate::ops::select_rows::SelectRows;
use crate::ops::soft_cap::SoftCap;
use crate::ops::sum::Factor;
use crate::ops::token_scores::TokenScores;
use crate::plan::{Generation, Preference};
use std::ops::Range;
use std::sync::Arc;

/// Rows per chunk of the head: the first of these with which a chunk's logits take at most [`LOGITS_BYTES`],
/// or else the last. Large, because every chunk reads and rewrites the gradient of the head
/// (docs/issues/lead-over-pytorch.md).
const HEAD_ROWS: [usize; 3] = [8192, 4096, 2048];

/// Maximum size of a chunk's logits in bytes, except for chunks with the fewest rows.
const LOGITS_BYTES: usize = 512 << 20;

/// The factor of an evaluation's losses.
const UNSCALED: Factor = Factor::Constant(1.0);

/// Maximum number of chunks of the head, so that programs stay short.
const HEAD_CHUNKS: usize = 64;

/// Returns the number of rows in a chunk of the head. The logits of one row take `row_bytes` bytes.
fn head_chunk(rows: usize, row_bytes: usize) -> usize {
    let fits = |&wanted: &usize| wanted * row_bytes <= LOGITS_BYTES;
    let wanted = HEAD_ROWS.into_iter().find(fits).unwrap_or(HEAD_ROWS[HEAD_ROWS.len() - 1]);
    wanted.max(rows.div_ceil(HEAD_CHUNKS).next_multiple_of(wanted))
}

/// Rows whose losses are recorded together, and where their results go.
pub(super) struct HeadChunk<'a> {
    /// The rows that the head reads, the head's matrix and the targets.
    pub inputs: [TensorId; 3],
    /// The factors of the losses.
    pub factor: RowFactor,
    /// What the factors are read from.
    pub factor_inputs: &'a [TensorId],
    /// The objective.
    pub objective: Objective,
    /// Where the losses go.
    pub losses: TensorId,
    /// Losses beyond cross-entropy.
    pub terms: Vec<TensorId>,
    /// In training, the gradient of the rows, and whether the gradients of parameters are written or added
    /// to.
    pub gradients: Option<(TensorId, Mode)>,
}

impl Recording<'_> {
    /// Returns the name of the head's matrix.
    pub(super) fn head_name(&self) -> &str {
        &self.plan.graph.parameters[self.steps.head.weight].name
    }

    /// Returns the objective. Without training it has no extra terms, so that it gives the plain loss.
    fn objective(&self) -> Objective {
        let (head, terms) = (&self.steps.head, self.plan.objective);
        let objective = Objective {
            logit_scale: head.logit_scale,
            logit_cap: head.logit_cap,
            z_loss: terms.z_loss,
            label_smoothing: terms.label_smoothing,
        };
        match self.purpose {
            Purpose::Train { .. } => objective,
            Purpose::Evaluate | Purpose::Score(_) | Purpose::Generate | Purpose::Prefill(_) => {
                objective.without_terms()
            }
        }
    }

    /// Records the losses of all rows. In training, also records the gradients of the rows and of the head.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn head_loss(&self, b: &mut Builder, normed: TensorId) -> Result<Losses> {
        let trains = matches!(self.purpose, Purpose::Train { .. });
        match (trains, self.plan.preference) {
            (true, Some(preference)) => {
                // The factors of rows follow from the losses of all of them, so these are computed twice.
                let first = self.losses_in_chunks(b, normed, None)?;
                let pairs = self.pairs(b, preference, first.losses)?;
                let factors = Some((RowFactor::Each, vec![pairs.factors]));
                Ok(Losses { pairs: Some(pairs), ..self.losses_in_chunks(b, normed, factors)? })
            }
            (true, None) => {
                let (scale, count) = loss_scale(self.plan, b)?;
                self.losses_in_chunks(b, normed, Some((RowFactor::Same(scale), count)))
            }
            (false, _) => self.losses_in_chunks(b, normed, None),
        }
    }

    /// Records the loss of pairs of answers from the losses of their tokens.
    fn pairs(&self, b: &mut Builder, preference: Preference, losses: TensorId) -> Result<Pairs> {
        let (scale, count) = loss_scale(self.plan, b)?;
        let Preference { loss, beta } = preference;
        b.scoped("head", |b| {
            let slots = [BatchSlot::Targets, BatchSlot::Spans, BatchSlot::Reference];
            let read = slots.map(|slot| b.state(slot)).into_iter().collect::<Result<Vec<_>>>()?;
            let inputs = [&[losses], &read[..], &count[..]].concat();
            let op = PreferenceLoss { loss, beta, scale };
            let outputs = b.emit("pairs", op, &inputs)?;
            Ok(Pairs {
                losses: outputs[preference_loss::LOSSES],
                factors: outputs[preference_loss::FACTORS],
                rewards: outputs[preference_loss::REWARDS],
                correct: outputs[preference_loss::CORRECT],
            })
        })
    }

    /// Records the losses of all rows, in chunks of rows. With `factors` of the losses and what these are
    /// read from, also records the gradients.
    fn losses_in_chunks(
        &self,
        b: &mut Builder,
        normed: TensorId,
        factors: Option<(RowFactor, Vec<TensorId>)>,
    ) -> Result<Losses> {
        let plan = self.plan;
        let rows = plan.batch.rows();
        let head = self.head_name();
        let objective = self.objective();
        b.scoped("head", |b| {
            let gradients = factors.is_some();
            let (factor, factor_inputs) = factors.unwrap_or((RowFactor::Same(UNSCALED), Vec::new()));
            let (weight, targets) = (b.param(head)?, b.state(BatchSlot::Targets)?);
            let chunk = head_chunk(rows, b.spec(weight).alloc[0] * plan.precision.act_dtype.size());
            let losses = b.buffer("losses", Spec::new([rows], plan.precision.master));
            let [z_losses, smoothing_losses] = {
                let mut term = |name: &str| b.buffer(name, Spec::new([rows], plan.precision.master));
                let [z_loss, smoothing] = objective.places(0);
                [z_loss.map(|_| term("z_losses")), smoothing.map(|_| term("smoothing_losses"))]
            };
            let grad_rows = b.buffer("d_normed", b.spec(normed).clone());
            for start in (0..rows).step_by(chunk) {
                let count = chunk.min(rows - start);
                let first = matches!(self.purpose, Purpose::Train { first: true }) && start == 0;
                let mode = if first { Mode::Write } else { Mode::Add };
                let terms = [z_losses, smoothing_losses].into_iter().flatten();
                let factor_inputs = match (factor, &factor_inputs[..]) {
                    (RowFactor::Each, &[factors]) => vec![b.rows(factors, start, count)?],
                    (_, same) => same.to_vec(),
                };
                let chunk = HeadChunk {
                    inputs: [b.rows(normed, start, count)?, weight, b.rows(targets, start, count)?],
                    factor,
                    factor_inputs: &factor_inputs,
                    objective,
                    losses: b.rows(losses, start, count)?,
                    terms: terms.map(|term| b.rows(term, start, count)).collect::<Result<_>>()?,
                    gradients: match gradients {
                        true => Some((b.rows(grad_rows, start, count)?, mode)),
                        false => None,
                    },
                };
                let logits = match self.steps.head.is_fused() {
                    true => self.fused_losses(b, &chunk)?,
                    false => self.losses_of_logits(b, &chunk)?,
                };
                if self.purpose == Purpose::Evaluate {
                    let chunk = LogitRows { start, count, logits };
                    plan.tasks.iter().try_for_each(|task| task.record_logits(b, &chunk))?;
                }
            }
            Ok(Losses { losses, z_losses, smoothing_losses, pairs: None })
        })
    }

    /// Records the losses of a chunk as one op. Returns the products of the head.
    fn fused_losses(&self, b: &mut Builder, chunk: &HeadChunk<'_>) -> Result<TensorId> {
        let &HeadChunk { factor, objective, .. } = chunk;
        let products = self.plan.execution.products;
        let mut outs = vec![Destination::Into(chunk.losses, Mode::Write), Destination::New];
        let mut gradients = HeadGradients::None;
        if let Some((d_rows, mode)) = chunk.gradients {
            gradients = HeadGradients::Rows;
            outs.push(Destination::Into(d_rows, Mode::Write));
            if let Some(grad) = self.head_gradient(b, self.head_name(), mode)? {
                gradients = HeadGradients::RowsAndWeight;
                outs.push(grad);
            }
        }
        let op = HeadLoss { factor, gradients, objective, products };
        outs.extend(chunk.terms.iter().map(|&term| Destination::Into(term, Mode::Write)));
        let inputs = [&chunk.inputs, chunk.factor_inputs].concat();
        Ok(b.emit_into("logits", Arc::new(op), &inputs, &outs)?[1])
    }

    /// Returns where the gradient of a parameter of the head goes; `None` if the parameter is frozen.
    ///
    /// # Errors
    /// If the state lacks the gradient.
    pub(super) fn head_gradient(
        &self,
        b: &mut Builder,
        parameter: &str,
        mode: Mode,
    ) -> Result<Option<Destination>> {
        if self.plan.adapter.is_some() {
            return Ok(None);
        }
        Ok(Some(Destination::Into(b.state(FlatBuffer::Grads.param(parameter))?, mode)))
    }

    /// Records the copy of the rows that the head reads into the state.
    ///
    /// # Errors
    /// If the state has no slot for them.
    pub(super) fn keep_hidden_rows(&self, b: &mut Builder, normed: TensorId) -> Result<()> {
        b.scoped("head", |b| {
            let hidden = Destination::Into(b.state(ScoringSlot::Hidden)?, Mode::Write);
            b.emit_into("hidden", Arc::new(Copy), &[normed], &[hidden]).map(drop)
        })
    }

    /// Records the scores of a range of the scored rows: selects the rows from the state, and multiplies only
    /// these by the head.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn token_scores(&self, b: &mut Builder, scored: Range<usize>) -> Result<()> {
        let head = self.head_name();
        b.scoped("head", |b| {
            let (hidden, weight) = (b.state(ScoringSlot::Hidden)?, b.param(head)?);
            let range = |b: &mut Builder, slot: SlotName| {
                let whole = b.state(slot)?;
                b.rows(whole, scored.start, scored.len())
            };
            let rows = range(b, BatchSlot::Scored.into())?;
            let targets = range(b, BatchSlot::Targets.into())?;
            let log_probs = range(b, ScoringSlot::LogProbs.into())?;
            let likeliest = range(b, ScoringSlot::Likeliest.into())?;
            let selected = b.emit1("selected", SelectRows { prompts: 1 }, &[hidden, rows])?;
            let product = b.emit1("logits", self.linear_op(), &[selected, weight])?;
            let logits = self.logits_of_product(b, product)?.logits;
            let outs = [log_probs, likeliest].map(|to| Destination::Into(to, Mode::Write));
            let op = TokenScores(self.objective());
            b.emit_into("scores", Arc::new(op), &[logits, targets], &outs).map(drop)
        })
    }

    /// Records the logits of the next token of every sample, written into the state, and the token drawn from
    /// them.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn logits(&self, b: &mut Builder, normed: TensorId) -> Result<()> {
        let (head, of) = (self.head_name(), &self.steps.head);
        b.scoped("head", |b| {
            let positions = b.state(GenerationSlot::Positions)?;
            let last = match self.purpose {
                Purpose::Prefill(PromptShape { prompts, .. }) => {
                    b.emit1("last", SelectRows { prompts }, &[normed, positions])?
                }
                _ => normed,
            };
            let (weight, logits) = (b.param(head)?, b.state(GenerationSlot::Logits)?);
            // Every op but the last writes a new tensor.
            let product: Arc<dyn Op> = Arc::new(self.linear_op());
            let mut ops = vec![(product, Some(weight))];
            ops.extend(self.ops_after_product(b)?);
            if of.logit_scale != 1.0 {
                ops.push((Arc::new(Scale { factor: of.logit_scale }), None));
            }
            if let Some(cap) = of.logit_cap {
                ops.push((Arc::new(SoftCap { cap }), None));
            }
            let (mut value, final_op) = (last, ops.len() - 1);
            for (k, (op, parameter)) in ops.into_iter().enumerate() {
                let to =
                    if k == final_op { Destination::Into(logits, Mode::Write) } else { Destination::New };
                let inputs: Vec<TensorId> = [value].into_iter().chain(parameter).collect();
                value = b.emit_into("logits", op, &inputs, &[to])?[0];
            }
            let (tokens, bad) = (b.state(GenerationSlot::Tokens)?, b.state(GenerationSlot::Bad)?);
            let outs = [
                Destination::Into(tokens, Mode::Write),
                Destination::Into(positions, Mode::Add),
                Destination::Into(bad, Mode::Add),
            ];
            let Generation { temperature, top_k, top_p, seed, .. } = self.plan.generation;
            // The model may have entries for which the tokenizer has no text.
            let entries = self.plan.corpus.vocab_size.min(self.plan.model.vocab_size);
            let last = self.plan.batch.seq_len as u32 - 1;
            let sample = SampleTokens { temperature, top_k, top_p, seed, entries, last };
            b.emit_into("token", Arc::new(sample), &[logits], &outs)?;
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
