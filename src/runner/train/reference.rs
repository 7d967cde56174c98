//! Logits after a fixed prompt. They show whether two readers of the same weights compute the same values
//! ([`Reference`]).

use super::generate::PRIME_STRIDE;
use super::trained::generating_engine;
use crate::error::Result;
use crate::generation::Generating;
use crate::hugging_face::Reference;
use crate::ir::GenerationSlot;
use crate::machine::Machine;
use crate::model::{Generator, PromptShape, Weights, prompt_rows};
use crate::plan::{CorpusFacts, Model, Plan};
use crate::policy::Position;
use crate::recipe::{self, Recipe};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;

/// Tokens in a prompt: enough that heads attend to several, few enough for a large model on a CPU.
const PROMPT: usize = 16;

/// Keys that say where weights came from, and keys whose effect is already in the model's values.
const DERIVED_KEYS: [&str; 5] =
    ["model.init_from", "model.vocab_size", "model.logit_scale", "model.parametrization", "model.base_dim"];

/// Returns the reference of weights: the end token, tokens from all over the vocabulary, and the logits after
/// them.
///
/// # Errors
/// If a weight is missing, or the model does not fit in memory.
pub fn reference(recipe: &Recipe, model: &Model, weights: &dyn Weights, end_token: u32) -> Result<Reference> {
    let count = PROMPT.min(recipe.values().training.seq_len);
    let further = (1..count).map(|i| (i * PRIME_STRIDE % model.vocab_size) as u32);
    let tokens: Vec<u32> = std::iter::once(end_token).chain(further).collect();
    let logits = logits(recipe, model, weights, &tokens)?;
    Ok(Reference::new(tokens, logits.into_iter().map(|logit| logit as f32).collect()))
}

/// Returns the logits after the last of some tokens, computed in fp32 on the CPU.
///
/// # Errors
/// Fails like [`reference`].
pub fn logits(recipe: &Recipe, model: &Model, weights: &dyn Weights, tokens: &[u32]) -> Result<Vec<f64>> {
    let machine = Machine { single_device: true, ..Machine::here() };
    let recipe = generating(recipe, model, tokens.len(), &machine)?;
    let corpus = CorpusFacts { vocab_size: model.vocab_size, ..CorpusFacts::default() };
    let plan = Plan::new(&recipe, &corpus, &machine)?;
    let seq_len = plan.batch.seq_len;
    let shape = PromptShape { prompts: 1, rows: prompt_rows(tokens.len(), seq_len) };
    let generator = Generator::new(&plan, &[shape])?;
    let mut engine = generating_engine(&plan, &generator, weights)?;
    let (prefill, decode) = (&generator.prefills[0], &generator.decode);
    let generating = Generating { prefill, decode, ends: &[], tokens: 1, seq_len };
    generating.run(&mut engine, &[tokens.to_vec()], |_, _| Ok(ControlFlow::Continue(())))?;
    engine.state.values(engine.state.slot(GenerationSlot::Logits)?)
}

/// Returns a recipe of the same model that generates one text in fp32 on the CPU. Unless the context is part
/// of the model, it is as short as the prompt, to keep the cache of keys and values small.
fn generating(recipe: &Recipe, model: &Model, tokens: usize, machine: &Machine) -> Result<Recipe> {
    let mut text = "[model]\n".to_owned();
    for (key, value, _) in recipe.explain() {
        let apart = DERIVED_KEYS.contains(&key.path);
        if let Some(value) = value.filter(|_| key.section() == "model" && !apart) {
            let _ = writeln!(text, "{} = {value}", key.name());
        }
    }
    let seq_len = match model.position {
        Position::Learned => recipe.values().training.seq_len,
        Position::Rope | Position::None => tokens + 1,
    };
    let _ = write!(
        text,
        "vocab_size = {}\nlogit_scale = {:?}\n[training]\nseq_len = {seq_len}\ndtype = \"fp32\"\n[generation]\nsamples = 1\n[engine]\n\
         device = \"cpu\"\n",
        model.vocab_size, model.logit_scale
    );
    recipe::load_str(Path::new("the model's recipe"), &text, &[], std::iter::empty(), machine)
}
