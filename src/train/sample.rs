//! Generates text from a trained run.

use super::generate::{generate, prompt};
use super::rank::say_timing;
use super::restore::restore;
use super::resume::recipe_of;
use super::verified::tokenizer_json;
use crate::checkpoint::{self, Loaded};
use crate::data::Tokenizer;
use crate::device::Device;
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::error::{Error, Result};
use crate::exec::{Engine, prepare};
use crate::machine::Machine;
use crate::model::generator;
use crate::plan::{Corpus, Generation, Plan};
use crate::recipe::{self, Class};
use crate::results::progress::eprint_line;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The only training key that sampling may change: weights are stored in fp32 for every training dtype.
const DTYPE: &str = "training.dtype";

/// The run to sample from, and its settings.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// The run's folder.
    pub run: PathBuf,
    /// The step of the checkpoint; `None` for the newest valid one.
    pub step: Option<u64>,
    /// Keys to change, as `section.key=value`: those of `[generation]` and of execution, and [`DTYPE`].
    pub overrides: Vec<String>,
}

/// Generates texts; returns them with the settings of generation, which include the prompt.
///
/// # Errors
/// When the run has no valid checkpoint, the prompt does not fit, or a key would change the trained model.
pub fn sample(request: &SampleRequest) -> Result<(Generation, Vec<String>)> {
    let folder = request.run.join("checkpoint");
    let loaded: Loaded = match request.step {
        Some(step) => checkpoint::at_step(&folder, step)?,
        None => checkpoint::newest(&folder)?.ok_or_else(|| {
            Error::usage(format!("{} has no checkpoint to sample from", request.run.display()))
        })?,
    };
    for warning in loaded.warnings() {
        eprint_line(&format!("warning: {warning}"));
    }
    loaded.check_finite()?;
    let trained = recipe_of(&loaded)?;
    eprint_line(&format!(
        "{}: step {} of {}",
        request.run.display(),
        loaded.meta().step,
        trained.values().training.steps
    ));
    let machine = Machine::here().with_single_device();
    let mut recipe = recipe::load_resolved(
        Path::new("the checkpoint's recipe"),
        &loaded.meta().resolved_recipe_toml,
        &request.overrides,
        &machine,
    )?;
    let changes = recipe::diff(trained.values(), recipe.values());
    if let Some(change) = changes.iter().find(|change| change.class == Class::Training && change.key != DTYPE)
    {
        return Err(Error::usage(format!(
            "{} is part of what the model was trained with ({}); sampling changes [generation], {DTYPE} and how it is \
             executed",
            change.key, change.old
        )));
    }
    // `xrun sample` generates one text even for a run with `generation.samples = 0`; at temperature 0 all
    // would be the same.
    let says_samples = request.overrides.iter().any(|set| set.starts_with("generation.samples"));
    let generation = &recipe.values().generation;
    if !says_samples && (generation.samples == 0 || generation.temperature == 0.0) {
        recipe = recipe.with_overrides(&["generation.samples=1".to_owned()], &machine)?;
    }
    let end = loaded.meta().extra.get(checkpoint::END_TOKEN_ID).and_then(|id| id.parse().ok());
    let tokenizer = Tokenizer::from_run(tokenizer_json(&request.run, &loaded)?, end)?;
    let corpus = Corpus {
        vocab_size: tokenizer.vocab_size(),
        train_tokens: 0,
        exact: false,
        validation_tokens: 0,
        set_tokens: BTreeMap::new(),
        floor: None,
        memory_bytes: 0,
    };
    let plan = Plan::new(&recipe, &corpus, &machine)?;
    if let Some(cut) = cut_short(&plan, &tokenizer)? {
        eprint_line(&cut);
    }
    let (state, section) = generator(&plan)?;
    let execution = &plan.execution;
    let device = Device::open(execution.gpu, Arc::new(Pool::new(execution.threads)?))?;
    prepare(&device, 0, [&section], &say_timing)?;
    let mut engine = Engine::new(
        device,
        &state,
        Arc::new(SingleRank),
        execution.placement,
        section.memory.arena_bytes,
        execution.poison,
    )?;
    restore(&mut engine, &loaded)?;
    let texts = generate(&mut engine, &section, &tokenizer, &plan.generation, plan.batch.seq_len)?;
    Ok((plan.generation, texts))
}

/// Returns a sentence where the model's context ends before the requested number of tokens.
fn cut_short(plan: &Plan, tokenizer: &Tokenizer) -> Result<Option<String>> {
    let (wanted, seq_len) = (plan.generation.tokens, plan.batch.seq_len);
    let prompt = prompt(&plan.generation, tokenizer, seq_len)?.len();
    let room = seq_len + 1 - prompt;
    Ok((wanted > room).then(|| {
        format!(
            "texts end after {room} tokens, not {wanted}: the model's context is training.seq_len = {seq_len}, and the \
             prompt takes {prompt} of it with its end token"
        )
    }))
}
