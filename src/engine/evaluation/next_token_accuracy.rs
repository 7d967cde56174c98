//! The share of held-out tokens to which the model gives the highest probability.

use super::task::{LogitRows, Pass, ReadSlot, Tally, Task};
use crate::data::{Batch, HeldOut, IGNORED};
use crate::device::{DType, Precision};
use crate::error::Result;
use crate::ir::{Builder, Destination, EvaluationSlot, Mode, Spec};
use crate::ops::sample_tokens::SampleTokens;
use std::sync::Arc;

/// Accuracy of greedy next-token prediction. Ties go to the lowest id.
#[derive(Debug)]
pub(super) struct NextTokenAccuracy;

impl Task for NextTokenAccuracy {
    fn figures(&self) -> &'static [&'static str] {
        &["val_accuracy"]
    }

    fn slots(&self, rows: usize, _: Precision) -> Vec<(EvaluationSlot, Spec)> {
        [EvaluationSlot::Likeliest, EvaluationSlot::Missing]
            .map(|slot| (slot, Spec::new([rows], DType::U32)))
            .into()
    }

    /// Greedy sampling is the exact maximum, on the CPU and on a GPU.
    fn record_logits(&self, b: &mut Builder, rows: &LogitRows) -> Result<()> {
        let LogitRows { start, count, logits } = *rows;
        let entries = b.spec(logits).shape[1];
        let greedy = SampleTokens { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0, entries, last: 0 };
        let (likeliest, missing) = (b.state(EvaluationSlot::Likeliest)?, b.state(EvaluationSlot::Missing)?);
        let outs = [
            Destination::Into(b.rows(likeliest, start, count)?, Mode::Write),
            // Positions, which only random draws need.
            Destination::New,
            Destination::Into(b.rows(missing, start, count)?, Mode::Write),
        ];
        b.emit_into("likeliest", Arc::new(greedy), &[logits], &outs).map(drop)
    }

    fn begin(&self, _set: &HeldOut, _pass: Pass, _end_token: u32) -> Result<Box<dyn Tally>> {
        Ok(Box::new(Correct(0)))
    }
}

/// The number of tokens that were predicted correctly.
struct Correct(u64);

impl Tally for Correct {
    fn add(&mut self, _set: &HeldOut, batch: &Batch, read: &ReadSlot<'_>) -> Result<()> {
        let (likeliest, missing) =
            (read(EvaluationSlot::Likeliest.into())?, read(EvaluationSlot::Missing.into())?);
        let rows = batch.targets.iter().zip(likeliest.iter().zip(&missing));
        let correct = rows.filter(|&(&target, (&likeliest, &missing))| {
            target != IGNORED && missing == 0.0 && likeliest == f64::from(target)
        });
        self.0 += correct.count() as u64;
        Ok(())
    }

    fn sums(&self) -> Vec<f64> {
        vec![self.0 as f64]
    }

    fn figures(&self, sums: &[f64], tokens: u64) -> Vec<(&'static str, f64)> {
        vec![("val_accuracy", sums[0] / tokens as f64)]
    }
}
