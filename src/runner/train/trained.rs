//! Reads a trained run again: its recipe and tokenizer, verified against its checkpoint, and an engine that
//! generates with its weights.

use super::initial::weights::{write_frozen, write_weights};
use super::of_checkpoint::{recipe_of, tokenizer_of};
use super::rank::print_timing_notice;
use super::run_weights::RunWeights;
use crate::checkpoint::{self, Loaded};
use crate::data::Tokenizer;
use crate::device::Device;
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::error::{Error, Result};
use crate::exec::{Engine, Section, prepare};
use crate::ir::State;
use crate::liveness::report_progress;
use crate::machine::Machine;
use crate::model::{CheckpointWeights, Generator, Weights, WeightsKind};
use crate::plan::{CorpusFacts, Plan};
use crate::recipe::{self, Class, Recipe};
use crate::results::names::CHECKPOINT;
use crate::results::progress::eprint_line;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The training keys that sampling may change: weights are stored in fp32 for every training dtype, and the
/// content of the folder with the frozen weights of adapters is compared.
const MAY_CHANGE: [&str; 2] = [DTYPE, "model.init_from"];
const DTYPE: &str = "training.dtype";

/// A trained run to generate with.
#[derive(Clone, Debug)]
pub struct TrainedRun {
    /// The run's folder.
    pub folder: PathBuf,
    /// The step of the checkpoint; `None` for the newest valid one.
    pub step: Option<u64>,
    /// Which of the checkpoint's weights to use.
    pub weights: WeightsKind,
    /// Keys to change, as `section.key=value`: keys of `[generation]`, execution keys, and `training.dtype`.
    pub overrides: Vec<String>,
}

/// A trained run with its settings for generation.
#[derive(Debug)]
pub(super) struct Trained {
    /// The run's plan, for one device.
    pub plan: Plan,
    /// The run's tokenizer.
    pub tokenizer: Tokenizer,
    loaded: Loaded,
    recipe: Recipe,
    weights: WeightsKind,
}

/// A run's checkpoint, and the recipe for using its weights on this machine.
#[derive(Debug)]
pub(super) struct OpenedRun {
    /// The checkpoint.
    pub loaded: Loaded,
    /// The run's recipe with the changes.
    pub recipe: Recipe,
    /// This machine, of which one device is used.
    pub machine: Machine,
    /// The run's tokenizer.
    pub tokenizer: Tokenizer,
}

impl OpenedRun {
    /// Opens the checkpoint of a run.
    ///
    /// # Errors
    /// If the run has no valid checkpoint or no such weights, or a key would change the trained model.
    pub(super) fn open(run: &TrainedRun) -> Result<Self> {
        let TrainedRun { folder: run, step, weights, overrides } = run;
        let weights = *weights;
        let folder = run.join(CHECKPOINT);
        let loaded: Loaded = match step {
            Some(step) => checkpoint::at_step(&folder, *step)?,
            None => checkpoint::newest(&folder)?
                .ok_or_else(|| Error::usage(format!("{} has no checkpoint to use", run.display())))?,
        };
        for warning in loaded.warnings() {
            eprint_line(&format!("warning: {warning}"));
        }
        CheckpointWeights::new(&loaded, weights)?.check_finite()?;
        let trained = recipe_of(&loaded)?;
        eprint_line(&format!(
            "{}: step {} of {}",
            run.display(),
            loaded.meta().step,
            trained.values().training.steps
        ));
        let machine = Machine { single_device: true, ..Machine::here() };
        let recipe = recipe::load_resolved(
            Path::new("the checkpoint's recipe"),
            &loaded.meta().resolved_recipe_toml,
            overrides,
            &machine,
        )?;
        let changes = recipe::diff(trained.values(), recipe.values());
        if let Some(change) =
            changes.iter().find(|change| change.class == Class::Training && !MAY_CHANGE.contains(&change.key))
        {
            return Err(Error::usage(format!(
                "{} is part of what the model was trained with ({}); a trained model can only be used with another \
                 [generation], {DTYPE} and execution keys",
                change.key, change.old
            )));
        }
        let begin = recipe.values().data.begin_token.clone();
        let tokenizer = tokenizer_of(run, &loaded)?.beginning_with(begin.as_deref())?;
        Ok(Self { loaded, recipe, machine, tokenizer })
    }

    /// Plans the recipe.
    ///
    /// # Errors
    /// If [`Plan::new`] fails.
    pub(super) fn plan(&self) -> Result<Plan> {
        let corpus = CorpusFacts { vocab_size: self.tokenizer.vocab_size(), ..CorpusFacts::default() };
        Plan::new(&self.recipe, &corpus, &self.machine)
    }
}

impl Trained {
    /// Opens the checkpoint of a run. `prompts` is the number of prompts; each gets as many samples as the
    /// keys say.
    ///
    /// # Errors
    /// Fails like [`OpenedRun::open`].
    pub(super) fn open(run: &TrainedRun, prompts: usize) -> Result<Self> {
        let mut opened = OpenedRun::open(run)?;
        let TrainedRun { weights, overrides, .. } = run;
        // Generates one text even if the run has `generation.samples = 0`. At temperature 0 all samples would
        // be the same, so one is enough.
        let says_samples = overrides.iter().any(|set| set.starts_with("generation.samples"));
        let generation = &opened.recipe.values().generation;
        let mut samples = generation.samples;
        if !says_samples && (samples == 0 || generation.temperature == 0.0) {
            samples = 1;
        }
        samples *= prompts.max(1);
        if samples != generation.samples {
            let samples = format!("generation.samples={samples}");
            opened.recipe = opened.recipe.with_overrides(&[samples], &opened.machine)?;
        }
        let plan = opened.plan()?;
        let OpenedRun { loaded, recipe, tokenizer, .. } = opened;
        Ok(Self { plan, tokenizer, loaded, recipe, weights: *weights })
    }

    /// Returns the tokens that end a generated text: the end token, and others that the model was imported
    /// with.
    pub(super) fn ends(&self) -> Vec<u32> {
        let mut ends = vec![self.tokenizer.end_token()];
        ends.extend(self.loaded.meta().stop_token_ids());
        ends
    }

    /// Returns an engine with the run's weights for the programs of a generator.
    ///
    /// # Errors
    /// If the device reports an error, or a tensor is missing.
    pub(super) fn engine(&self, generator: &Generator) -> Result<Engine> {
        let weights = RunWeights::open(&self.loaded, self.weights, &self.recipe, &self.plan.model)?;
        generating_engine(&self.plan, generator, &weights)
    }
}

/// Returns an engine with some weights for the programs of a generator.
///
/// # Errors
/// If the device reports an error, or a weight is missing.
pub(super) fn generating_engine(plan: &Plan, generator: &Generator, weights: &dyn Weights) -> Result<Engine> {
    engine_with_weights(plan, &generator.state, &generator.sections().collect::<Vec<_>>(), weights)
}

/// Returns an engine with some weights for sections that do not train, over their state.
///
/// # Errors
/// If the device reports an error, or a weight is missing.
pub(super) fn engine_with_weights(
    plan: &Plan,
    state: &Arc<State>,
    sections: &[&Section],
    weights: &dyn Weights,
) -> Result<Engine> {
    let execution = &plan.execution;
    let device = Device::open(execution.gpu, Arc::new(Pool::new(execution.threads)?))?;
    prepare(&device, 0, sections.iter().copied(), &print_timing_notice)?;
    let arena = sections.iter().map(|section| section.memory.arena_bytes).max().unwrap_or(0);
    let (placement, poison) = (execution.placement, execution.poison);
    let mut engine = Engine::new(device, state, Arc::new(SingleRank), placement, arena, poison)?;
    engine.use_graphs(execution.cuda_graphs);
    for param in &state.params {
        report_progress();
        write_weights(&mut engine, param, &weights.read(&param.name, &param.spec.shape)?)?;
    }
    for frozen in &state.frozen {
        report_progress();
        write_frozen(&mut engine, frozen, &weights.read(&frozen.name, &frozen.spec.shape)?)?;
    }
    Ok(engine)
}
