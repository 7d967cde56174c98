//! Measures how fast a trained run generates: the prompts and the new tokens, timed separately.

use super::generate::Generating;
use super::trained::Trained;
use crate::error::{Error, Result};
use crate::model::{Generator, PromptShape, WeightsKind, prompt_rows};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The run to time, and what it generates.
#[derive(Clone, Debug)]
pub struct BenchRequest {
    /// The run's folder.
    pub run: PathBuf,
    /// The step of the checkpoint; `None` for the newest valid one.
    pub step: Option<u64>,
    /// Which of the checkpoint's weights to use.
    pub weights: WeightsKind,
    /// Keys to change, as for [`sample`](super::sample).
    pub overrides: Vec<String>,
    /// Number of tokens in each prompt. Every sample has its own prompt.
    pub prompt_tokens: usize,
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

/// Step between the tokens of a prompt. It makes all rows of a prompt and all prompts different.
const STRIDE: usize = 7919;

/// Generates several times and passes the times of each repetition to `on_repetition`. No token ends a text.
///
/// # Errors
/// Fails like [`sample`](super::sample), and if prompts and new tokens do not fit the context.
pub fn bench_generation(
    request: &BenchRequest,
    mut on_repetition: impl FnMut(GenerationTime) -> Result<()>,
) -> Result<()> {
    let trained = Trained::open(&request.run, request.step, request.weights, &request.overrides, 1)?;
    let (generation, seq_len) = (&trained.plan.generation, trained.plan.batch.seq_len);
    let (samples, tokens, prompt_tokens) = (generation.samples, generation.tokens, request.prompt_tokens);
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
        .map(|s| (0..prompt_tokens).map(|i| ((s + i * STRIDE) % vocabulary) as u32).collect())
        .collect();
    let generating =
        Generating { prefill: &generator.prefills[0], decode: &generator.decode, ends: &[], tokens, seq_len };
    for repetition in 0..WARM_UP + REPEATS {
        let began = Instant::now();
        let mut first = None;
        generating.run(&mut engine, &prompts, |_, _| {
            first.get_or_insert_with(Instant::now);
            Ok(())
        })?;
        let first = first.unwrap_or(began);
        if repetition >= WARM_UP {
            let (prefill, decode) = (first - began, first.elapsed());
            on_repetition(GenerationTime { samples, prompt_tokens, new_tokens: tokens, prefill, decode })?;
        }
    }
    Ok(())
}
