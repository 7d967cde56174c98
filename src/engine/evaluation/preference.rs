//! The loss of held-out pairs of answers, and how often the model prefers the chosen one.

use super::task::{Pass, ReadSlot, Tally, Task};
use crate::data::{Batch, HeldOut, IGNORED};
use crate::device::{DType, Precision};
use crate::error::Result;
use crate::ir::{BatchSlot, Builder, ControlSlot, Destination, EvaluationSlot, Mode, Spec, TensorId};
use crate::ops::preference_loss::PreferenceLoss;
use crate::ops::sum::{Factor, Sum};
use crate::policy::PairLoss;
use std::sync::Arc;

/// Mean loss of pairs, the share in which the chosen answer has the higher reward, and the mean difference of
/// the rewards.
#[derive(Debug)]
pub(super) struct Preferences {
    /// The formula.
    pub loss: PairLoss,
    /// How closely the model is held to the reference.
    pub beta: f64,
    /// Tokens of a row, which has a pair.
    pub seq_len: usize,
}

impl Task for Preferences {
    fn figures(&self) -> &'static [&'static str] {
        &["val_loss", "val_preference_accuracy", "val_margin"]
    }

    fn slots(&self, rows: usize, precision: Precision) -> Vec<(EvaluationSlot, Spec)> {
        let pairs = rows / self.seq_len;
        vec![
            (EvaluationSlot::PairLosses, Spec::new([pairs], precision.master)),
            (EvaluationSlot::Rewards, Spec::new([2 * pairs], precision.master)),
            (EvaluationSlot::AnswerLogProbs, Spec::new([2 * pairs], DType::F64)),
        ]
    }

    fn record_losses(&self, b: &mut Builder, losses: TensorId) -> Result<()> {
        b.scoped("head", |b| {
            let inputs = [BatchSlot::Targets, BatchSlot::Spans, BatchSlot::Reference];
            let [targets, spans, reference] = inputs.map(|slot| b.state(slot));
            let inputs = [losses, targets?, spans?, reference?];
            let mut into = |slot: EvaluationSlot| Ok(Destination::Into(b.state(slot)?, Mode::Write));
            let outs = [
                into(EvaluationSlot::PairLosses)?,
                Destination::New,
                into(EvaluationSlot::Rewards)?,
                Destination::New,
                into(EvaluationSlot::AnswerLogProbs)?,
            ];
            let op = PreferenceLoss { loss: self.loss, beta: self.beta, scale: Factor::Constant(1.0) };
            let pairs = b.emit_into("pairs", Arc::new(op), &inputs, &outs)?;
            let (sum, to) = (Sum { scale: Factor::Constant(1.0) }, b.state(ControlSlot::EvalLoss)?);
            b.emit_into("loss", Arc::new(sum), &pairs[..1], &[Destination::Into(to, Mode::Write)]).map(drop)
        })
    }

    fn begin(&self, _set: &HeldOut, _pass: Pass, _end_token: u32) -> Result<Box<dyn Tally>> {
        Ok(Box::new(PreferenceTally::default()))
    }
}

#[derive(Default)]
struct PreferenceTally {
    pairs: u64,
    loss: f64,
    correct: u64,
    margin: f64,
}

impl Tally for PreferenceTally {
    fn add(&mut self, _set: &HeldOut, batch: &Batch, read: &ReadSlot<'_>) -> Result<()> {
        let losses = read(EvaluationSlot::PairLosses.into())?;
        let rewards = read(EvaluationSlot::Rewards.into())?;
        let (chosen, rejected) = rewards.split_at(losses.len());
        let rows = batch.targets.chunks(batch.targets.len() / losses.len().max(1));
        for (row, (loss, (chosen, rejected))) in rows.zip(losses.iter().zip(chosen.iter().zip(rejected))) {
            // The last batch may have rows without a pair.
            if row.iter().all(|&target| target == IGNORED) {
                continue;
            }
            self.pairs += 1;
            self.loss += loss;
            self.correct += u64::from(chosen > rejected);
            self.margin += chosen - rejected;
        }
        Ok(())
    }

    fn sums(&self) -> Vec<f64> {
        vec![self.pairs as f64, self.loss, self.correct as f64, self.margin]
    }

    fn figures(&self, sums: &[f64], _tokens: u64) -> Vec<(&'static str, f64)> {
        let names = ["val_loss", "val_preference_accuracy", "val_margin"];
        names.into_iter().zip(&sums[1..]).map(|(name, sum)| (name, sum / sums[0])).collect()
    }
}
