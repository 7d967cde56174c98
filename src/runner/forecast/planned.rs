//! Plans a recipe for a machine: resolves the recompute mode `"auto"`, and makes the plan and its programs.

use super::budget::{HOST_MEMORY_DIVISOR, RESERVE_BYTES};
use super::memory::peak_bytes;
use super::time::StepTime;
use crate::error::Result;
use crate::machine::{Limits, Machine, hardware};
use crate::model::{Programs, flops_per_token};
use crate::plan::{CorpusFacts, ModeCost, Plan, RecomputeChoice, corpus_facts};
use crate::policy::Recompute;
use crate::recipe::Recipe;

/// The balance of a CPU for comparing recompute modes. Two cores of a server reached 155 to 208 GFLOP/s in
/// products, in any format, at some 20 GB/s.
const CPU: Limits = Limits { fp32: 150e9, tf32: 150e9, bf16: 150e9, bandwidth: 20e9 };

/// The device whose balance is used for a GPU that is not in the list of devices.
const USUAL_GPU: &str = "a100-80";

/// A recipe with its plan and programs, which agree.
#[derive(Debug)]
pub struct Planned {
    /// The recipe, with a resolved recompute mode.
    pub recipe: Recipe,
    /// Its plan.
    pub plan: Plan,
    /// The programs of the plan.
    pub programs: Programs,
}

impl Planned {
    /// Plans a recipe for a machine and records its programs. `activation_checkpoint.mode = "auto"` is
    /// resolved only from the plan and the machine's total memory, so a recipe gets the same mode on every
    /// such machine.
    ///
    /// # Errors
    /// If the plan is invalid for the corpus or the machine, or an op rejects its numbers.
    pub fn new(recipe: &Recipe, corpus: &CorpusFacts, machine: &Machine) -> Result<Self> {
        let recipe = &with_known_length(recipe, corpus, machine)?;
        let plan = Plan::new(recipe, corpus, machine)?;
        if recipe.values().activation_checkpoint.mode.fixed().is_some() {
            let programs = Programs::new(&plan)?;
            return Ok(Self { recipe: recipe.clone(), plan, programs });
        }
        let limits = limits(&plan, machine);
        let (mut costs, mut planned) = (Vec::new(), Vec::new());
        let tasks = plan.intervals.tasks;
        for &mode in Recompute::ALL {
            let mut plan = plan.clone();
            plan.execution.recompute = mode;
            // Scoring tasks must not change the mode, and with it the hash of the recipe.
            plan.intervals.tasks = None;
            let programs = Programs::new(&plan)?;
            let seconds = StepTime::new(&plan, &programs, &limits).seconds;
            costs.push(ModeCost { mode, peak_bytes: peak_bytes(&plan, &programs), seconds });
            planned.push((plan, programs));
        }
        let choice = RecomputeChoice::new(budget(&plan, machine), costs);
        let mode = choice.as_ref().map_or(Recompute::None, RecomputeChoice::mode);
        planned.retain(|(plan, _)| plan.execution.recompute == mode);
        let (mut plan, mut programs) = planned.swap_remove(0);
        plan.intervals.tasks = tasks;
        programs.scoring = Programs::scoring(&plan)?;
        plan.execution.recompute_choice = choice;
        Ok(Self { recipe: recipe.clone().with_recompute(mode), plan, programs })
    }
}

/// Returns a recipe with the steps that its budget in FLOPs gives; other recipes stay the same. Only a plan
/// knows the vocabulary, and so the FLOPs of a token.
///
/// # Errors
/// If the plan is invalid, if the budget is less than a step or too many, or if it is a time.
fn with_known_length(recipe: &Recipe, corpus: &CorpusFacts, machine: &Machine) -> Result<Recipe> {
    if recipe.awaits_clock() {
        return Err(recipe.error(
            &["training.until"],
            "a length of time becomes steps when `xrun run` times them, and nothing else measures it",
            "set training.steps, or a budget of tokens or FLOPs, which are the same on every machine",
        ));
    }
    if !recipe.awaits_plan() {
        return Ok(recipe.clone());
    }
    let plan = Plan::new(recipe, corpus, machine)?;
    recipe.with_cost_per_token(flops_per_token(&plan).value)
}

/// Returns a recipe with the steps that its budget in FLOPs gives; other recipes stay the same, and their
/// corpus is not opened.
///
/// # Errors
/// If the plan is invalid, if the budget is less than a step or too many, if it is a time, or if the corpus
/// or the tokenizer is one that a run refuses.
pub fn with_steps_of_budget(recipe: Recipe, machine: &Machine) -> Result<Recipe> {
    match recipe.awaits_plan() || recipe.awaits_clock() {
        true => with_known_length(&recipe, &corpus_facts(&recipe)?, machine),
        false => Ok(recipe),
    }
}

/// Returns the limits that the times of modes are compared with.
fn limits(plan: &Plan, machine: &Machine) -> Limits {
    let gpu = plan.execution.gpu.and_then(|gpu| machine.gpu(gpu));
    let known = machine.hardware.or_else(|| hardware::by_driver_name(&gpu?.name));
    let usual = || hardware::DEVICES.iter().find(|device| device.name == USUAL_GPU)?.limits;
    match (known.and_then(|known| known.limits), gpu) {
        (Some(limits), _) => limits,
        (None, Some(_)) => usual().unwrap_or(CPU),
        (None, None) => CPU,
    }
}

/// Returns the bytes that a rank may use; `None` if the amount of memory is unknown. Only total memory
/// counts: free memory would make the mode depend on other programs.
fn budget(plan: &Plan, machine: &Machine) -> Option<u64> {
    let without_reserve = |total: u64| total.saturating_sub(RESERVE_BYTES);
    let smallest = plan.execution.gpus().filter_map(|gpu| Some(machine.gpu(gpu)?.memory_bytes)).min();
    let device = match (machine.hardware, smallest) {
        (Some(hardware), _) => hardware.memory_bytes.map(without_reserve),
        (None, Some(bytes)) => Some(without_reserve(bytes)),
        (None, None) if plan.execution.gpu.is_some() => None,
        (None, None) => {
            let ranks = machine.local_ranks.unwrap_or(plan.batch.world_size).max(1) as u64;
            machine.memory_bytes.map(|bytes| bytes / HOST_MEMORY_DIVISOR / ranks)
        }
    };
    let limit = plan.execution.memory_limit.map(|bytes| bytes as u64);
    [device, limit].into_iter().flatten().min()
}
