//! Generates text from a trained run, or measures how fast it generates: the prompts and the new tokens,
//! timed separately.

use super::generate::{PRIME_STRIDE, Prompt};
use super::trained::{Trained, TrainedRun};
use crate::error::{Error, Result};
use crate::generation::Generating;
use crate::model::{Generator, PromptShape, prompt_rows};
use crate::plan::Plan;
use crate::results::progress::eprint_line;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

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

/// Generates texts in one batch, grouped by prompt. Each of `prompts` is continued by `generation.samples`
/// texts. If there are none, the recipe's prompt is used.
///
/// # Errors
/// If the run has no valid checkpoint, a prompt does not fit, or a key would change the trained model.
pub fn sample(run: &TrainedRun, prompts: &[String]) -> Result<Vec<Sampled>> {
    let trained = Trained::open(run, prompts.len())?;
    let Trained { plan, tokenizer, .. } = &trained;
    let seq_len = plan.batch.seq_len;
    let own = std::slice::from_ref(&plan.generation.prompt);
    let prompts = if prompts.is_empty() { own } else { prompts };
    let encoded: Vec<Prompt> =
        prompts.iter().map(|prompt| Prompt::new(prompt, tokenizer, seq_len)).collect::<Result<_>>()?;
    let tokens: Vec<Vec<u32>> = encoded.iter().map(|prompt| prompt.tokens.clone()).collect();
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
    if let Some(cut) = cut_short(plan, longest) {
        eprint_line(&cut);
    }
    let shape = PromptShape { prompts: prompts.len(), rows: prompt_rows(longest, seq_len) };
    let generator = Generator::new(plan, &[shape])?;
    let mut engine = trained.engine(&generator)?;
    let ends = trained.ends();
    let generating = Generating {
        prefill: &generator.prefills[0],
        decode: &generator.decode,
        ends: &ends,
        tokens: plan.generation.tokens,
        seq_len,
    };
    let texts = generating.run(&mut engine, &tokens, |_, _| Ok(ControlFlow::Continue(())))?;
    let each = texts.len() / prompts.len();
    let sampled = |(i, tokens): (usize, Vec<u32>)| {
        let text = encoded[i / each].decode(tokenizer, &tokens)?;
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
             prompt takes {prompt} of it with the token that texts begin with"
        )
    })
}

/// The times of one repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationTime {
    /// Number of samples, which advance together.
    pub samples: usize,
    /// Number of tokens in each prompt.
    pub prompt_tokens: usize,
    /// Number of new tokens per sample.
    pub new_tokens: usize,
    /// Time from the request until the host has the first token of every sample.
    pub prefill: Duration,
    /// Time from then until the host has the last tokens: `new_tokens − 1` per sample.
    pub decode: Duration,
}

/// Repetitions that are not reported, in which CUDA graphs are built and clocks rise.
const WARM_UP: usize = 2;

/// Repetitions that are reported.
const REPEATS: usize = 5;

/// Generates several times and passes the times of each repetition to `on_repetition`. Every sample has its
/// own prompt of `prompt_tokens` tokens. No token ends a text.
///
/// # Errors
/// Fails like [`sample`], and if prompts and new tokens do not fit the context.
pub fn bench_generation(
    run: &TrainedRun,
    prompt_tokens: usize,
    mut on_repetition: impl FnMut(GenerationTime) -> Result<()>,
) -> Result<()> {
    let trained = Trained::open(run, 1)?;
    let (generation, seq_len) = (&trained.plan.generation, trained.plan.batch.seq_len);
    let (samples, tokens) = (generation.samples, generation.tokens);
    if prompt_tokens == 0 || prompt_tokens + tokens > seq_len + 1 {
        return Err(Error::usage(format!(
            "prompts of {prompt_tokens} tokens and {tokens} new tokens do not fit the model's context, training.seq_len = \
             {seq_len}; a prompt has at least 1"
        )));
    }
    let shape = PromptShape { prompts: samples, rows: prompt_rows(prompt_tokens, seq_len) };
    let generator = Generator::new(&trained.plan, &[shape])?;
    let mut engine = trained.engine(&generator)?;
    let vocabulary = trained.tokenizer.vocab_size();
    let prompts: Vec<Vec<u32>> = (0..samples)
        .map(|s| (0..prompt_tokens).map(|i| ((s + i * PRIME_STRIDE) % vocabulary) as u32).collect())
        .collect();
    let generating =
        Generating { prefill: &generator.prefills[0], decode: &generator.decode, ends: &[], tokens, seq_len };
    for repetition in 0..WARM_UP + REPEATS {
        let began = Instant::now();
        let mut first = None;
        generating.run(&mut engine, &prompts, |_, _| {
            first.get_or_insert_with(Instant::now);
            Ok(ControlFlow::Continue(()))
        })?;
        let first = first.unwrap_or(began);
        if repetition >= WARM_UP {
            let (prefill, decode) = (first - began, first.elapsed());
            on_repetition(GenerationTime { samples, prompt_tokens, new_tokens: tokens, prefill, decode })?;
        }
    }
    Ok(())
}
