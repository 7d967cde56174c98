//! Evaluation on the held-out sets.

use super::Rank;
use crate::data::ValidationBatches;
use crate::device::communicator::Communicator;
use crate::error::Result;
use crate::train::phase::EVALUATES;
use std::sync::Arc;

/// The loss on a held-out set, and what it is the mean of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluated {
    /// Mean over the tokens, in nats.
    pub loss: f64,
    /// Predicted tokens over all ranks, end tokens included.
    pub tokens: u64,
    /// Bytes of the text that they stand for; `None` where that is not known.
    pub bytes: Option<u64>,
}

impl Rank {
    /// Evaluates every held-out set ([`Dataset::held_out`]) over all ranks, in their order: all of it, or
    /// `validation.steps` global batches. `see` is called before each batch, with the number of those done
    /// and of all.
    ///
    /// [`Dataset::held_out`]: crate::data::Dataset::held_out
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn evaluate(&mut self, mut see: impl FnMut(usize, usize)) -> Result<Vec<Evaluated>> {
        let dataset = Arc::clone(&self.dataset);
        let programs = Arc::clone(&self.programs);
        let (spec, limit) = (self.spec(), self.plan.intervals.validation_steps);
        self.gather_parameters()?;
        self.check_corpus()?;
        let batches_of = |set| Ok((set, ValidationBatches::new(&dataset, set, spec, limit)?));
        let sets: Vec<_> = dataset.held_out().map(batches_of).collect::<Result<_>>()?;
        let count: usize = sets.iter().map(|(_, batches)| batches.len()).sum();
        let mut done = 0;
        let mut sums = Vec::new();
        let mut texts = Vec::new();
        for (set, batches) in sets {
            let (mut loss, mut tokens, mut bytes) = (0.0, 0, Some(0));
            let whole = set.text.of_whole().filter(|_| batches.takes_all());
            for batch in batches {
                see(done, count);
                done += 1;
                let batch = batch?;
                self.comm.set_status(self.done, EVALUATES);
                self.upload(&batch)?;
                self.engine.run_all(&[&programs.evaluate], 0)?;
                loss += self.number("control.eval_loss")?;
                tokens += batch.counted();
                bytes = bytes.zip(set.text.of_targets(&batch)).map(|(sum, bytes)| sum + bytes);
            }
            // Counts are exact in f64 up to 2^53.
            sums.extend([loss, tokens as f64, bytes.unwrap_or_default() as f64]);
            texts.push((bytes.is_some(), whole));
        }
        self.comm.all_reduce_sum_f64("the end of the evaluation", &mut sums)?;
        let evaluated = |(sums, (is_counted, whole)): (&[f64; 3], (bool, Option<u64>))| {
            let [loss, tokens, bytes] = *sums;
            let bytes = if is_counted { Some(bytes as u64) } else { whole };
            Evaluated { loss: loss / tokens, tokens: tokens as u64, bytes }
        };
        Ok(sums.as_chunks().0.iter().zip(texts).map(evaluated).collect())
    }
}
