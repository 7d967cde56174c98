//! Evaluation on the held-out sets.

use super::Rank;
use super::documents::SetDocuments;
use crate::data::ValidationBatches;
use crate::device::communicator::Communicator;
use crate::error::Result;
use crate::exec::Section;
use crate::ir::ControlSlot;
use crate::results::documents::DocumentLoss;
use crate::train::phase::EVALUATES;
use std::sync::Arc;

/// An evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// The losses on the held-out sets, in the order of
    /// [`Dataset::held_out`](crate::data::Dataset::held_out).
    pub sets: Vec<Evaluated>,
    /// Those of the moving average of the weights; none unless the plan evaluates it.
    pub ema: Vec<Evaluated>,
    /// The losses of their documents; none unless they were asked for.
    pub documents: Vec<DocumentLoss>,
}

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
    /// Evaluates every held-out set over all ranks: all of it, or `validation.steps` global batches; and once
    /// more with the moving average of the weights, if the plan asks for that. With `documents`, also their
    /// documents, if the plan asks for these. `see` is called before each batch, with the number of those
    /// done and of all.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn evaluate(&mut self, documents: bool, mut see: impl FnMut(usize, usize)) -> Result<Evaluation> {
        let documents = documents && self.plan.document_losses;
        let times = self.plan.evaluated_weights();
        self.gather_parameters()?;
        self.check_corpus()?;
        let mut evaluation = self.evaluate_sets(documents, &mut |done, of| see(done, times * of))?;
        let programs = Arc::clone(&self.programs);
        if let Some(swap) = &programs.swap_ema {
            self.swap_ema(swap)?;
            // An error ends the run: nothing is restored then, and no other collective entered.
            evaluation.ema = self.evaluate_sets(false, &mut |done, of| see(of + done, times * of))?.sets;
            self.swap_ema(swap)?;
        }
        Ok(evaluation)
    }

    /// Exchanges the weights and their moving average, everywhere where programs read weights. A second time
    /// restores both to the bit. Every rank calls it.
    fn swap_ema(&mut self, swap: &Section) -> Result<()> {
        self.engine.run(swap)?;
        self.gathered = self.programs.gather.is_none();
        self.gather_parameters()
    }

    /// Evaluates every held-out set, with the weights that programs read now.
    fn evaluate_sets(&mut self, documents: bool, see: &mut dyn FnMut(usize, usize)) -> Result<Evaluation> {
        let dataset = Arc::clone(&self.dataset);
        let programs = Arc::clone(&self.programs);
        let (spec, limit) = (self.spec(), self.plan.intervals.validation_steps);
        let batches_of = |set| Ok((set, ValidationBatches::new(&dataset, set, spec.clone(), limit)?));
        let sets: Vec<_> = dataset.held_out().map(batches_of).collect::<Result<_>>()?;
        let count: usize = sets.iter().map(|(_, batches)| batches.len()).sum();
        let mut done = 0;
        let mut sums = Vec::new();
        let mut texts = Vec::new();
        let mut of_documents = Vec::new();
        for (set, batches) in sets {
            let (mut loss, mut tokens, mut bytes) = (0.0, 0, Some(0));
            let whole = set.text.of_whole().filter(|_| batches.takes_all());
            let end_token = dataset.tokenizer.end_token();
            let mut parts = documents.then(|| SetDocuments::new(set, end_token)).transpose()?;
            for batch in batches {
                see(done, count);
                done += 1;
                let batch = batch?;
                self.comm.set_status(self.done, EVALUATES);
                self.upload(&batch, self.done)?;
                self.engine.run_all(&[&programs.evaluate], 0)?;
                loss += self.number(ControlSlot::EvalLoss)?;
                tokens += batch.counted();
                bytes = bytes.zip(set.text.of_targets(&batch.targets)).map(|(sum, bytes)| sum + bytes);
                if let Some(parts) = &mut parts {
                    parts.add(set, &batch, &self.losses_of_rows()?);
                }
            }
            if let Some(parts) = parts {
                of_documents.extend(parts.gather(&*self.comm)?);
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
        let sets = sums.as_chunks().0.iter().zip(texts).map(evaluated).collect();
        Ok(Evaluation { sets, ema: Vec::new(), documents: of_documents })
    }
}
