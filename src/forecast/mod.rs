//! What a run will be, before it is one: parameters, FLOPs, tokens, memory to the byte, predicted time, what fits.
//!
//! Reads the plan and the engine's own programs and memory plans; allocates no tensor.

pub mod fit;
pub mod hardware;
pub mod listing;
pub mod memory;
pub mod parameters;
mod text;
pub mod time;

pub use fit::{Advice, FitRow, fit_local_batch};
pub use hardware::Hardware;
pub use memory::Memory;
pub use parameters::{Flops, Parameters};
pub use text::fit_table;
pub use time::StepTime;

use crate::error::Result;
use crate::model::Programs;
use crate::plan::{Plan, Scaling};
use serde::Serialize;

/// What stays free of a GPU's memory besides the plan: the CUDA context and its modules and what the driver keeps of
/// the total that it reports (together about 1 GiB on Hopper and Blackwell), and workspaces of cuBLASLt (32 MiB per
/// stream on Hopper).
pub const RESERVE_BYTES: u64 = 5 << 28;

/// What a checkpoint stores of a parameter: the fp32 weight and its two moments.
const CHECKPOINT_BYTES: usize = 12;

/// Everything that is known of a run before it starts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// The recipe's name.
    pub recipe: String,
    /// How it is executed, in a few words.
    pub execution: String,
    /// Trained numbers.
    pub parameters: Parameters,
    /// The share of embedding and head.
    pub vocabulary_share: f64,
    /// A sentence on it, where it is large.
    pub remark: Option<String>,
    /// What a token costs.
    pub flops: Flops,
    /// How a step is split.
    pub batch: Batch,
    /// How much is trained.
    pub training: Training,
    /// Bytes of a checkpoint, without its few KiB of manifest.
    pub checkpoint_bytes: usize,
    /// The memory of one rank.
    pub memory: Memory,
    /// Whether that fits, on each device asked for.
    pub on: Vec<Verdict>,
}

/// Sequences per step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Batch {
    /// Ranks.
    pub world: usize,
    /// Sequences per rank and micro-step.
    pub local: usize,
    /// Micro-steps.
    pub accumulation: usize,
    /// Sequences per step.
    pub global: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
    /// `weak` or `strong`.
    pub scaling: &'static str,
    /// What that means.
    pub scaling_in_words: &'static str,
}

/// Steps, tokens and the corpus.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Optimizer steps.
    pub steps: usize,
    /// Tokens per step over all ranks.
    pub tokens_per_step: usize,
    /// Tokens of all steps.
    pub tokens: usize,
    /// Tokens of the corpus.
    pub corpus_tokens: usize,
    /// Held-out tokens.
    pub validation_tokens: usize,
    /// Whether these are counts rather than estimates.
    pub exact: bool,
    /// How often the corpus is passed over.
    pub passes: f64,
    /// The lowest loss that any model can reach, in nats per token, where it is known.
    pub floor: Option<f64>,
}

/// Memory that a plan must stay within.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The device, unless the limit is only the recipe's.
    pub hardware: Option<&'static Hardware>,
    /// Bytes for state and transient tensors; `None` where nothing is known.
    pub bytes: Option<u64>,
    /// Bytes that were set aside.
    pub reserve: u64,
}

impl Budget {
    /// What a device leaves to a plan, within the recipe's own limit.
    pub fn on(plan: &Plan, hardware: &'static Hardware) -> Self {
        let device = hardware.memory_bytes.map(|total| total.saturating_sub(RESERVE_BYTES));
        let limit = plan.execution.memory_limit.map(|bytes| bytes as u64);
        let bytes = [device, limit].into_iter().flatten().min();
        let reserve = if hardware.memory_bytes.is_some() { RESERVE_BYTES } else { 0 };
        Self { hardware: Some(hardware), bytes, reserve }
    }

    /// The recipe's own limit, where it has one.
    pub fn of_recipe(plan: &Plan) -> Option<Self> {
        let bytes = plan.execution.memory_limit? as u64;
        Some(Self { hardware: None, bytes: Some(bytes), reserve: 0 })
    }

    /// Where the budget comes from.
    pub fn name(&self) -> &'static str {
        self.hardware.map_or("engine.memory_limit_gib", |h| h.name)
    }

    /// Whether so many bytes fit.
    pub fn holds(&self, bytes: usize) -> bool {
        self.bytes.is_none_or(|budget| bytes as u64 <= budget)
    }
}

/// A plan against a budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The device's name, or `engine.memory_limit_gib`.
    pub on: &'static str,
    /// The device.
    pub hardware: Option<Hardware>,
    /// Bytes for state and transient tensors.
    pub budget_bytes: Option<u64>,
    /// Bytes set aside for driver and libraries.
    pub reserve_bytes: u64,
    /// Whether the plan fits; `None` where the memory is unknown.
    pub fits: Option<bool>,
    /// Bytes that stay free; negative: bytes missing.
    pub spare_bytes: Option<i64>,
    /// Changes that would make it fit, when it does not.
    pub advice: Vec<Advice>,
    /// Predicted time, where the device's limits are known.
    pub step: Option<StepTime>,
}

impl Forecast {
    /// Forecasts a plan whose programs are at hand, on each of `devices`; without any, against the recipe's own memory
    /// limit if it has one.
    ///
    /// # Errors
    /// When an op refuses the numbers of a change that is tried because the plan does not fit.
    pub fn new(plan: &Plan, programs: &Programs, devices: &[&'static Hardware]) -> Result<Self> {
        let parameters = Parameters::new(&programs.state);
        let memory = Memory::new(plan, programs);
        let mut budgets: Vec<Budget> = devices.iter().map(|d| Budget::on(plan, d)).collect();
        if budgets.is_empty() {
            budgets.extend(Budget::of_recipe(plan));
        }
        let on = budgets
            .iter()
            .map(|b| Verdict::new(plan, programs, memory.peak_bytes, b))
            .collect::<Result<_>>()?;
        Ok(Self {
            recipe: plan.name.clone(),
            execution: text::execution(plan),
            vocabulary_share: parameters.vocabulary_share(),
            remark: parameters.remark(&plan.model),
            checkpoint_bytes: CHECKPOINT_BYTES * parameters.total,
            parameters,
            flops: Flops::new(plan),
            batch: Batch::new(plan),
            training: Training::new(plan),
            memory,
            on,
        })
    }

    /// The verdicts that say no.
    pub fn refusals(&self) -> impl Iterator<Item = &Verdict> {
        self.on.iter().filter(|v| v.fits == Some(false))
    }
}

impl Batch {
    fn new(plan: &Plan) -> Self {
        let b = &plan.batch;
        let (scaling, scaling_in_words) = match b.scaling {
            Scaling::Weak => ("weak", "the batch per rank is fixed: more ranks make a larger global batch"),
            Scaling::Strong => {
                ("strong", "the global batch is fixed: more ranks share it, and the curve stays")
            }
        };
        Self {
            world: b.world,
            local: b.local,
            accumulation: b.accumulation,
            global: b.global,
            seq_len: b.seq_len,
            scaling,
            scaling_in_words,
        }
    }
}

impl Training {
    fn new(plan: &Plan) -> Self {
        let corpus = &plan.corpus;
        let tokens_per_step = plan.batch.tokens_per_step();
        Self {
            steps: plan.steps,
            tokens_per_step,
            tokens: plan.steps * tokens_per_step,
            corpus_tokens: corpus.train_tokens,
            validation_tokens: corpus.validation_tokens,
            exact: corpus.exact,
            passes: plan.passes(),
            floor: corpus.floor,
        }
    }
}

impl Verdict {
    fn new(plan: &Plan, programs: &Programs, peak: usize, budget: &Budget) -> Result<Self> {
        let fits = budget.bytes.map(|_| budget.holds(peak));
        let limits = budget.hardware.and_then(|h| h.limits);
        Ok(Self {
            on: budget.name(),
            hardware: budget.hardware.copied(),
            budget_bytes: budget.bytes,
            reserve_bytes: budget.reserve,
            fits,
            spare_bytes: budget.bytes.map(|b| b as i64 - peak as i64),
            advice: if fits == Some(false) { fit::advise(plan, budget)? } else { Vec::new() },
            step: limits.map(|limits| StepTime::new(plan, programs, &limits)),
        })
    }
}
