//! Evaluation on the held-out sets.

use super::Rank;
use crate::data::{HeldOut, ValidationBatches};
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::Result;
use crate::evaluation::{Pass, Tally, Task};
use crate::exec::Section;
use crate::ir::SlotName;
use crate::metrics::DocumentLoss;
use crate::train::preference::for_batch;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The status that a rank reports while it evaluates on held-out data.
const EVALUATES: RankPhase = RankPhase::working("evaluates");

/// The results of one evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Results for each held-out set, in the order of [`Dataset::held_out`](crate::data::Dataset::held_out).
    pub sets: Vec<Evaluated>,
    /// The same for the moving average of the weights; empty unless the plan evaluates it.
    pub ema: Vec<Evaluated>,
    /// The losses of single documents; empty unless they were requested.
    pub documents: Vec<DocumentLoss>,
}

/// The results for one held-out set.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Figures by their names in [`TASK_FIGURES`](crate::metrics::TASK_FIGURES).
    pub figures: BTreeMap<&'static str, f64>,
    /// Predicted tokens over all ranks, end tokens included.
    pub tokens: u64,
    /// Bytes of text that the tokens stand for; `None` if unknown.
    pub bytes: Option<u64>,
}

impl Evaluated {
    /// Returns the mean loss over the tokens, in nats.
    pub fn loss(&self) -> f64 {
        self.figures.get("val_loss").copied().unwrap_or(f64::NAN)
    }
}

/// What this rank has measured so far on one held-out set.
struct OpenSet {
    /// One per evaluation task of the plan.
    tallies: Vec<Box<dyn Tally>>,
    /// Predicted tokens so far.
    tokens: usize,
    /// Bytes of text that these tokens stand for; `None` if the bytes of single tokens are unknown.
    counted: Option<u64>,
    /// Bytes of the set's whole text over all ranks, if known; `None` if only part of the set is evaluated.
    whole: Option<u64>,
}

impl OpenSet {
    /// Returns this rank's sums, to be added over ranks: tokens, counted bytes, and the sums of each tally.
    fn sums(&self) -> Vec<f64> {
        // Counts are exact in f64 up to 2^53.
        let counts = [self.tokens as f64, self.counted.unwrap_or_default() as f64];
        counts.into_iter().chain(self.tallies.iter().flat_map(|tally| tally.sums())).collect()
    }

    /// Computes the results from the sums over all ranks, which are in the order of [`OpenSet::sums`].
    fn evaluated(&self, sums: &[f64]) -> Evaluated {
        let (counts, mut rest) = sums.split_at(2);
        let tokens = counts[0] as u64;
        let mut figures = BTreeMap::new();
        for tally in &self.tallies {
            let (own, after) = rest.split_at(tally.sums().len());
            figures.extend(tally.figures(own, tokens));
            rest = after;
        }
        Evaluated { figures, tokens, bytes: self.counted.map(|_| counts[1] as u64).or(self.whole) }
    }
}

impl Rank {
    /// Evaluates every held-out set, whose batches all ranks share: the whole set, or `validation.steps`
    /// global batches of it. Then does the same with the moving average of the weights, if the plan asks for
    /// it. `is_last` marks the evaluation after the last step, in which tasks may measure more. Calls
    /// `on_batch` before each batch of this rank, with the number of finished batches and the total. Every
    /// rank must call this at the same step.
    ///
    /// # Errors
    /// If a rank is lost, the engine fails, or a file of the corpus was changed.
    pub fn evaluate(&mut self, is_last: bool, mut on_batch: impl FnMut(usize, usize)) -> Result<Evaluation> {
        let times = self.plan.evaluated_weight_sets();
        self.gather_parameters()?;
        self.check_corpus()?;
        let pass = Pass { is_average: false, is_last };
        let mut evaluation = self.evaluate_sets(pass, &mut |done, of| on_batch(done, times * of))?;
        let programs = Arc::clone(&self.programs);
        if let Some(swap) = &programs.swap_ema {
            self.swap_ema(swap)?;
            let pass = Pass { is_average: true, is_last };
            // An error ends the run, so nothing needs to be restored, and no further collective may start.
            evaluation.ema = self.evaluate_sets(pass, &mut |done, of| on_batch(of + done, times * of))?.sets;
            self.swap_ema(swap)?;
        }
        Ok(evaluation)
    }

    /// Swaps the weights and their moving average everywhere that programs read weights. A second call
    /// restores both to the bit. Every rank must call it.
    pub(super) fn swap_ema(&mut self, swap: &Section) -> Result<()> {
        self.engine.run(swap)?;
        // With a sharded optimizer, a rank swaps only what it owns. Its copies of the other ranks' weights
        // are now outdated and must be gathered again.
        self.gathered = self.programs.gather.is_none();
        self.gather_parameters()
    }

    /// Evaluates every held-out set with the weights that programs read now. One collective at the end adds
    /// the sums of all sets over ranks.
    fn evaluate_sets(&mut self, pass: Pass, on_batch: &mut dyn FnMut(usize, usize)) -> Result<Evaluation> {
        let dataset = Arc::clone(&self.dataset);
        let (spec, limit) = (self.spec(), self.plan.intervals.validation.steps);
        let with_batches = |set| Ok((set, ValidationBatches::new(&dataset, set, spec.clone(), limit)?));
        let sets: Vec<_> = dataset.held_out().map(with_batches).collect::<Result<_>>()?;
        let count: usize = sets.iter().map(|(_, batches)| batches.len()).sum();
        let mut done = 0;
        let mut see_next = || {
            on_batch(done, count);
            done += 1;
        };
        let mut open_sets = Vec::new();
        let mut documents = Vec::new();
        for (index, (set, batches)) in sets.into_iter().enumerate() {
            let mut open = self.evaluate_set((index, set), batches, pass, &mut see_next)?;
            for tally in &mut open.tallies {
                documents.extend(tally.documents(&*self.comm)?);
            }
            open_sets.push(open);
        }
        let mut sums: Vec<f64> = open_sets.iter().flat_map(OpenSet::sums).collect();
        self.comm.all_reduce_sum_f64("the end of the evaluation", &mut sums)?;
        let mut rest = sums.as_slice();
        let mut evaluated = |open: &OpenSet| {
            let (own, after) = rest.split_at(open.sums().len());
            rest = after;
            open.evaluated(own)
        };
        let sets = open_sets.iter().map(&mut evaluated).collect();
        Ok(Evaluation { sets, ema: Vec::new(), documents })
    }

    /// Runs this rank's batches of a held-out set, given with its index, and tallies them. Calls `on_batch`
    /// before each.
    fn evaluate_set(
        &mut self,
        (index, set): (usize, &HeldOut),
        batches: ValidationBatches<'_>,
        pass: Pass,
        on_batch: &mut dyn FnMut(),
    ) -> Result<OpenSet> {
        let programs = Arc::clone(&self.programs);
        let opening_token = self.dataset.tokenizer.opening_token();
        let begin = |task: &Arc<dyn Task>| task.begin(set, pass, opening_token);
        let mut open = OpenSet {
            tallies: self.plan.tasks.iter().map(begin).collect::<Result<_>>()?,
            tokens: 0,
            // The loss of pairs is none per byte.
            counted: self.plan.preference.is_none().then_some(0),
            whole: set.text.whole_bytes().filter(|_| batches.takes_all && self.plan.preference.is_none()),
        };
        let reference = self.reference.clone();
        let reference = reference.as_ref().and_then(|reference| reference.held_out.get(index));
        for batch in batches {
            on_batch();
            let mut batch = batch?;
            if let Some(reference) = reference {
                batch.reference = for_batch(&batch.sequences, reference);
            }
            self.comm.set_status(self.done, EVALUATES);
            self.upload(&batch)?;
            self.engine.run_all(&[&programs.evaluate], 0)?;
            let read = |slot: SlotName| self.engine.state.values(self.engine.state.slot(slot)?);
            open.tallies.iter_mut().try_for_each(|tally| tally.add(set, &batch, &read))?;
            open.tokens += batch.target_count();
            let bytes = set.text.target_bytes(&batch.targets);
            open.counted = open.counted.zip(bytes).map(|(sum, bytes)| sum + bytes);
        }
        Ok(open)
    }
}
