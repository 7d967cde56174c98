//! Generates text from a trained run.

use super::generate::{Generating, prompt_tokens};
use super::trained::Trained;
use crate::error::Result;
use crate::model::{Generator, PromptShape, WeightsKind, prompt_rows};
use crate::plan::Plan;
use crate::results::progress::eprint_line;
use std::path::PathBuf;

/// The run to sample from, and its settings.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// The run's folder.
    pub run: PathBuf,
    /// The step of the checkpoint; `None` for the newest valid one.
    pub step: Option<u64>,
    /// Which of the checkpoint's weights to use.
    pub weights: WeightsKind,
    /// Keys to change, as `section.key=value`: keys of `[generation]`, execution keys, and `training.dtype`.
    pub overrides: Vec<String>,
    /// Prompts, each continued by `generation.samples` texts. If there are none, the recipe's prompt is used.
    pub prompts: Vec<String>,
}

/// A generated text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The prompt that the text continues.
    pub prompt: String,
    /// The generated text, without the prompt.
    pub text: String,
    /// The tokens of the text.
    pub tokens: Vec<u32>,
}

/// Generates texts in one batch, grouped by prompt.
///
/// # Errors
/// If the run has no valid checkpoint, a prompt does not fit, or a key would change the trained model.
pub fn sample(request: &SampleRequest) -> Result<Vec<Sampled>> {
    let SampleRequest { run, step, weights, overrides, prompts } = request;
    let trained = Trained::open(run, *step, *weights, overrides, prompts.len())?;
    let Trained { plan, tokenizer, .. } = &trained;
    let seq_len = plan.batch.seq_len;
    let own = std::slice::from_ref(&plan.generation.prompt);
    let prompts = if prompts.is_empty() { own } else { prompts };
    let tokens: Vec<Vec<u32>> =
        prompts.iter().map(|prompt| prompt_tokens(prompt, tokenizer, seq_len)).collect::<Result<_>>()?;
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
    if let Some(cut) = cut_short(plan, longest) {
        eprint_line(&cut);
    }
    let shape = PromptShape { prompts: prompts.len(), rows: prompt_rows(longest, seq_len) };
    let generator = Generator::new(plan, &[shape])?;
    let mut engine = trained.engine(&generator)?;
    let ends = [tokenizer.end_token()];
    let generating = Generating {
        prefill: &generator.prefills[0],
        decode: &generator.decode,
        ends: &ends,
        tokens: plan.generation.tokens,
        seq_len,
    };
    let texts = generating.run(&mut engine, &tokens, |_, _| Ok(()))?;
    let each = texts.len() / prompts.len();
    let sampled = |(i, tokens): (usize, Vec<u32>)| {
        let text = tokenizer.decode(&tokens)?;
        Ok(Sampled { prompt: prompts[i / each].clone(), text, tokens })
    };
    texts.into_iter().enumerate().map(sampled).collect()
}

/// Returns a sentence for the user if the model's context ends before the requested number of tokens.
fn cut_short(plan: &Plan, prompt: usize) -> Option<String> {
    let (wanted, seq_len) = (plan.generation.tokens, plan.batch.seq_len);
    let room = seq_len + 1 - prompt;
    (wanted > room).then(|| {
        format!(
            "texts end after {room} tokens, not {wanted}: the model's context is training.seq_len = {seq_len}, and the \
             prompt takes {prompt} of it with its end token"
        )
    })
}
