//! Plans: a recipe with every number derived and checked. The engine sees only the plan.

mod adapter;
mod architecture;
mod batch;
mod corpus;
mod devices;
mod events;
mod execution;
mod fp8;
mod mixture;
mod model;
mod preference;
mod recompute_choice;
mod resolve;
mod seeds;
mod tasks;

pub use crate::data::CorpusFacts;
pub use crate::recipe::{Generation, Schedule, Until};
pub use adapter::Adapter;
pub use batch::{BatchPlan, Scaling, Stage};
pub use corpus::{corpus_facts, data_spec};
pub use devices::choose_gpus;
pub use events::{Intervals, Period, is_due, times_due};
pub use execution::Execution;
pub use fp8::{Fp8, fp8_fault};
pub use mixture::PlannedSource;
pub use model::{Model, PADDING, QkNormOptions, RopeOptions};
pub use preference::{Preference, held_out_loss};
pub use recompute_choice::{ModeCost, RecomputeChoice};
pub use seeds::Seeds;
pub use tasks::{column_metrics, facts_of_tasks, read_tasks, task_facts};

use crate::data::{LoaderSpec, MixtureStage, Windows, held_out_batches};
use crate::device::gpu::MAX_RANKS;
use crate::device::{DType, Precision};
use crate::evaluation::Task;
use crate::format::{percent, plural, thousands};
use crate::model_text::Graph;
use crate::optim::{UpdateGroup, WeightEma};
use crate::policy::{Packing, Placement, Shard, Shuffle, Transport};
use std::sync::Arc;

/// Terms of the training objective besides the cross-entropy. Held-out losses have neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Weight of the squared logarithm of the softmax denominator, per token.
    pub z_loss: f64,
    /// Share of the target's probability that is spread over the vocabulary.
    pub label_smoothing: f64,
}

/// A recipe with every number derived and checked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The recipe's name.
    pub name: String,
    /// Dimensions.
    pub model: Model,
    /// The operations of the model.
    pub graph: Arc<Graph>,
    /// What is trained in place of the model's weights; `None` if these are trained.
    pub adapter: Option<Adapter>,
    /// The loss of pairs of answers; `None` if the corpus has none.
    pub preference: Option<Preference>,
    /// Sequences per step.
    pub batch: BatchPlan,
    /// Optimizer steps.
    pub steps: usize,
    /// The budget that the steps follow from; `None` if the recipe sets the steps.
    pub until: Option<Until>,
    /// Seeds.
    pub seeds: Seeds,
    /// Number formats.
    pub precision: Precision,
    /// Which products read 8-bit floats; `None` if none does.
    pub fp8: Option<Fp8>,
    /// Terms of the objective besides the cross-entropy.
    pub objective: Objective,
    /// True if tokens attend to other documents in their window.
    pub cross_documents: bool,
    /// How documents are laid into rows.
    pub packing: Packing,
    /// Which windows of the corpus are shuffled with each other.
    pub shuffle: Shuffle,
    /// Update rules of parameters by role; together they cover all roles.
    pub update_groups: Vec<UpdateGroup>,
    /// Moving average of the weights; `None` if none is kept.
    pub ema: Option<WeightEma>,
    /// Largest global L2 norm of the gradient; 0 turns clipping off.
    pub max_norm: f64,
    /// Learning rate of `[optimizer]`, which the rows of `metrics.csv` show. Groups follow the same schedule
    /// with their own peaks.
    pub schedule: Schedule,
    /// Execution of a step.
    pub execution: Execution,
    /// Steps between events.
    pub intervals: Intervals,
    /// What evaluations measure.
    pub tasks: Vec<Arc<dyn Task>>,
    /// Samples that the model generates during and after training.
    pub generation: Generation,
    /// The corpus.
    pub corpus: CorpusFacts,
    /// Weights of the sources of a mixture; empty for a corpus that is one source.
    pub mixture: Vec<MixtureStage>,
    /// The sources of a mixture with what is read of each; empty if the corpus is one source, or unknown.
    pub sources: Vec<PlannedSource>,
}

impl Plan {
    /// Returns the format of activations.
    pub fn act_dtype(&self) -> DType {
        self.precision.act_dtype
    }

    /// Returns true if the model drops elements in training.
    pub fn drops_elements(&self) -> bool {
        self.graph.nodes.iter().any(|node| node.operation.dropout() > 0.0)
            || self.adapter.as_ref().is_some_and(|adapter| adapter.dropout > 0.0)
    }

    /// Returns true if ranks exchange gradients, and therefore hold the same parameters.
    pub fn exchanges_gradients(&self) -> bool {
        self.batch.world_size > 1 && self.execution.communicate
    }

    /// Returns true if ranks divide the optimizer's slots. A single rank holds all of them.
    pub fn shards_optimizer(&self) -> bool {
        self.batch.world_size > 1 && self.execution.shard == Shard::Optimizer
    }

    /// Returns true if GPUs exchange data by copies, provided that they have access to each other's memory.
    /// This excludes tensors that are allocated and freed during a step: before freeing memory that other
    /// GPUs can access, the driver waits for these GPUs, which may be waiting for this rank.
    pub fn copies_between_gpus(&self) -> bool {
        const { assert!(Transport::MOST_COPYING == MAX_RANKS) };
        self.shards_optimizer()
            && self.batch.world_size <= MAX_RANKS
            && self.execution.gpu.is_some()
            && self.execution.placement == Placement::Arena
            && self.execution.transport != Transport::Nccl
    }

    /// Returns how many global batches an evaluation reads, and how many the held-out text makes.
    pub fn evaluated_batches(&self) -> (usize, usize) {
        self.evaluated_batches_for(self.corpus.validation_tokens)
    }

    /// Returns the same as [`Plan::evaluated_batches`] for a held-out set of `tokens` tokens.
    pub fn evaluated_batches_for(&self, tokens: usize) -> (usize, usize) {
        let BatchPlan { seq_len, global, .. } = self.batch;
        let all = held_out_batches(tokens, seq_len, global);
        match self.intervals.validation.steps {
            0 => (all, all),
            steps => (steps.min(all), all),
        }
    }

    /// Returns how many global batches an evaluation reads from all held-out sets together.
    pub fn total_evaluated_batches(&self) -> usize {
        let sets = self.corpus.set_tokens.values().map(|&tokens| self.evaluated_batches_for(tokens).0);
        self.evaluated_batches().0 + sets.sum::<usize>()
    }

    /// Returns how many sets of weights an evaluation measures: the weights, and their moving average if it
    /// is evaluated.
    pub fn evaluated_weight_sets(&self) -> usize {
        1 + usize::from(self.ema.is_some_and(|ema| ema.evaluates))
    }

    /// Returns the tokens that a model reads when it is scored on all tasks once, with one set of weights.
    pub fn task_tokens(&self) -> usize {
        self.corpus.tasks.iter().map(|task| task.tokens).sum()
    }

    /// Returns how the tokens to train on are cut into windows.
    pub fn windows(&self) -> Windows {
        if !self.sources.is_empty() && self.corpus.packed.is_none() {
            let windows = self.sources.iter().map(|source| {
                let windows = Windows::new(source.facts.train_tokens, self.batch.seq_len);
                Windows { alternates: false, ..windows }
            });
            return windows.fold(Windows::default(), Windows::plus);
        }
        let reached = self.corpus.train_tokens;
        match self.corpus.packed {
            Some(packed) => Windows { count: packed.rows, reached, left_over: 0, alternates: false },
            None => Windows::new(reached, self.batch.seq_len),
        }
    }

    /// Returns what a rank reads of the corpus after its first `done` steps.
    pub fn loader(&self, rank: usize, done: u64) -> LoaderSpec {
        LoaderSpec {
            seq_len: self.batch.seq_len,
            local_batch_size: self.batch.micro,
            accumulation: self.batch.micro_steps,
            ramp: self.batch.ramp.clone(),
            world_size: self.batch.world_size,
            rank,
            cross_documents: self.cross_documents,
            seed: self.seeds.order,
            shuffle: self.shuffle,
            mixture: self.mixture.clone(),
            start_step: done,
        }
    }

    /// Returns true if steps have different numbers of targets, so that the count arrives with the batch.
    pub fn counts_targets(&self) -> bool {
        !self.batch.ramp.is_empty() || self.packing != Packing::Stream
    }

    /// Returns the number of sources of a mixture, whose losses are measured apart; 0 for a corpus that is
    /// one source.
    pub fn source_count(&self) -> usize {
        self.mixture.first().map_or(0, |stage| stage.weights.len())
    }

    /// Returns the number of passes over the tokens that windows of the corpus reach.
    pub fn passes(&self) -> f64 {
        let trained = self.batch.tokens_in_first_steps(self.steps as u64) as f64;
        // Rows of conversations are windows, padding included.
        let packed = self.corpus.packed.filter(|_| self.corpus.chat.is_empty());
        let padding = packed.map_or(0.0, |packed| packed.padding);
        trained * (1.0 - padding) / self.windows().reached.max(1) as f64
    }

    /// Says which steps a budget gave; `None` if the recipe sets the steps.
    pub fn length_in_words(&self) -> Option<String> {
        let until = self.until.as_ref()?;
        Some(format!("training.until = {until}: {} step{}", thousands(self.steps), plural(self.steps)))
    }

    /// Warns if the run ends before it reaches a noticeable part of its corpus that no window of the first
    /// pass holds.
    pub fn unreached_tokens(&self) -> Option<String> {
        let Windows { left_over, alternates, .. } = self.windows();
        let tokens = self.corpus.train_tokens;
        (alternates && self.corpus.exact && self.passes() <= 1.0).then(|| {
            format!(
                "the last {left_over} of {} tokens fill no window of training.seq_len = {}, and the run ends before the \
                 second pass, which begins {left_over} tokens later: {} of the corpus is not trained on",
                thousands(tokens),
                self.batch.seq_len,
                percent(left_over as f64 / tokens as f64)
            )
        })
    }
}
