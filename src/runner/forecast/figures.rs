//! All figures of a run before it starts.

use super::disk::weight_bytes;
use super::{
    Budget, DeviceFit, ExchangeForecast, FitHere, GroupForecast, Memory, Parameters, RunNeeds, Saving,
};
use crate::data::{ChatFacts, Packed, SourceFacts, TaskFacts};
use crate::device::{DType, ProductPrecision};
use crate::error::Result;
use crate::machine::Machine;
use crate::model::{Formula, Programs, flops_per_token};
use crate::plan::{Plan, PlannedSource, Scaling, Stage};
use crate::policy::Recompute;
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything known about a run before it starts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// The recipe's name.
    pub recipe: String,
    /// Summary of how the run is executed.
    pub execution: String,
    /// Number of trained parameters.
    pub parameters: Parameters,
    /// Fraction of the parameters in embedding and head.
    pub vocabulary_share: f64,
    /// Sentences about this fraction, if it is large, about widths that do not match the stream's, and about
    /// keys without effect.
    pub remarks: Vec<String>,
    /// Model FLOPs per token.
    pub flops: Formula,
    /// How a step splits into sequences.
    pub batch: BatchForecast,
    /// Steps, tokens and the corpus.
    pub training: TrainingForecast,
    /// Bytes of a checkpoint per parameter: the weight, the optimizer's slots and the moving average. `None`
    /// if groups of parameters differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_bytes_per_parameter: Option<usize>,
    /// The groups that parameters are updated in.
    pub update_groups: Vec<GroupForecast>,
    /// True if there is a moving average of the weights.
    #[serde(skip)]
    pub(super) has_ema: bool,
    /// Why `activation_checkpoint.mode = "auto"` resolved to its mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recompute_choice: Option<String>,
    /// What ranks exchange in a step; `None` if they exchange nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeForecast>,
    /// The memory of one rank.
    pub memory: Memory,
    /// Time on this machine, and bytes on disk.
    pub needs: RunNeeds,
    /// Whether the run fits this machine; `None` if devices were named, and before
    /// [`Forecast::with_fit_here`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<FitHere>,
    /// Whether the run fits each requested device.
    pub on: Vec<DeviceFit>,
}

/// Sequences per step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchForecast {
    /// Number of ranks.
    pub world: usize,
    /// Sequences per rank and micro-step.
    pub local: usize,
    /// Micro-steps.
    pub accumulation: usize,
    /// Sequences per step.
    pub global: usize,
    /// Consecutive steps with the same batch, if a ramp makes them differ; empty without a ramp.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// `weak` or `strong`.
    pub scaling: &'static str,
    /// The meaning of `scaling` in a sentence.
    pub scaling_in_words: &'static str,
}

/// A source of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceForecast {
    /// Name of the source.
    pub name: String,
    /// Its tokens to train on.
    pub tokens: usize,
    /// True if that is a count, false if it is an estimate.
    pub exact: bool,
    /// Its share of the training sequences, from 0 to 1.
    pub share: f64,
    /// Passes over it.
    pub epochs: f64,
}

/// Steps, tokens and the corpus.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingForecast {
    /// Optimizer steps.
    pub steps: usize,
    /// The budget that the steps follow from, and the steps; `None` if the recipe sets the steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Tokens per step over all ranks, after any ramp of the batch.
    pub tokens_per_step: usize,
    /// Tokens in all steps.
    pub tokens: usize,
    /// Tokens in the corpus.
    pub corpus_tokens: usize,
    /// Held-out tokens.
    pub validation_tokens: usize,
    /// Tokens in further held-out sets, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set_tokens: BTreeMap<String, usize>,
    /// What the model is asked when it is scored on tasks; empty without tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskFacts>,
    /// Bytes of host memory that the tokens take in each process; 0 for token files, which stay on disk.
    pub corpus_bytes: usize,
    /// Number of global batches in the held-out tokens.
    pub validation_batches: usize,
    /// Number of these that an evaluation uses, spread evenly.
    pub evaluated_batches: usize,
    /// True if these are counts, false if they are estimates.
    pub exact: bool,
    /// Passes over the tokens of the corpus that its windows reach.
    pub passes: f64,
    /// Tokens that a pass leaves out, because they fill no window; `None` if the counts are estimates.
    pub left_out: Option<usize>,
    /// True if passes leave out the end and the beginning of the corpus by turns.
    pub left_out_by_turns: bool,
    /// The sources of a mixture; empty if the corpus is one source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceForecast>,
    /// What packing makes of the documents; `None` if nothing is packed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed: Option<Packed>,
    /// What is known about conversations, by the source that has them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub chat: BTreeMap<String, ChatFacts>,
    /// The lowest loss that any model can reach, in nats per token, if known.
    pub floor: Option<f64>,
}

impl Forecast {
    /// Forecasts a plan with its programs: what the run needs, and whether it fits each of `machines`, or,
    /// without any, the recipe's own memory limit.
    ///
    /// # Errors
    /// If the plan does not fit and an op rejects the numbers of a change that is tried.
    pub fn new(plan: &Plan, programs: &Programs, mut needs: RunNeeds, machines: &[Machine]) -> Result<Self> {
        if let Some(machine) = machines.first() {
            needs.saving = Saving::new(plan, programs, machine);
        }
        let parameters = Parameters::new(&programs.state);
        let memory = Memory::new(plan, programs);
        let update_groups = GroupForecast::all(plan, programs);
        let per_parameter = match update_groups.as_slice() {
            [only] => Some(weight_bytes(plan.ema.is_some()) + only.checkpoint_bytes_per_parameter),
            _ => None,
        };
        let mut budgets: Vec<Budget> = machines.iter().map(|machine| Budget::new(plan, machine)).collect();
        if budgets.is_empty() {
            budgets.extend(Budget::from_limit(plan));
        }
        let on = budgets
            .iter()
            .map(|b| DeviceFit::new(plan, programs, memory.peak_bytes, b))
            .collect::<Result<_>>()?;
        Ok(Self {
            recipe: plan.name.clone(),
            execution: execution(plan),
            vocabulary_share: parameters.vocabulary_share(),
            remarks: parameters
                .remark(&plan.model)
                .into_iter()
                .chain(plan.model.remarks(plan.batch.seq_len))
                .collect(),
            checkpoint_bytes_per_parameter: per_parameter,
            recompute_choice: plan.execution.recompute_choice.as_ref().map(ToString::to_string),
            update_groups,
            has_ema: plan.ema.is_some(),
            parameters,
            flops: flops_per_token(plan),
            batch: BatchForecast::new(plan),
            training: TrainingForecast::new(plan),
            exchange: ExchangeForecast::new(plan, programs),
            memory,
            needs,
            here: None,
            on,
        })
    }

    /// Adds remarks about the recipe.
    #[must_use]
    pub fn with_remarks(mut self, remarks: Vec<String>) -> Self {
        self.remarks.extend(remarks);
        self
    }

    /// Adds whether the plan fits this machine. Not fitting is no error, because the plan may be meant for
    /// another machine.
    ///
    /// # Errors
    /// If the fit cannot be checked.
    pub fn with_fit_here(self, plan: &Plan, programs: &Programs, here: &Machine) -> Result<Self> {
        Ok(Self { here: FitHere::new(plan, programs, here)?, ..self })
    }

    /// Returns the devices that the plan does not fit.
    pub fn refusals(&self) -> impl Iterator<Item = &DeviceFit> {
        self.on.iter().filter(|v| v.fits == Some(false))
    }
}

impl BatchForecast {
    fn new(plan: &Plan) -> Self {
        let b = &plan.batch;
        let (scaling, scaling_in_words) = match b.scaling {
            Scaling::Weak => ("weak", "the batch per rank is fixed: more ranks make a larger global batch"),
            Scaling::Strong => {
                ("strong", "the global batch is fixed: more ranks share it, and the curve stays")
            }
        };
        Self {
            world: b.world_size,
            local: b.local,
            accumulation: b.accumulation,
            global: b.global,
            stages: if b.ramp.is_empty() { Vec::new() } else { b.stages(plan.steps).collect() },
            seq_len: b.seq_len,
            scaling,
            scaling_in_words,
        }
    }
}

impl SourceForecast {
    fn new(PlannedSource { facts, share, epochs, .. }: &PlannedSource) -> Self {
        let SourceFacts { name, train_tokens, exact, .. } = facts;
        Self { name: name.clone(), tokens: *train_tokens, exact: *exact, share: *share, epochs: *epochs }
    }
}

impl TrainingForecast {
    fn new(plan: &Plan) -> Self {
        let corpus = &plan.corpus;
        let tokens_per_step = plan.batch.tokens_per_step();
        let (evaluated_batches, validation_batches) = plan.evaluated_batches();
        let windows = plan.windows();
        Self {
            steps: plan.steps,
            until: plan.length_in_words(),
            tokens_per_step,
            tokens: plan.batch.tokens_in_first_steps(plan.steps as u64) as usize,
            corpus_tokens: corpus.train_tokens,
            validation_tokens: corpus.validation_tokens,
            set_tokens: corpus.set_tokens.clone(),
            tasks: corpus.tasks.clone(),
            corpus_bytes: corpus.memory_bytes,
            validation_batches,
            evaluated_batches,
            exact: corpus.exact,
            passes: plan.passes(),
            left_out: corpus.exact.then_some(windows.left_over),
            left_out_by_turns: windows.alternates,
            sources: plan.sources.iter().map(SourceForecast::new).collect(),
            packed: corpus.packed,
            chat: corpus.chat.clone(),
            floor: corpus.floor,
        }
    }
}

/// Summarizes how a plan is executed.
fn execution(plan: &Plan) -> String {
    let dtype = match plan.act_dtype() {
        _ if plan.fp8.is_some() => "fp8",
        DType::Bf16 => "bf16",
        _ if plan.execution.products == ProductPrecision::Tf32 => "tf32",
        _ => "fp32",
    };
    let attention = format!("{} attention", plan.execution.attention);
    let recompute = match plan.execution.recompute {
        Recompute::None => "no recompute".to_owned(),
        Recompute::Emitted => "recompute where gradients emit".to_owned(),
        mode => format!("{mode} recompute"),
    };
    let recompute = match &plan.execution.recompute_choice {
        Some(_) => format!("{recompute} (auto)"),
        None => recompute,
    };
    let fused = if plan.execution.fused { "" } else { ", unfused ops" };
    let sharded = if plan.shards_optimizer() { ", optimizer divided among ranks" } else { "" };
    format!("{dtype}, {attention}, {recompute}{fused}{sharded}")
}
