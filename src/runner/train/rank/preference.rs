//! The reference model of a run on pairs of answers, as a rank uses it.

use super::Rank;
use crate::data::{HeldOut, TextBytes, ValidationBatches};
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::{Error, Result};
use crate::ir::EvaluationSlot;
use crate::plan::Preference;
use crate::policy::PairLoss;
use crate::train::preference::{Answers, ReferenceLogProbs};
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;

/// The status that a rank reports meanwhile.
const COMPUTES_REFERENCE: RankPhase = RankPhase::working("computes the reference");

/// How much the loss of a pair may differ from that of two equal models, relative to it if it exceeds 1.
const TOLERANCE: f64 = 1e-6;

/// The log-probabilities of a pair, as ranks send them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SentPair {
    index: u64,
    answers: Answers,
}

/// What a check of the reference found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::train) struct ReferenceCheck {
    /// The loss of a pair if the model is the reference, in nats.
    pub expected: f64,
    /// The loss among all ranks that differs most from it.
    pub worst: f64,
}

impl ReferenceCheck {
    /// Returns true if the losses are those of two equal models.
    pub fn holds(self) -> bool {
        // A NaN does not hold.
        (self.worst - self.expected).abs() <= TOLERANCE * self.expected.max(1.0)
    }
}

impl Rank {
    /// Returns true if the corpus is pairs of answers.
    pub(in crate::train) fn has_pairs(&self) -> bool {
        self.dataset.holds_pairs()
    }

    /// Returns the number of pairs that are trained on, and those of the held-out sets.
    pub(in crate::train) fn pair_counts(&self) -> (usize, Vec<usize>) {
        let seq_len = self.plan.batch.seq_len;
        let pairs = |tokens: usize| tokens.saturating_sub(1) / seq_len;
        let held_out = self.dataset.held_out().map(|set| pairs(set.tokens.len())).collect();
        (pairs(self.dataset.train().len()), held_out)
    }

    /// Computes the log-probabilities of all pairs by the weights that programs read now. The ranks share the
    /// pairs; every rank gets all results.
    ///
    /// # Errors
    /// If a rank is lost, the engine fails, or a log-probability is not finite.
    pub(in crate::train) fn compute_reference(&mut self) -> Result<ReferenceLogProbs> {
        self.gather_parameters()?;
        let dataset = Arc::clone(&self.dataset);
        let train = HeldOut {
            name: String::new(),
            tokens: dataset.train(),
            hash: String::new(),
            text: TextBytes::Unknown,
            in_training: None,
        };
        let (count, counts) = self.pair_counts();
        let of_train = self.log_probs_of(&train, count)?;
        let held_out = dataset.held_out().zip(counts).map(|(set, count)| self.log_probs_of(set, count));
        Ok(ReferenceLogProbs { train: of_train, held_out: held_out.collect::<Result<_>>()? })
    }

    /// Computes the log-probabilities of the `count` pairs of a set.
    fn log_probs_of(&mut self, set: &HeldOut, count: usize) -> Result<Vec<Answers>> {
        let (dataset, programs) = (Arc::clone(&self.dataset), Arc::clone(&self.programs));
        let mut own = Vec::new();
        for batch in ValidationBatches::new(&dataset, set, self.spec(), 0)? {
            let batch = batch?;
            self.comm.set_status(self.done, COMPUTES_REFERENCE);
            self.upload(&batch)?;
            self.engine.run_all(&[&programs.evaluate], 0)?;
            let found = self.engine.state.values(self.engine.state.slot(EvaluationSlot::AnswerLogProbs)?)?;
            let (chosen, rejected) = found.split_at(batch.sequences.len());
            let answers = chosen.iter().zip(rejected).map(|(&chosen, &rejected)| [chosen, rejected]);
            let pairs = batch.sequences.iter().zip(answers).filter(|(index, _)| (**index as usize) < count);
            own.extend(pairs.map(|(&index, answers)| SentPair { index: index.into(), answers }));
        }
        let gathered =
            self.comm.gather("the reference's log-probabilities", bytemuck::cast_slice(&own).to_vec())?;
        let mut all = vec![[f64::NAN; 2]; count];
        for part in gathered.parts() {
            for pair in bytemuck::pod_collect_to_vec::<u8, SentPair>(part) {
                if let Some(answers) = all.get_mut(pair.index as usize) {
                    *answers = pair.answers;
                }
            }
        }
        match all.iter().position(|answers| answers.iter().any(|number| !number.is_finite())) {
            None => Ok(all),
            Some(pair) => Err(Error::failed(format!(
                "the reference model gives the answers of pair {} log-probabilities {:?}, which are no numbers to compare \
                 with",
                pair + 1,
                all[pair]
            ))),
        }
    }

    /// Sets the log-probabilities with which batches are compared.
    pub(in crate::train) fn set_reference(&mut self, reference: ReferenceLogProbs) {
        self.reference = Some(Arc::new(reference));
    }

    /// Computes the losses of the first micro-batch of the next step, without dropout, by the weights that
    /// programs read now. If these are the reference's, each is the loss of two equal models.
    ///
    /// # Errors
    /// If a rank is lost, or the engine fails.
    pub(in crate::train) fn check_reference(&mut self, preference: Preference) -> Result<ReferenceCheck> {
        let batch = self.coming_batch()?;
        self.upload(&batch)?;
        let programs = Arc::clone(&self.programs);
        self.engine.run_all(&[&programs.evaluate], 0)?;
        let losses = self.engine.state.values(self.engine.state.slot(EvaluationSlot::PairLosses)?)?;
        let all = self.comm.gather("the check of the reference", bytemuck::cast_slice(&losses).to_vec())?;
        let losses = all.parts().flat_map(bytemuck::pod_collect_to_vec::<u8, f64>);
        let expected = match preference.loss {
            PairLoss::Dpo => std::f64::consts::LN_2,
            PairLoss::Ipo => (0.5 / preference.beta).powi(2),
        };
        let further = |a: f64, b: f64| {
            let distance = |x: f64| if x.is_nan() { f64::INFINITY } else { (x - expected).abs() };
            if distance(b) > distance(a) { b } else { a }
        };
        Ok(ReferenceCheck { expected, worst: losses.fold(expected, further) })
    }
}
