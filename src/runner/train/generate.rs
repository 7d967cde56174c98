//! The prompts of samples.

use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::model::prompt_shape;
use crate::plan::Plan;
use crate::recipe::Recipe;

/// Step between the tokens of a made-up prompt. It is prime, so the ids spread over the whole vocabulary, and
/// all rows of a prompt and all prompts differ.
pub(super) const PRIME_STRIDE: usize = 7919;

/// A prompt as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// All tokens, with the one that texts begin with.
    pub tokens: Vec<u32>,
    /// The number of tokens before the ones of its text.
    before_text: usize,
}

impl Prompt {
    /// Encodes a prompt.
    ///
    /// # Errors
    /// If its tokens leave no room for another one in the model's context.
    pub fn new(prompt: &str, tokenizer: &Tokenizer, seq_len: usize) -> Result<Self> {
        let (tokens, before_text) = tokenizer.prompt(prompt)?;
        if tokens.len() >= seq_len {
            return Err(Error::usage(format!(
                "the prompt takes {} tokens with the one that texts begin with, but the model's context is \
                 training.seq_len = {seq_len}; shorten generation.prompt",
                tokens.len()
            )));
        }
        Ok(Self { tokens, before_text })
    }

    /// Returns the text of tokens that continue the prompt.
    ///
    /// # Errors
    /// If a token is outside the vocabulary.
    pub fn decode(&self, tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
        tokenizer.decode_after(&self.tokens[self.before_text..], tokens)
    }
}

/// Checks that the prompt of a run's samples leaves room for a token in the model's context, and that it fits
/// the program, which was recorded before the tokenizer was known.
///
/// # Errors
/// With a usage error that states the length of the prompt.
pub fn check_prompt(plan: &Plan, tokenizer: &Tokenizer) -> Result<()> {
    let tokens = Prompt::new(&plan.generation.prompt, tokenizer, plan.batch.seq_len)?.tokens.len();
    let room = prompt_shape(plan).rows;
    if tokens > room {
        return Err(Error::usage(format!(
            "the prompt takes {tokens} tokens, but the program was planned for {room}, enough for {} bytes with \
             other tokenizers; shorten generation.prompt",
            plan.generation.prompt.len()
        )));
    }
    Ok(())
}

/// Checks the prompt of a recipe's samples like a run of it does. Opens the tokenizer only if there are
/// samples.
///
/// # Errors
/// Fails like [`check_prompt`], and if the tokenizer cannot be opened.
pub fn check_planned_prompt(recipe: &Recipe, plan: &Plan) -> Result<()> {
    if plan.generation.samples == 0 {
        return Ok(());
    }
    let data = &recipe.values().data;
    check_prompt(plan, &Tokenizer::open_for(&data.tokenizer, data.begin_token.as_deref())?)
}
